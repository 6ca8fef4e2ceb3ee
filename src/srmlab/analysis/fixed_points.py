"""Fixed points: does a solved board stay solved, does the state settle, and where do wrong answers end up?

A puzzle model, unrolled over its segments, is run for twice as many segments as in training. K is the
trained number, and k counts segments:

    change      ‖z_k − z_{k−1}‖ / ‖z_{k−1}‖ of the whole state of a cell, mean over cells
    moved       the share of cells to be filled whose value differs from that one segment earlier
    solved      the share of boards solved
    stays       of the boards solved after K, the share solved after k
    recurrence  ‖z_2K − z_{2K−lag}‖ / ‖z_{2K−lag}‖: a state that repeats every p segments has a dip at lag p

Boards that are not solved after K end in one of four ways: `stuck`, a wrong answer that never changes again
(a wrong attractor); `cycling`, an answer that recurs after others; `escaping`, solved at some later point;
or none of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.capture import Accumulator, Batches, Mean, Placed, capture
from srmlab.analysis.cells import puzzles_of, reads_puzzles, segment_of
from srmlab.analysis.depth import deepened
from srmlab.analysis.registry import Analysis, register
from srmlab.analysis.result import Array, Coordinate, Measured, Result, derived
from srmlab.analysis.states import LevelReader
from srmlab.errors import UserError
from srmlab.models import LanguageModel
from srmlab.training.run_puzzles import goes_on

ENDS = ("stuck", "cycling", "escaping")


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedPoints(Result):
    """What becomes of boards and states in further segments; made by `fixed_points`."""

    kind: ClassVar[str] = "fixed_points"

    trained: int  # segments
    ends: Annotated[Array, Coordinate("segment", "segments run")]
    change: Annotated[Array, Measured("segment", "relative change of the state; 0 for the first")]
    moved: Annotated[Array, Measured("segment", "share of cells to be filled; 0 for the first")]
    solved: Annotated[Array, Measured("segment", "share of boards")]
    stays: Annotated[Array, Measured("segment", "share of the boards solved as trained")]
    recurrence: Annotated[Array, Measured("lag", "relative distance of states, lag 1 first")]
    stuck: Annotated[Array, Measured("", "share of the boards not solved as trained")]
    cycling: Annotated[Array, Measured("", "share of the boards not solved as trained")]
    escaping: Annotated[Array, Measured("", "share of the boards not solved as trained")]

    @derived("", "share of the boards solved as trained")
    def stays_to_the_end(self) -> float:
        return float(self.stays[-1])

    @derived("", "relative change of the state")
    def change_at_last(self) -> float:
        return float(self.change[-1])

    def headline(self) -> str:
        parts = []
        if self.some_solved:
            parts.append(
                f"{self.stays_to_the_end:.1%} of solved boards stay solved for twice as many segments"
            )
        if self.some_unsolved:
            parts.append(
                f"of the {'others' if self.some_solved else 'boards, none of them solved,'} "
                f"{float(self.stuck):.0%} are stuck, {float(self.cycling):.0%} cycle, "
                f"{float(self.escaping):.0%} escape"
            )
        return "; ".join([*parts, f"the state still changes by {self.change_at_last:.2g}"])

    @property
    def some_solved(self) -> bool:
        """Whether any board is solved as trained; shares of none are nan."""
        return not np.isnan(self.stays_to_the_end)

    @property
    def some_unsolved(self) -> bool:
        return not np.isnan(self.stuck)

    def summary(self) -> str:
        lines = [f"Fixed points ({self.evidence}); trained for {self.trained} segments"]
        for k, end in enumerate(self.ends):
            at = (k,)
            change, moved = self.text("change", ".3f", at), self.text("moved", ".1%", at)
            solved = self.text("solved", ".1%", at)
            stays = self.text("stays", ".1%", at) if self.some_solved else "none"
            moves = f"state changes by {change}, cells by {moved}"
            lines.append(f"  segment {end:>3}: {moves}; solved {solved}, of those solved as trained {stays}")
        nearest = int(self.recurrence.argmin()) + 1
        lines.append(
            f"  the last state is nearest to that {nearest} segments earlier: "
            f"{self.text('recurrence', '.3f', (nearest - 1,))}"
        )
        parts = ", ".join(f"{name} {self.text(name, '.1%')}" for name in ENDS)
        lines.append(f"  boards not solved as trained: {parts if self.some_unsolved else 'none'}")
        return "\n".join(lines)


class FixedPointSums(LevelReader):
    makes = FixedPoints

    def __init__(self, model: LanguageModel, segment_depth: int, trained: int) -> None:
        super().__init__(model, segment_depth)
        M, self.trained = len(self.levels), trained
        self.known = {"trained": trained, "ends": np.arange(1, M + 1)}
        self.settings = {"segment_depth": segment_depth, "trained": trained}
        self.lags = M - trained
        if self.lags < 1:
            raise UserError("fixed points are beyond the trained segments: give a greater max_depth")
        self.means = {name: Mean(M) for name in ("change", "moved", "solved", "stays")}
        self.means |= {"recurrence": Mean(self.lags)} | {name: Mean() for name in ENDS}

    def begin(self, batch: Placed) -> None:
        super().begin(batch)
        self.states: list[Tensor] = []

    def read(self, state: Tensor) -> None:
        super().read(state)
        self.states = [*self.states[-self.lags :], state.flatten(2)]  # [B, T, S·D]
        self.changes = [] if len(self.values) == 1 else self.changes
        now, last = self.states[-1], self.states[max(0, len(self.states) - 2)]
        self.changes.append(relative(now, last))  # [B]

    def end(self, batch: Placed, embedding: Tensor) -> None:  # noqa: ARG002
        counted, ones = batch.counted, torch.ones(len(batch.tokens))
        values = torch.stack(self.values)  # [M, B, T]
        same = torch.ones_like(values[:, :, 0], dtype=torch.bool)  # [M, B] as one segment earlier
        differs = torch.zeros_like(values, dtype=torch.bool)
        differs[1:] = (values[1:] != values[:-1]) & counted
        same[1:] = ~differs[1:].any(-1)
        solved = ((values == batch.targets) | ~counted).all(-1)  # [M, B]
        kept = solved[self.trained - 1]
        self.means["change"].add(batch, torch.stack(self.changes, 1), ones)
        self.means["moved"].add(batch, differs.sum(-1).T, counted.sum(1))
        self.means["solved"].add(batch, solved.T, ones)
        self.means["stays"].add(batch, (solved & kept).T, kept.long())
        far = [relative(self.states[-1], self.states[-1 - lag]) for lag in range(1, self.lags + 1)]
        self.means["recurrence"].add(batch, torch.stack(far, 1), ones)
        after = values[self.trained - 1 :]
        rests = same[self.trained :].all(0)
        escapes = solved[self.trained :].any(0)
        ends = {"stuck": rests, "escaping": escapes, "cycling": returns(after, counted) & ~rests & ~escapes}
        for name, found in ends.items():
            self.means[name].add(batch, found & ~kept, (~kept).long())


def relative(state: Tensor, other: Tensor) -> Tensor:
    """[B] ‖state − other‖ / ‖other‖ of [B, T, S·D], mean over cells."""
    return ((state - other).norm(dim=-1) / other.norm(dim=-1).clamp_min(1e-9)).mean(1)


def returns(values: Tensor, counted: Tensor) -> Tensor:
    """[B] Whether the last answer of [M, B, T] was there before, and another in between."""
    as_last = ((values == values[-1]) | ~counted).all(-1)  # [M, B]
    left = (~as_last).flip(0).cumsum(0).flip(0) > 0  # another answer is still to come
    return (as_last & left).any(0)


def goes_on_for_more_segments(model: LanguageModel) -> bool:
    """Whether it is a puzzle model that can be run for more segments than trained in a single pass."""
    if not reads_puzzles(model):
        return False
    with model.evaluating():
        return goes_on(model)


def fixed_points(model: LanguageModel, batches: Batches, segment_depth: int) -> FixedPoints:
    """What becomes of boards and states beyond the segments the model was trained for."""
    if not goes_on_for_more_segments(puzzles_of(model, "fixed points")):
        raise UserError("fixed points need a model whose further segments repeat the same levels")
    deep = deepened(model, None)
    return capture(deep, batches, FixedPointSums(deep, segment_depth, model.depth // segment_depth))[0]


def _accumulator(request) -> Accumulator:
    n = segment_of(request)
    return FixedPointSums(request.model, n, request.trained.depth // n)


register(Analysis(FixedPoints, _accumulator, goes_on_for_more_segments, needs="depth"))
