"""The one exception of this room for what a user can cause: a line of text that names its own fix."""

from srmlab.errors import UserError


class DataError(UserError):
    """Bad text, bad settings or a damaged file. `str(error)` is one line and says what to do about it."""
