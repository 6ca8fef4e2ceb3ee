"""Depth: the same weights run for fewer or more layers than they were trained for.

SRM's layers share their weights, so a model can stop early or run on. One pass at the largest depth gives all
smaller ones: the state after layer t goes through the post-steps and the output function as if it were the
last. Reported per depth:

    loss         nats per token
    agreement    the share of tokens whose most likely next token is that of the trained depth
    settled      the share of tokens whose prediction settles here: the earliest depth from which, up to the
                 trained one, the most likely next token stays the same

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> found = srmlab.analysis.depth(model, [torch.arange(64).view(2, 32)], max_depth=12)
    >>> found.depths.tolist(), found.trained
    ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], 8)

HRM is run for more or fewer high cycles; GPT-2, whose blocks differ, for fewer blocks only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.capture import Batches, Mean, Placed, capture
from srmlab.analysis.readout import chunks
from srmlab.analysis.registry import Analysis, register
from srmlab.analysis.result import Array, Coordinate, Measured, Result, derived, require
from srmlab.analysis.states import LevelReader, settling
from srmlab.errors import UserError
from srmlab.models import LanguageModel


@dataclass(frozen=True, kw_only=True, eq=False)
class Depth(Result):
    """The loss at other depths than the trained one; made by `depth`."""

    kind: ClassVar[str] = "depth"

    trained: int  # the depth the model was trained at
    unit: str  # what is counted: layers, high cycles or blocks
    depths: Annotated[Array, Coordinate("depth", "layers run")]
    loss: Annotated[Array, Measured("depth", "nats, mean over targets")]
    agreement: Annotated[Array, Measured("depth", "share of targets' positions")]
    settled: Annotated[Array, Measured("depth", "share of targets' positions; 0 beyond the trained depth")]

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.trained in self.depths, f"the trained depth {self.trained} must be among the depths")
        require(
            bool(abs(self.settled.sum() - 1) < 1e-6),
            "every prediction settles somewhere: `settled` adds up to 1",
        )

    @derived("", "layers run")
    def best(self) -> int:
        """The depth with the least loss."""
        return int(self.depths[self.loss.argmin()])

    @derived("", "layers run")
    def mean_settling(self) -> float:
        """The mean depth at which predictions settle."""
        return float(self.settled @ self.depths)

    def headline(self) -> str:
        at = {int(d): v for d, v in zip(self.depths, self.loss, strict=True)}
        return (
            f"loss {at[self.trained]:.3f} at {self.trained} {self.unit}, "
            f"lowest {self.loss.min():.3f} at {self.best}; "
            f"predictions settle at {self.mean_settling:.1f}"
        )

    def summary(self) -> str:
        lines = [f"Loss against depth ({self.evidence})"]
        for i, d in enumerate(self.depths):
            loss, same, here = (
                self.text(name, form, (i,))
                for name, form in (("loss", ".4f"), ("agreement", ".1%"), ("settled", ".1%"))
            )
            mark = " (trained)" if d == self.trained else ""
            lines.append(f"  {d:>3} {self.unit}: {loss} nats; agrees {same}, settles {here}{mark}")
        lines.append(
            f"  the loss is lowest at {self.text('best', 'd')} {self.unit}; "
            f"predictions settle at {self.text('mean_settling', '.2f')} on average"
        )
        return "\n".join(lines)


def at_depth(model: LanguageModel, depth: int, gradient_depth: int | None = None) -> LanguageModel:
    """A model of another depth on the same weights: nothing is copied, and nothing of `model` changes.

    `gradient_depth` is how many of an SRM's layers have a gradient, by default as many as `model`'s: for
    gradients with respect to early states, all of them, `at_depth(model, 8, gradient_depth=8)`.
    """
    return model.at_depth(depth, gradient_depth)


class DepthSums(LevelReader):
    makes = Depth
    needed = "loss"

    def __init__(self, model: LanguageModel, trained: int) -> None:
        super().__init__(model)
        self.trained = trained
        depths = np.arange(1, model.depth + 1)
        self.known = {"trained": trained, "unit": model.level_name, "depths": depths}
        self.settings = {"trained": trained}
        names = ("loss", "agreement", "settled")
        self.means = {name: Mean(len(self.levels), over="targets") for name in names}

    def begin(self, batch: Placed) -> None:
        super().begin(batch)
        self.losses: list[Tensor] = []

    def read(self, state: Tensor) -> None:
        embedding = self.model.read_out(state).flatten(0, 1)
        targets = self.batch.targets.flatten()
        loss = embedding.new_empty(len(targets), dtype=torch.float32)
        prediction = torch.empty_like(targets)
        U = self.model.unembedding
        for rows in chunks(len(targets), U.shape[0]):
            log_p = (embedding[rows] @ U.T).float().log_softmax(-1)
            loss[rows] = -log_p.gather(-1, targets[rows].clamp(min=0)[:, None]).squeeze(-1)
            prediction[rows] = log_p.argmax(-1)
        self.losses.append(loss * self.batch.counted.flatten())
        self.values.append(prediction)

    def end(self, batch: Placed, embedding: Tensor) -> None:  # noqa: ARG002
        same = torch.stack(self.values) == self.values[self.trained - 1]  # [P, B·T]
        settled = torch.zeros_like(same, dtype=torch.float32)
        settled[: self.trained] = settling(same[: self.trained])
        rows = {"loss": torch.stack(self.losses), "agreement": same.float(), "settled": settled}
        for name, values in rows.items():
            self.means[name].add(batch, (values.view(-1, *batch.tokens.shape) * batch.counted).sum(-1).T)


def depth(model: LanguageModel, batches: Batches, max_depth: int | None = None) -> Depth:
    """Loss at every depth from 1 to `max_depth` (by default twice the trained one), and where predictions
    settle."""
    deep = deepened(model, max_depth)
    return capture(deep, batches, DepthSums(deep, model.depth))[0]


def deepened(model: LanguageModel, max_depth: int | None) -> LanguageModel:
    """The model that runs for `max_depth` layers, by default twice the trained ones (GPT-2: no more)."""
    trained = model.depth
    deepest = max_depth if max_depth is not None else (2 * trained if model.recurrent else trained)
    if deepest < trained:
        raise UserError(
            f"max_depth = {deepest}: must be at least the trained depth, {trained} (smaller are included)"
        )
    return model if deepest == trained else at_depth(model, deepest)


register(Analysis(Depth, lambda request: DepthSums(request.model, request.trained.depth), needs="depth"))
