"""The one kind of error that is the user's to fix, and the one kind of warning that is theirs to know."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Collection
from typing import Any


class UserError(ValueError):
    """Something a user can cause and mend. The message is one line and names the fix; the command line
    exits with 2.
    """


class Notice(UserWarning):
    """Something a user should know although the work goes on. The command line prints it as one line."""


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Refuse an argument that is not one of these words."""
    if value not in choices:
        raise UserError(f"{name} = {value!r}: must be one of {', '.join(choices)}")


def unknown(kind: str, name: str, known: Collection[str], listed: str = "") -> UserError:
    """The error about a name that nothing of this kind has: the nearest one, or where all are listed."""
    every = listed or f"there are {', '.join(known)}"
    return UserError(f"no {kind} is called {name!r}{nearest(name, list(known)) or f'; {every}'}")


def reason(error: BaseException) -> str:
    """What an error says, in one line; of a folder that could not be copied, the first file's."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        return str(error.args[0][0][-1])
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.splitlines()[0]


def nearest(name: str, known: list[str]) -> str:
    """The tail of an error about a name: "; did you mean …?" when there is a likely candidate."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def written_anew(known: Any, given: Any) -> bool:
    """Whether this class or function is that one, defined again: a cell of a notebook that is run again."""
    return (known.__module__, known.__qualname__) == (given.__module__, given.__qualname__)
