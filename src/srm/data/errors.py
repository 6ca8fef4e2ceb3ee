"""The one exception of this room for what a user can cause: a line of text that names its own fix."""


class DataError(ValueError):
    """Bad text, bad settings or a damaged file. `str(error)` is one line and says what to do about it."""
