"""How a run ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from srmlab.storage.metrics_file import Losses
from srmlab.storage.run_directory import RunDirectory
from srmlab.training.distributed import World


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
        found = Losses.read(run.metrics) if world.main else Losses()
        return cls(run.path, step, found.mean, found.last, found.solved, signal)
