"""How a run ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from srmlab.storage.metrics_file import iter_metrics
from srmlab.storage.run_directory import RunDirectory
from srmlab.training.distributed import World

TRAINING_LOSS_STEPS = 200  # the paper's "training loss" is the mean of the last so many


@dataclass(frozen=True)
class TrainResult:
    run: Path
    step: int
    loss: float | None  # mean of the last 200 steps, nats per token
    val_loss: float | None
    val_solved: float | None  # of puzzles, the share of the test puzzles
    signal: int  # what stopped it before the end, or 0

    @property
    def exit_code(self) -> int:
        return 128 + self.signal if self.signal else 0

    @classmethod
    def read(cls, run: RunDirectory, step: int, signal: int, world: World) -> TrainResult:
        """After `step`; the losses, which only the main process reads, are those of the log."""
        losses: list[float] = []
        val_loss = val_solved = None
        for row in iter_metrics(run.metrics) if world.main else ():
            val_loss = row.get("val_loss", val_loss)
            val_solved = row.get("val_solved", val_solved)
            if "loss" in row and "event" not in row:
                losses.append(row["loss"])
        return cls(run.path, step, mean_of_last(losses), val_loss, val_solved, signal)


def mean_of_last(losses: Sequence[float]) -> float | None:
    """The training loss of a run, as the paper gives it."""
    last = losses[-TRAINING_LOSS_STEPS:]
    return sum(last) / len(last) if last else None
