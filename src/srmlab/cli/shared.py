"""What commands share: the options of those about one model, how they answer, what they refuse, tables."""

from __future__ import annotations

import json
import math
import shutil
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from srmlab.errors import UserError

if TYPE_CHECKING:
    from srmlab.data import Tokenizer
    from srmlab.models import Exit, LanguageModel
    from srmlab.progress import Display
    from srmlab.training.run_text import RunText


OR_PRETRAINED = "(or --pretrained)"  # of a run that may be left out, in place of "(default: none)"
EMPTY = tyro.conf.arg(help_behavior_hint="")  # of several values, by default none of them
REQUIRED = "(required)"  # of several values that cannot be left out, though tyro takes none


@dataclass(kw_only=True)
class Answers:
    """A command whose answer a person or a program may read."""

    json: bool = False
    """Print JSON, for scripts."""

    def run(self) -> None:
        result = self.result()
        if self.json and result is not None:
            print(json.dumps(finite(result), indent=2, ensure_ascii=False, allow_nan=False))
        elif result is not None:
            print("\n".join(self.lines(result)))

    def result(self) -> Any:
        """The answer as plain data; None in a process that only helps another."""
        raise NotImplementedError

    def lines(self, result: Any) -> Iterable[str]:
        """The same for a terminal."""
        raise NotImplementedError

    def display(self) -> Display:
        """Progress, for a person only."""
        from srmlab.progress import Display

        return Display(show=not self.json)


@dataclass(kw_only=True)
class OfModel:
    """A command about one model."""

    path: Annotated[
        Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help_behavior_hint=OR_PRETRAINED)
    ] = None
    """A run (its last good checkpoint), a checkpoint or an export."""
    pretrained: bool = False
    """Use the srm-nano that ships with the package, or with `--pretrained sudoku` the sudoku model."""

    def subject(self) -> Path:
        """Where the model is; a shipped one may be given by its name, as to `srmlab.load`."""
        from srmlab.storage.save_and_load import named
        from srmlab.training.run_text import chosen

        return named(chosen(self.path, self.pretrained))


@dataclass(kw_only=True)
class RunsModel(Answers, OfModel):
    """A command that runs a model and answers with numbers."""

    device: str = "auto"
    """cpu, cuda, cuda:1; auto uses a GPU if there is one."""

    def load(self) -> tuple[Path, LanguageModel, Tokenizer]:
        """The model and its tokenizer, for a command that reads prompts."""
        from srmlab.storage import load, load_tokenizer
        from srmlab.training.distributed import device_of
        from srmlab.training.run_text import check_reads_text

        path = self.subject()
        model = load(path, device=device_of(self.device))
        check_reads_text(path, model)
        return path, model, load_tokenizer(path)


@dataclass(kw_only=True)
class ExitsEarly:
    """A command that may stop the recursion early."""

    exit: float | None = None
    """Stop once the state changes by less than this fraction, or by the model's rule (Ouro's gate: 0.9)."""
    exit_by: str | None = None
    """The exit rule that --exit is a threshold for: change, gate …"""

    def early_exit(self) -> Exit | None:
        from srmlab.models import Exit

        if self.exit is None and self.exit_by is not None:
            raise UserError("--exit-by needs --exit, such as --exit 0.9")
        return None if self.exit is None else Exit(self.exit, self.exit_by)


@dataclass(kw_only=True)
class OfText(RunsModel):
    """A command about a model and its text."""

    data: Path | None = None
    """Output folder of `srmlab prepare`; by default the run's."""
    document_mask: bool = False
    """Attention does not cross documents (always on if the run was trained that way)."""
    answers_only: bool = False
    """Measure only what follows "=" in a document (always on if the run was trained that way)."""

    def open_text(self, **options: Any) -> RunText:
        """The model with its text; `options` are those of `srmlab.training.run_text.open_text`."""
        from srmlab.training.run_text import open_text

        own: dict[str, Any] = {"data": self.data, "device": self.device}
        own |= {"document_mask": self.document_mask, "answers_only": self.answers_only}
        return open_text(self.subject(), **(own | options))


def own_or_given(path: Path, own: Tokenizer | None, given: str | None) -> Tokenizer | None:
    """A model's own tokenizer, or the one of --tokenizer for a model that has none."""
    from srmlab.data import make_tokenizer

    if given is None:
        return own
    tokenizer = make_tokenizer(given)
    if own is not None and own.fingerprint != tokenizer.fingerprint:
        raise UserError(f"--tokenizer {given}: {path} has its own, {own.name}; leave it out")
    return tokenizer


def finite(answer: Any) -> Any:
    """An answer as JSON can say it: there is no NaN or infinity, so such numbers are null.

    >>> finite({"mean": 2.5, "errors": (float("nan"), 0.1)})
    {'mean': 2.5, 'errors': [None, 0.1]}
    """
    if isinstance(answer, dict):
        return {name: finite(value) for name, value in answer.items()}
    if isinstance(answer, list | tuple):
        return [finite(value) for value in answer]
    return None if isinstance(answer, float) and not math.isfinite(answer) else answer


def at_least(command: Any, **least: int) -> None:
    """Refuse options of a command below what they may be."""
    for name, number in least.items():
        given = getattr(command, name)
        for value in given if isinstance(given, tuple) else (given,):
            if value is not None and value < number:
                raise UserError(f"--{name.replace('_', '-')} {value}: must be at least {number}")


def refuse(command: Any, *options: str, why: str) -> None:
    """Refuse options that were given although they mean nothing here."""
    for name in options:
        if getattr(command, name) != type(command).__dataclass_fields__[name].default:
            raise UserError(f"--{name.replace('_', '-')} {why}; leave it out")


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


def folded(lines: Sequence[Sequence[str]]) -> str:
    """Cells in columns, as `aligned`, but the first column is wrapped where the terminal is too narrow."""
    rest = aligned([line[1:] for line in lines], left=()).split("\n")
    room = shutil.get_terminal_size().columns - max(map(len, rest)) - 2
    room = min(max(12, room), max(len(line[0]) for line in lines))
    shown = []
    for line, numbers in zip(lines, rest, strict=True):
        first, *more = textwrap.wrap(line[0], room) or [""]
        shown += [f"{first:<{room}}  {numbers}".rstrip(), *more]
    return "\n".join(shown)


def filled(text: str, first: str = "", rest: str = "") -> str:
    """Text wrapped to the terminal, its first line and the rest indented."""
    width = shutil.get_terminal_size().columns
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=rest)


def readable(tokenizer: Tokenizer) -> Callable[[int], str]:
    """A token as text; bytes that are not text by themselves as \\xNN."""

    def decode(token: int) -> str:
        if token >= len(tokenizer.tokens):
            return "<end>"
        return tokenizer.tokens[token].decode("utf-8", "backslashreplace")

    return decode
