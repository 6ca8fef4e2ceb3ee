"""Which stream holds which digits and cells: a linear probe of every stream, next to a null.

From the state of one stream at an unknown cell, the right value of that cell is predicted by least squares,
one regression per value (with a little ridge). The boards are split into eight parts; probes are fitted on
seven and tested on the eighth:

    held       R² on unseen boards after every segment: 1 if the stream holds the value, 0 if it knows no more
               than how often each value occurs
    shuffled   the same with the answers permuted among the cells of a board: what a probe of this size finds
               where there is nothing. May be slightly below 0
    digit      after the last segment, by value
    cell       after the last segment, by position on the board, where the probe of all cells is tested

A stream may hold a value that is not used; ablation tests that. Errors are over the eight parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.bootstrap import error_of_known, mean_of_known
from srmlab.analysis.capture import Accumulator, Batches, Mean, Placed, capture
from srmlab.analysis.cells import puzzles_of, reads_puzzles, segment_of
from srmlab.analysis.registry import Analysis, register
from srmlab.analysis.result import Array, Evidence, Measured, Result, derived
from srmlab.analysis.states import PointReader, stream_major
from srmlab.models import LanguageModel

PARTS = 8
MOST_PLACES = 144  # cells of a board, up to which they are probed one by one
RIDGE = 1e-3  # of the mean square of a feature


@dataclass(frozen=True, kw_only=True, eq=False)
class CellProbe(Result):
    """How well each stream tells a cell's value; made by `cell_probe`."""

    kind: ClassVar[str] = "cell_probe"

    streams: tuple[str, ...]
    held: Annotated[Array, Measured("segment stream", "R² on unseen boards")]
    shuffled: Annotated[Array, Measured("segment stream", "R² on unseen boards")]
    digit: Annotated[Array, Measured("stream value", "R² on unseen boards; NaN of a value that never occurs")]
    cell: Annotated[
        Array, Measured("stream place", "R² on unseen boards; NaN of a place that is never empty")
    ]

    @derived("", "R² on unseen boards")
    def best(self) -> float:
        """Of the stream that holds most after the last segment."""
        return float(self.held[-1].max())

    @derived("", "R² on unseen boards")
    def best_shuffled(self) -> float:
        return float(self.shuffled[-1].max())

    def headline(self) -> str:
        order = np.argsort(-self.held[-1])
        held = ", ".join(f"{self.streams[s]} {self.held[-1, s]:.2f}" for s in order[:3])
        return f"the value of a cell is read with R² {held} … (shuffled {self.best_shuffled:+.2f})"

    def summary(self) -> str:
        lines = [f"Values of cells in single streams, by a linear probe ({self.evidence})"]
        for s, name in enumerate(self.streams):
            over = ", ".join(f"{value:.2f}" for value in self.held[:, s])
            last, null = self.text("held", ".3f", (-1, s)), self.text("shuffled", "+.3f", (-1, s))
            lines.append(f"  {name}: R² {over} by segment; after the last {last}, shuffled {null}")
        return "\n".join(lines)


@dataclass
class Sums:
    """What least squares needs of features x (with a constant 1) and one-hot values y, by part."""

    xx: Tensor  # [PARTS, …, D, D]
    xy: Tensor  # [PARTS, …, D, V]
    yy: Tensor  # [PARTS, …, V]: how often each value occurs

    @classmethod
    def empty(cls, *shape: int, features: int, values: int) -> Sums:
        def zeros(*more: int) -> Tensor:
            return torch.zeros(PARTS, *shape, *more, dtype=torch.float64)

        return cls(zeros(features, features), zeros(features, values), zeros(values))

    def without(self, part: int) -> tuple[Tensor, Tensor]:
        """The weights […, D, V] fitted on the other parts, and the share of each value there [V]."""
        others = torch.arange(PARTS) != part
        xx, xy = self.xx[others].sum(0), self.xy[others].sum(0)
        scale = xx.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
        ridge = RIDGE * scale * torch.eye(xx.shape[-1], dtype=xx.dtype)
        share = self.yy[others].sum(0) / xx[..., -1, -1, None].clamp(min=1)
        return torch.linalg.solve(xx + ridge, xy), share


def unexplained(weights: Tensor, xx: Tensor, xy: Tensor, yy: Tensor) -> Tensor:
    """[…, V] Σ (y − xW)², from the sums alone."""
    fitted = (weights * (xx @ weights - 2 * xy)).sum(-2)
    return yy + fitted


class ProbeSums(Accumulator):
    def __init__(self, model: LanguageModel, segment_depth: int) -> None:
        points = model.points[: model.depth][segment_depth - 1 :: segment_depth]
        self.model, self.reader = model, PointReader(model, points)
        self.sites = self.reader.sites
        self.settings = {"segment_depth": segment_depth}
        self.means: dict[str, Mean] = {}
        self.width = (len(model.streams), model.stream_dim + 1)
        self.values = model.config.vocab_size
        K, (S, D) = len(points), self.width
        self.all = Sums.empty(K, S, features=D, values=self.values)
        self.null = torch.zeros_like(self.all.xy)
        places = model.config.context - model.config.puzzle_positions
        places = places if places <= MOST_PLACES else 0  # else it would take too much memory
        self.cells = Sums.empty(S, places, features=D, values=self.values)  # after the last segment

    def begin(self, batch: Placed) -> None:
        self.batch = batch
        self.part = (batch.first + torch.arange(len(batch.tokens))) % PARTS  # [B]
        counted = batch.counted.cpu()
        self.right = torch.nn.functional.one_hot(batch.targets.cpu().clamp(min=0), self.values).double()
        self.right *= counted[..., None]
        order = torch.Generator().manual_seed(batch.first)
        exchanged = self.right.clone()
        for row, there in zip(exchanged, counted, strict=True):
            cells = there.nonzero()[:, 0]
            row[cells] = row[cells[torch.randperm(len(cells), generator=order)]]
        self.exchanged, self.counted = exchanged, counted

    def see(self, name: str, value: Tensor) -> None:
        if (found := self.reader.see(name, value)) is None:
            return
        k, z = found[0], stream_major(found[1]).cpu().double()  # [S, B, T, D]
        x = torch.cat((z, torch.ones_like(z[..., :1])), -1) * self.counted[..., None]
        xx = x.mT @ x  # [S, B, D, D]
        self.all.xx[:, k].index_add_(0, self.part, xx.transpose(0, 1))
        self.all.xy[:, k].index_add_(0, self.part, (x.mT @ self.right).transpose(0, 1))
        self.null[:, k].index_add_(0, self.part, (x.mT @ self.exchanged).transpose(0, 1))
        self.all.yy[:, k].index_add_(0, self.part, self.right.sum(1)[:, None].expand(-1, len(z), -1))
        if k == len(self.reader) - 1 and self.cells.yy.shape[2]:
            T = x.shape[2]
            each = x.permute(1, 0, 2, 3)  # [B, S, T, D]
            right = self.right[:, None]  # [B, 1, T, V]
            for row, part in enumerate(self.part.tolist()):
                self.cells.xx[part, :, :T] += each[row, ..., :, None] * each[row, ..., None, :]
                self.cells.xy[part, :, :T] += each[row, ..., :, None] * right[row, ..., None, :]
                self.cells.yy[part, :, :T] += right[row].expand(len(z), -1, -1)

    def state(self) -> dict[str, Tensor]:
        parts = {"null": self.null, **{f"all.{name}": value for name, value in vars(self.all).items()}}
        return parts | {f"cells.{name}": value for name, value in vars(self.cells).items()}

    def result(self, evidence: Evidence) -> CellProbe:
        found: dict[str, list[Tensor]] = {"held": [], "shuffled": [], "digit": [], "cell": []}
        null = Sums(self.all.xx, self.null, self.all.yy)
        for part in range(PARTS):
            weights, share = self.all.without(part)
            held, total = parted(self.all, part, weights, share)
            found["held"].append(1 - held.sum(-1) / total.sum(-1))
            found["digit"].append(1 - held[-1] / total[-1])
            exchanged, _ = null.without(part)
            lost, total = parted(null, part, exchanged, share)
            found["shuffled"].append(1 - lost.sum(-1) / total.sum(-1))
            place, total = parted(self.cells, part, weights[-1][:, None], share[-1][:, None])
            found["cell"].append(1 - place.sum(-1) / total.sum(-1))
        arrays, errors = {}, {}
        for name, values in found.items():
            each = torch.stack(values).numpy()
            arrays[name], errors[name] = mean_of_known(each), error_of_known(each)
        for name, of in (("best", "held"), ("best_shuffled", "shuffled")):
            errors[name] = np.asarray(errors[of][-1, arrays[of][-1].argmax()])
        side = math.ceil(math.sqrt(1 + max(np.flatnonzero(np.isfinite(arrays["cell"]).any(0)), default=0)))
        for kept in (arrays, errors):
            kept["cell"] = kept["cell"][:, : side * side]  # the board; the model may read larger ones
        return CellProbe(evidence=evidence, streams=tuple(self.model.streams), errors=errors, **arrays)


def parted(sums: Sums, part: int, weights: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """[…, V] What is left unexplained of a part, and what was to be explained, beyond the share of values."""
    xx, xy, yy = sums.xx[part], sums.xy[part], sums.yy[part]
    count = xx[..., -1, -1, None]
    return unexplained(weights, xx, xy, yy), yy * (1 - 2 * share) + count * share.square()


def cell_probe(model: LanguageModel, batches: Batches, segment_depth: int | None = None) -> CellProbe:
    """How well the value of a cell can be read off each stream, after every segment."""
    model = puzzles_of(model, "a probe of cells")
    return capture(model, batches, ProbeSums(model, segment_depth or model.depth))[0]


register(Analysis(CellProbe, lambda request: ProbeSums(request.model, segment_of(request)), reads_puzzles))
