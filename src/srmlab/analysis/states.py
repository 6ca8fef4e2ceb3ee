"""The mean state of every stream after every layer, used by mean ablation and the mean-corrected logit lens.

Points are the places where a state can be read: after every layer, and after every post-step. The last one is
what the output function reads. `PointReader` collects the states at points during a pass; `Finished` reads
the state after every layer as if that layer were the last, which takes it through the post-steps.

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> found = srmlab.analysis.state_means(model, [torch.arange(64).view(2, 32)])
    >>> found.mean.shape, found.points[-1]                     # point, stream, dim
    ((8, 8, 32), 'layers.7.out')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.capture import Accumulator, Batches, Mean, Placed, capture
from srmlab.analysis.registry import Analysis, Request, has_streams, register, streams_of
from srmlab.analysis.result import Array, Measured, Result, derived, require_named
from srmlab.errors import UserError
from srmlab.models import LanguageModel, Point
from srmlab.storage.identity import model_mark


def stream_major(value: Tensor) -> Tensor:
    """A site's value [B, T, S, D] as the model holds it, [S, B, T, D]: each stream's tokens side by side, and
    quick to read."""
    return value.permute(2, 0, 1, 3).float()


def points_of(model: LanguageModel) -> tuple[str, ...]:
    """The sites of all streams' states, in order of depth."""
    return tuple(point.sites[0] for point in model.points)


class PointReader:
    """The states at some points in depth, whether a point is one site of all streams or a site for each."""

    def __init__(self, model: LanguageModel, points: Sequence[Point] | None = None) -> None:
        self.model, self.points = model, model.points if points is None else tuple(points)
        self.names = tuple(point.name for point in self.points)
        self.sites = [site for point in self.points for site in point.sites]
        self.ends = {point.sites[-1]: place for place, point in enumerate(self.points)}
        self.values: dict[str, Tensor] = {}

    def see(self, name: str, value: Tensor, documents: Tensor | None = None) -> tuple[int, Tensor] | None:
        """At the last of a point's sites its place among the points, and the state [B, T, S, D] there."""
        self.values[name] = value
        if name not in self.ends:
            return None
        place = self.ends[name]
        state = self.state(self.points[place], documents)
        self.values.clear()
        return place, state

    def state(self, point: Point, documents: Tensor | None) -> Tensor:  # noqa: ARG002
        return self.model.state_at(point, self.values)

    def __len__(self) -> int:
        return len(self.points)


class Finished(PointReader):
    """The states after every layer, or every `every`-th, each taken through the post-steps as if its layer
    were the last; they attend within documents, if there are any.

    A step keeps to its stream, so to keep one stream and run the post-steps is to run them and keep it.
    """

    def __init__(self, model: LanguageModel, every: int = 1) -> None:
        super().__init__(model, model.points[: model.depth][every - 1 :: every])
        self.names = tuple(f"{name}+post" for name in self.names)
        self.sites = [site for point in self.points for site in (*point.needs, *point.sites)]

    def state(self, point: Point, documents: Tensor | None) -> Tensor:
        return self.model.finish(point, self.values, documents)


class LevelReader(Accumulator):
    """Reads the state after every level as if it were the last."""

    def __init__(self, model: LanguageModel, every: int = 1) -> None:
        self.model, self.levels = model, Finished(model, every)
        self.sites = self.levels.sites

    def begin(self, batch: Placed) -> None:
        self.batch = batch
        self.values: list[Tensor] = []  # [level] the likeliest at every position, [B, T]

    def see(self, name: str, value: Tensor) -> None:
        if found := self.levels.see(name, value, self.batch.documents):
            self.read(found[1])

    def read(self, state: Tensor) -> None:
        """A state [B, T, S, D]."""
        logits = self.model.read_out(state) @ self.model.unembedding.T
        self.values.append(logits.argmax(-1))


def settling(same: Tensor) -> Tensor:
    """1 where the truth of [level, …] begins that lasts to the last level, else 0."""
    until = same.flip(0).cumprod(0).flip(0)  # 1 from there on
    return until - torch.cat((torch.zeros_like(until[:1]), until[:-1]))


@dataclass(frozen=True, kw_only=True, eq=False)
class StateMeans(Result):
    """The mean state of every stream at every point; made by `state_means`."""

    kind: ClassVar[str] = "states"
    drawn: ClassVar[bool] = False

    points: tuple[str, ...]
    mean: Annotated[Array, Measured("point stream dim", "mean state over tokens")]
    model: str = ""  # the mark of the model they are of; "" if unknown

    def __post_init__(self) -> None:
        super().__post_init__()
        require_named(self.points, self.mean)

    def check(self, model: LanguageModel, points: Sequence[str]) -> None:
        """Refuse the means of another model, or those that lack a point that is needed."""
        fits = self.mean.shape[1:] == (len(model.streams), model.stream_dim)
        fits = fits and set(points) <= set(self.points)
        if not fits or (self.model and self.model != model_mark(model)):
            raise UserError(
                "these state means are of another model, or of states before the post-steps and not after; "
                "measure them on this one with state_means(…, through_post=…)"
            )

    def at(self, point: str, device: torch.device | str = "cpu") -> Tensor:
        """[stream, dim] The mean state at one point."""
        return torch.from_numpy(self.mean[self.points.index(point)]).to(device, torch.float32)

    def headline(self) -> str:
        return "mean length " + " ".join(f"{v:.1f}" for v in self.mean_length)

    @derived("point stream", "length")
    def length(self) -> Array:
        """[point stream] The length of the mean state. (States have length √D, so √D here would mean: all
        tokens alike.)"""
        return np.linalg.norm(self.mean, axis=-1)

    @derived("point", "length")
    def mean_length(self) -> Array:
        """[point] The mean over streams of their mean states' lengths."""
        return self.length.mean(1)

    def summary(self) -> str:
        full = self.mean.shape[-1] ** 0.5
        lines = [f"Mean states ({self.evidence}); a norm of √D = {full:.1f} would mean that all tokens agree"]
        lines += [
            f"  {point}: mean norm {self.text('mean_length', '.2f', (p,))}, "
            f"by stream {' '.join(f'{v:.1f}' for v in self.length[p])}"
            for p, point in enumerate(self.points)
        ]
        return "\n".join(lines)


class StateSums(Accumulator):
    makes = StateMeans

    def __init__(
        self, model: LanguageModel, points: Sequence[str] | None = None, through_post: bool = False
    ) -> None:
        """Of some sites; by default of all points in depth."""
        self.finished = Finished(model) if through_post else None
        self.points = points_of(model) if points is None else tuple(points)
        self.sites = self.points
        if self.finished is not None:
            self.points, self.sites = self.finished.names, self.finished.sites
        self.settings = {"points": self.points}
        self.means = {"mean": Mean(len(self.points), len(model.streams), model.stream_dim)}
        self.known = {"points": self.points, "model": model_mark(model)}

    def begin(self, batch: Placed) -> None:
        super().begin(batch)
        self.documents = batch.documents

    def see(self, name: str, value: Tensor) -> None:
        if self.finished is None:
            found = self.points.index(name), value
        else:
            found = self.finished.see(name, value, self.documents)
        if found is not None:
            place, state = found
            self.sums["mean"][:, place] = stream_major(state).sum(2).transpose(0, 1)  # [B, S, D]


def means_in(request: Request) -> StateMeans:
    """The mean states among the results of earlier passes."""
    means = request.results["states"]
    assert isinstance(means, StateMeans)
    return means


def state_means(model: LanguageModel, batches: Batches, through_post: bool = False) -> StateMeans:
    """The mean over tokens of every stream's state after every layer and post-step.

    `through_post`: of the states after every layer, each taken through the post-steps (see `Finished`).
    """
    sums = StateSums(streams_of(model, "state_means"), through_post=through_post)
    return capture(model, batches, sums)[0]


register(Analysis(StateMeans, lambda request: StateSums(request.model), has_streams))
