"""Cell by cell: when does each cell of a puzzle become right, and does it flip back?

A puzzle model is unrolled over its segments (`srmlab.training.run_puzzles`). The state after every layer is
read out as if it were the last, and the most likely value of every unknown cell is compared with the answer.
Over segments × layers:

    right     the share of those cells that are right
    solved    the share of boards on which all of them are; `srmlab solve` counts given cells, too
    settles   the share of cells that are right from here to the end, and were not just before
    lost      the share of cells that were right after the layer before, and no longer are

    >>> import srmlab, srmlab.analysis, torch
    >>> config = srmlab.preset("srm-nano", vocab_size=6, context=16, causal=False)
    >>> found = srmlab.analysis.cells(srmlab.build(config), [torch.randint(1, 6, (4, 16))], segment_depth=4)
    >>> found.right.shape, found.segments                       # two segments of four layers
    ((8,), 2)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.capture import Batches, Mean, Placed, capture
from srmlab.analysis.registry import Analysis, Request, register
from srmlab.analysis.result import Array, Measured, Result, derived, require
from srmlab.analysis.states import LevelReader, settling
from srmlab.errors import UserError
from srmlab.models import LanguageModel


@dataclass(frozen=True, kw_only=True, eq=False)
class Cells(Result):
    """When the cells of a puzzle become right; made by `cells`."""

    kind: ClassVar[str] = "cells"

    segment_depth: int  # points (layers or cycles) of a segment
    right: Annotated[Array, Measured("point", "share of cells to be filled")]
    solved: Annotated[Array, Measured("point", "share of boards")]
    settles: Annotated[Array, Measured("point", "share of cells to be filled")]
    lost: Annotated[Array, Measured("point", "share of cells to be filled")]
    flipped: Annotated[Array, Measured("", "share of cells that were right somewhere, lost at least once")]

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool((self.settles.sum() <= 1 + 1e-9).all()), "a cell settles once")

    @property
    def segments(self) -> int:
        return len(self.right) // self.segment_depth

    @derived("", "share of cells to be filled")
    def right_at_last(self) -> float:
        return float(self.right[-1])

    @derived("", "share of boards")
    def solved_at_last(self) -> float:
        return float(self.solved[-1])

    @derived("", "segments")
    def mean_settling(self) -> float:
        """Where cells settle, of those that end right: in segments, so that 1 is the end of the first."""
        where = (np.arange(len(self.settles)) + 1) / self.segment_depth
        total = self.settles.sum()
        return float(self.settles @ where / total) if total > 0 else float("nan")

    def headline(self) -> str:
        return (
            f"{self.right_at_last:.1%} of the unknown cells right, "
            f"all of them on {self.solved_at_last:.1%} of the boards, after {self.segments} segments; "
            f"cells settle at {self.mean_settling:.2f}, {float(self.flipped):.1%} flip back"
        )

    def summary(self) -> str:
        lines = [f"Unknown cells of puzzles ({self.evidence})"]
        for k in range(self.segments):
            at = ((k + 1) * self.segment_depth - 1,)
            part = slice(k * self.segment_depth, (k + 1) * self.segment_depth)
            right, solved = self.text("right", ".1%", at), self.text("solved", ".1%", at)
            flow = f"{self.settles[part].sum():.1%} settle, {self.lost[part].sum():.1%} are lost"
            lines.append(f"  segment {k + 1}: {right} right, all on {solved} of the boards; {flow}")
        settling, flipped = self.text("mean_settling", ".2f"), self.text("flipped", ".1%")
        lines.append(f"  cells that end right settle after {settling} segments")
        lines.append(f"  of the cells that were right somewhere, {flipped} are lost at least once")
        return "\n".join(lines)


class CellSums(LevelReader):
    makes = Cells

    def __init__(self, model: LanguageModel, segment_depth: int) -> None:
        super().__init__(model)
        self.known = self.settings = {"segment_depth": segment_depth}
        P = len(self.levels)
        self.means = {name: Mean(P, over="targets") for name in ("right", "settles", "lost")}
        self.means |= {"solved": Mean(P), "flipped": Mean()}

    def end(self, batch: Placed, embedding: Tensor) -> None:  # noqa: ARG002
        counted = batch.counted
        right = torch.stack(self.values) == batch.targets  # [P, B, T]
        lost = torch.zeros_like(right)
        lost[1:] = right[:-1] & ~right[1:]
        cells = {"right": right, "settles": settling(right), "lost": lost}
        for name, values in cells.items():
            self.means[name].add(batch, (values * counted).sum(-1).T)
        self.means["solved"].add(batch, (right | ~counted).all(-1).T, torch.ones(len(counted)))
        somewhere = right.any(0) & counted
        self.means["flipped"].add(batch, (lost.any(0) & somewhere).sum(1), somewhere.sum(1))


def reads_puzzles(model: LanguageModel) -> bool:
    """Whether it is a puzzle model."""
    return not model.config.causal


def puzzles_of(model: LanguageModel, analysis: str) -> LanguageModel:
    if not reads_puzzles(model):
        raise UserError(f"{analysis} needs a puzzle model; this one reads text")
    return model


def segment_of(request: Request) -> int:
    """The levels of a segment: as trained, or the whole pass."""
    return request.segment_depth or request.trained.depth


def cells(model: LanguageModel, batches: Batches, segment_depth: int | None = None) -> Cells:
    """When cells become right and flip back, over the levels of a pass, `segment_depth` of them a segment."""
    model = puzzles_of(model, "cells")
    return capture(model, batches, CellSums(model, segment_depth or model.depth))[0]


register(Analysis(Cells, lambda request: CellSums(request.model, segment_of(request)), reads_puzzles))
