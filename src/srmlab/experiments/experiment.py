"""What an experiment is: a question, a grid of cells, and a verdict on what came out.

A cell is one model trained in one way; it is run with several seeds. A tuned cell is trained at the best rate
of a grid of its own (rates.py). Two experiments that share a cell share
its runs: a run's folder is named by what is trained, not by who asked for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from srmlab.models import ModelConfig, config_from_dict
from srmlab.training.config import TrainConfig, identity
from srmlab.training.depth import TrainingDepth

if TYPE_CHECKING:
    from srmlab.experiments.evidence import Claim
    from srmlab.experiments.results import SweepResult

Scale = Literal["mini", "small", "paper"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One model with one way of training it, to be run with several seeds."""

    name: str
    model: ModelConfig
    training: TrainConfig
    paper: float | None = None  # the training loss the paper prints for it
    x: float | None = None  # its place on the figure's axis
    series: str = ""  # its line or colour in the figure
    tuned: bool = False  # its rate is where the search begins, rather than the one it is trained at

    @classmethod
    def of(cls, name: str, model: dict[str, Any], training: dict[str, Any]) -> Cell:
        """What was saved of one."""
        return cls(name=name, model=config_from_dict(model), training=TrainConfig.from_dict(training))

    def seeded(self, seed: int) -> Cell:
        """The same cell with other initial weights, other random orders and another order of the data."""
        return replace(self, model=self.model.seeded(seed), training=self.training.replace(seed=seed))

    def at(self, rate: float) -> Cell:
        """The cell at one rate of its grid."""
        return replace(self, training=self.training.replace(lr=rate), tuned=False)

    @property
    def flops_per_token(self) -> int:
        """Of training, mean over the depths that it is done at."""
        return round(TrainingDepth(self.training, self.model).mean_flops())

    @property
    def tokens(self) -> int:
        """Seen by each run."""
        return self.training.steps * self.training.tokens_per_step(self.model.context)

    @property
    def flops(self) -> int:
        """Of a whole run."""
        return self.tokens * self.flops_per_token

    @property
    def folder(self) -> str:
        """A name for what is trained: the same for the same thing."""
        unseeded = self.seeded(0)
        training = identity(unseeded.training)
        if self.training.eval_windows != "first":
            training["eval_windows"] = self.training.eval_windows  # another validation loss of the same run
        content = json.dumps([unseeded.model.to_dict(), training], sort_keys=True)
        return f"{self.model.architecture}-{hashlib.sha256(content.encode()).hexdigest()[:10]}"

    def run_folder(self, out: Path, seed: int) -> Path:
        return out / "runs" / self.folder / f"seed-{seed}"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A question, the cells that answer it, and how their losses are judged."""

    name: str
    question: str
    cells: Callable[[Scale], list[Cell]]
    verdict: Callable[[SweepResult], list[Claim | str]]
    claim: str = ""  # the paper's, if it has one
    axis: str = ""  # what x is; without it the figure ranks the cells
    measures: tuple[str, ...] = ()  # what is measured of a run after training: measures.py
    compares: bool = True  # the cells with each other, by their losses: then the rules of evidence apply
    puzzles: Mapping[Scale, str] = field(default_factory=dict)  # the kind of puzzle it is on, if not text
    statistics: Callable[[SweepResult], list[list[str]]] | None = None  # a second table, its heads first

    def plan(self, scale: Scale, *, vocab_size: int | None = None, steps: int | None = None) -> list[Cell]:
        """The cells at a scale; for another vocabulary, or for a rehearsal in which the shortest has so many
        steps.
        """
        cells = self.cells(scale)
        if vocab_size is not None:
            cells = [replace(cell, model=cell.model.replace(vocab_size=vocab_size)) for cell in cells]
        if steps is not None:
            least = min(cell.training.steps for cell in cells)
            cells = [
                replace(cell, training=with_steps(cell.training, round(cell.training.steps * steps / least)))
                for cell in cells
            ]
        return cells


def with_steps(training: TrainConfig, steps: int) -> TrainConfig:
    """A training of so many steps, its warm-up as large a share of it."""
    warmup = round(training.warmup * steps / training.steps)
    return training.replace(
        steps=steps, warmup=warmup, eval_every=steps, checkpoint_every=min(training.checkpoint_every, steps)
    )
