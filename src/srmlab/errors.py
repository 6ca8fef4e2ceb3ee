"""The one kind of error that is the user's to fix, and the one kind of warning that is theirs to know."""

from __future__ import annotations

import difflib
import operator
import shutil
from collections.abc import Callable, Collection
from typing import Any

OWN = "for one of your own, srmlab --import its file first"  # the tail of an error about a registered name


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


def number(name: str, value: Any) -> float:
    """An argument as a number; text and true or false are none."""
    return _read(float, name, value, "a number")


def whole(name: str, value: Any) -> int:
    """An argument as a whole number."""
    return _read(operator.index, name, value, "a whole number")


def _read(kind: Callable[[Any], Any], name: str, value: Any, what: str) -> Any:
    try:
        if isinstance(value, bool | str | bytes):
            raise TypeError
        return kind(value)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"{name} = {value!r}: must be {what}") from None


def unknown(
    kind: str, name: str, known: Collection[str], listed: str = "", *, own: bool = False
) -> UserError:
    """The error about a name that nothing of this kind has: the nearest one, or where all are listed. With
    `own` there may be others, of the user's.
    """
    every = (listed or f"there are {', '.join(known)}") + (f"; {OWN}" if own else "")
    return UserError(f"no {kind} is called {name!r}{nearest(str(name), list(known)) or f'; {every}'}")


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
