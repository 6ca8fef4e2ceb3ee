"""The format of a run's `metrics.jsonl`, and its reader; `srmlab.training.metrics` says what is in a row, and
writes them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LAST_STEPS = 200  # the paper's "training loss" is the mean of the last so many
NOT_FINITE = ("nan", "inf", "-inf")  # JSON has no such numbers: they are written as text


def iter_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a `metrics.jsonl` one by one; a last line that was cut short by a crash is left out."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            yield _as_number(row)


def metrics_line(row: Mapping[str, Any]) -> str:
    """A row as a line of the file: the inverse of reading it."""
    return json.dumps(_as_text(row)) + "\n"


def _as_text(value: Any) -> Any:
    """With every number that is not finite as text."""
    if isinstance(value, Mapping):
        return {key: _as_text(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_as_text(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _as_number(value: Any) -> Any:
    """The inverse of `_as_text`."""
    if isinstance(value, dict):
        return {key: _as_number(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_as_number(part) for part in value]
    return float(value) if value in NOT_FINITE else value


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All rows of a `metrics.jsonl`."""
    return list(iter_metrics(path))


def is_step(row: dict[str, Any]) -> bool:
    """Whether a row is of a step that was taken: not of an evaluation, nor of a loss that is not finite."""
    return "loss" in row and "event" not in row


def training_loss(row: dict[str, Any]) -> float:
    """Of a step: the cross-entropy where the objective has other parts (Ouro, Mixture-of-Recursions), in nats
    per token; of puzzles the objective, cells and halting together.
    """
    return row.get("parts", {}).get("cross_entropy", row["loss"])


@dataclass
class Losses:
    """What a log says of a run's losses, up to a step."""

    step: int = 0  # the last
    tokens: int = 0
    steps: list[int] = field(default_factory=list)
    training: list[float] = field(default_factory=list)  # of every step, nats per token
    validation: dict[int, float] = field(default_factory=dict)  # by step
    solved: float | None = None  # share of the test puzzles, at the last evaluation

    @classmethod
    def read(cls, path: Path, until: int | None = None) -> Losses:
        """Of a `metrics.jsonl`, if it is there."""
        found = cls()
        for row in iter_metrics(path) if path.is_file() else ():
            if until is not None and row.get("step", 0) > until:
                continue  # not the end: a step that was rewound is logged before those taken again
            found.step, found.tokens = row.get("step", found.step), row.get("tokens", found.tokens)
            found.solved = row.get("val_solved", found.solved)
            if is_step(row):
                found.steps.append(row["step"])
                found.training.append(training_loss(row))
            if "val_loss" in row:
                found.validation[row["step"]] = row["val_loss"]
        return found

    @property
    def mean(self) -> float | None:
        """The training loss as the paper gives it."""
        last = self.training[-LAST_STEPS:]
        return sum(last) / len(last) if last else None

    @property
    def last(self) -> float | None:
        """The last validation loss."""
        return next(reversed(self.validation.values()), None)
