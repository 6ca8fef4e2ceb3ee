"""What commands share: the options of those that are about one model, what is refused alike, tables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from srmlab.errors import UserError
from srmlab.files import occupied

if TYPE_CHECKING:
    from srmlab.data import Tokenizer
    from srmlab.training.run_text import RunText


@dataclass(kw_only=True)
class OfModel:
    """A command about one model."""

    path: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    """A run (its last good checkpoint), a checkpoint or an export."""
    pretrained: bool = False
    """Use the model that ships with the package instead of a run."""
    device: str = "auto"
    json: bool = False
    """Print JSON, for scripts."""

    def subject(self) -> Path:
        """Where the model is."""
        from srmlab.training.run_text import chosen

        return chosen(self.path, self.pretrained)


@dataclass(kw_only=True)
class OfText(OfModel):
    """A command about a model and its text."""

    data: Path | None = None
    """Output folder of `srmlab prepare`; by default the run's."""
    document_mask: bool = False
    """Attention does not cross documents (always on if the run was trained that way)."""
    answers_only: bool = False
    """Count only what follows "=" in a document (always on if the run was trained that way)."""

    def open_text(self, **options: Any) -> RunText:
        """The model with its text; `options` are those of `srmlab.training.run_text.open_text`."""
        from srmlab.training.run_text import open_text

        own: dict[str, Any] = {"data": self.data, "device": self.device}
        own |= {"document_mask": self.document_mask, "answers_only": self.answers_only}
        return open_text(self.subject(), **(own | options))


def at_least(command: Any, **least: int) -> None:
    """Refuse options of a command below what they may be."""
    for name, number in least.items():
        value = getattr(command, name)
        if value is not None and value < number:
            raise UserError(f"--{name.replace('_', '-')} {value}: must be at least {number}")


def refuse_existing(path: Path, option: str = "--out") -> None:
    if occupied(path):
        raise UserError(f"{path} exists and is not overwritten: choose another {option}, or delete it")


@contextlib.contextmanager
def writing(out: Path | None) -> Iterator[None]:
    """What cannot be written is a line that names the option."""
    try:
        yield
    except OSError as error:
        where, reason = error.filename or out, error.strerror or error
        raise UserError(f"cannot write {where} ({reason}): choose another --out") from None


def aligned(lines: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Cells in columns, numbers flush right; the columns `left` flush left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def readable(tokenizer: Tokenizer) -> Callable[[int], str]:
    """A token as text; bytes that are no text by themselves as \\xNN."""

    def decode(token: int) -> str:
        if token >= len(tokenizer.tokens):
            return "<end>"
        return tokenizer.tokens[token].decode("utf-8", "backslashreplace")

    return decode
