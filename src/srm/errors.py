"""The one kind of error that is the user's to fix."""


class UserError(ValueError):
    """Something a user can cause and mend. The message is one line and names the fix; the command line
    exits with 2.
    """
