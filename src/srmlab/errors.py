"""The one kind of error that is the user's to fix, and the one kind of warning that is theirs to know."""

from __future__ import annotations

import difflib


class UserError(ValueError):
    """Something a user can cause and mend. The message is one line and names the fix; the command line
    exits with 2.
    """


class Notice(UserWarning):
    """Something a user should know although the work goes on. The command line prints it as one line."""


def nearest(name: str, known: list[str]) -> str:
    """The tail of an error about a name: "; did you mean …?" when there is a likely candidate."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
