"""How good a dictionary is: what it explains of the states, and what the model loses by it.

    explained    1 − |x − x̂|² / |x − mean|²: the share of a stream's variance that its dictionary explains
    active       how many features are in use for a state
    alive        the share of features that fire at all on this text
    recovered    (loss with the stream at its mean − loss with x̂ in place of x) / (loss with the stream at
                 its mean − loss): 1 if the model does as well on the reconstruction as on the state itself,
                 0 if the reconstruction is worth no more than the mean

Replacement is at all the points the dictionary was learned from, so with `layers="every"` the model runs on
reconstructions from the first layer on. Every number has a standard error over sequences, as in the analyses.

    >>> import srmlab, srmlab.dictionaries, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> tokens = torch.arange(4 * 32).view(4, 32)
    >>> dictionary = srmlab.dictionaries.learn(model, lambda step: tokens + step, steps=3, features=64, k=4)
    >>> found = srmlab.dictionaries.quality(model, dictionary, [tokens])
    >>> found.explained.shape, found.recovered.shape             # point, stream; stream
    ((1, 8), (8,))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.capture import Accumulator, Batches, Mean, Placed, capture, need_targets, read_twice
from srmlab.analysis.readout import Readout, sequence_losses
from srmlab.analysis.registry import streams_of
from srmlab.analysis.replacement import Replace, replacing
from srmlab.analysis.result import Array, Derived, Evidence, Measured, Result, derived, require, require_named
from srmlab.analysis.states import StateMeans, StateSums, points_of, stream_major
from srmlab.dictionaries.dictionary import Dictionary
from srmlab.errors import UserError
from srmlab.models import LanguageModel
from srmlab.storage.identity import model_mark


class AllReplaced:
    """What is said of everything that a dictionary or a transcoder replaces."""

    active: Array
    loss: Array
    all_spliced: Array
    all_ablated: Array
    explained: ClassVar[Derived[Array]]

    @derived("", "share of variance")
    def mean_explained(self) -> float:
        """Over all that is replaced."""
        return float(self.explained.mean())

    @derived("", "features")
    def mean_active(self) -> float:
        """Features in use, over all that is replaced."""
        return float(self.active.mean())

    @derived("", "share of the loss")
    def all_recovered(self) -> float:
        """With all replaced at once."""
        return float(share(self.all_ablated - self.all_spliced, self.all_ablated - self.loss))


@dataclass(frozen=True, kw_only=True, eq=False)
class Quality(AllReplaced, Result):
    kind: ClassVar[str] = "dictionary"
    columns: ClassVar[tuple[str, ...]] = ("stream_explained", "recovered", "alive")

    points: tuple[str, ...]  # where states were read, and replaced
    k: int
    residual: Annotated[Array, Measured("point stream", "mean squared length of x − x̂")]
    power: Annotated[Array, Measured("point stream", "mean squared length of x")]
    state: Annotated[Array, Measured("point stream dim", "mean of x")]
    active: Annotated[Array, Measured("point stream", "features in use, mean over tokens")]
    firing: Annotated[Array, Measured("point stream feature", "share of tokens at which a feature is in use")]
    loss: Annotated[Array, Measured("", "nats, mean over targets")]
    spliced: Annotated[Array, Measured("stream", "nats, loss with the stream's reconstruction in its place")]
    ablated: Annotated[Array, Measured("stream", "nats, loss with the stream at its mean")]
    all_spliced: Annotated[Array, Measured("", "nats, loss with all streams' reconstructions")]
    all_ablated: Annotated[Array, Measured("", "nats, loss with all streams at their means")]
    activation: str = "topk"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_named(self.points, self.residual)
        few = self.activation != "topk" or bool((self.active <= self.k + 1e-9).all())
        require(few, f"at most k = {self.k} features are in use")

    @property
    def features(self) -> int:
        return self.firing.shape[-1]

    @derived("point stream", "share of variance")
    def explained(self) -> Array:
        variance = self.power - np.square(self.state).sum(-1)
        return 1 - self.residual / np.maximum(variance, 1e-12)

    @derived("stream", "share of variance")
    def stream_explained(self) -> Array:
        """Mean over points."""
        return self.explained.mean(0)

    @derived("stream", "features")
    def stream_active(self) -> Array:
        """Features in use, mean over points."""
        return self.active.mean(0)

    @property
    def dead(self) -> float:
        """The share of features that never fire."""
        return float(1 - self.alive.mean())

    @derived("stream", "share of the loss")
    def recovered(self) -> Array:
        return share(self.ablated - self.spliced, self.ablated - self.loss)

    @derived("stream", "share of features")
    def alive(self) -> Array:
        return (self.firing.max(0) > 0).mean(-1)

    @property
    def in_use(self) -> str:
        """How many features a state uses, in words."""
        return f"{self.k}" if self.activation == "topk" else f"{self.mean_active:.1f} ({self.activation})"

    def headline(self) -> str:
        explained, recovered = self.text("mean_explained", ".1%"), self.text("all_recovered", ".1%")
        found = f"{explained} of variance explained, {recovered} of the loss recovered"
        return f"{self.features} features a stream, {self.in_use} in use: {found}"

    def summary(self) -> str:
        most = f"at most {self.k}" if self.activation == "topk" else self.in_use
        lines = [
            f"Dictionaries of {self.features} features, {most} in use ({self.evidence})",
            f"  {self.text('mean_explained', '.1%')} of variance explained; with all streams replaced "
            f"the loss is {self.text('all_spliced')} instead of {self.text('loss')} nats, "
            f"{self.text('all_recovered', '.1%')} recovered",
        ]
        for s in range(len(self.recovered)):
            explained, active, alive, recovered = (
                self.text(name, form, (s,))
                for name, form in (
                    ("stream_explained", ".1%"),
                    ("stream_active", ".1f"),
                    ("alive", ".0%"),
                    ("recovered", ".1%"),
                )
            )
            lines.append(
                f"  S{s}: {explained} of variance, {active} in use, {alive} alive, {recovered} recovered"
            )
        return "\n".join(lines)


def share(part: Array, whole: Array) -> Array:
    """part / whole; NaN where there is nothing to recover."""
    return np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=np.asarray(whole) > 0)


class QualitySums(Accumulator):
    def __init__(self, model: LanguageModel, dictionary: Dictionary, means: StateMeans) -> None:
        config = dictionary.config
        self.model, self.dictionary = model, dictionary
        self.unembedding = model.unembedding.detach().float()
        self.sites = self.points = config.points
        self.readout = Readout(model) if self.points == points_of(model)[-1:] else None
        self.replacements = {point: means.at(point, model.device) for point in self.points}
        P, S, F = len(self.points), config.streams, config.features
        self.shapes = {
            "residual": (P, S),
            "power": (P, S),
            "state": (P, S, config.dim),
            "active": (P, S),
            "firing": (P, S, F),
        }
        losses = {"loss": (), "spliced": (S,), "ablated": (S,), "all_spliced": (), "all_ablated": ()}
        self.means = {name: Mean(*shape) for name, shape in (self.shapes | losses).items()}
        self.sums: dict[str, Tensor] = {}

    def begin(self, batch: Placed) -> None:
        B = len(batch.tokens)
        self.sums = {name: torch.zeros(B, *shape) for name, shape in self.shapes.items()}

    def see(self, name: str, value: Tensor) -> None:
        p = self.points.index(name)
        z = stream_major(value)  # [S, B, T, D]
        codes = self.dictionary.encode(value)
        rebuilt = stream_major(self.dictionary.decode(codes))
        fired = stream_major(codes > 0).sum(2)  # [S, B, F]
        of_sequence = {
            "residual": (z - rebuilt).square().sum((-1, -2)),
            "power": z.square().sum((-1, -2)),
            "state": z.sum(2),
            "active": fired.sum(-1),
            "firing": fired,
        }
        for field, sums in of_sequence.items():
            self.sums[field][:, p] = sums.transpose(0, 1).cpu()
        self.z = z

    def end(self, batch: Placed, embedding: Tensor) -> None:
        for name, sums in self.sums.items():
            self.means[name].add(batch, sums)
        everyone, counts = list(range(self.dictionary.config.streams)), batch.counted.sum(1)
        self.means["loss"].add(batch, self._loss(batch, embedding), counts)
        for name, replace in (("spliced", self._rebuild), ("ablated", self._level)):
            change = self._changed if self.readout is None else self._read_out
            of_all = change(batch, embedding, everyone, replace)
            of_each = torch.stack([change(batch, embedding, [s], replace) for s in everyone], dim=1)
            self.means[f"all_{name}"].add(batch, of_all, counts)
            self.means[name].add(batch, of_each, counts)

    def _loss(self, batch: Placed, embedding: Tensor) -> Tensor:
        return sequence_losses(embedding, self.unembedding, batch.targets)

    def _changed(self, batch: Placed, embedding: Tensor, streams: list[int], replace: Replace) -> Tensor:  # noqa: ARG002
        """[B] The losses with some streams replaced at every point: the model is run again."""
        with self.model.hooks([(self.points, replacing(streams, replace))]):
            return self._loss(batch, self.model.output_embedding(batch.tokens, documents=batch.documents))

    def _read_out(self, batch: Placed, embedding: Tensor, streams: list[int], replace: Replace) -> Tensor:
        """The same for the final state, which the output function reads: it is linear, so no second run."""
        assert self.readout is not None
        change = torch.zeros_like(self.z)
        change[streams] = (replace(self.z, self.points[0]) - self.z)[streams]
        return self._loss(batch, embedding.float() + self.readout.parts(change).sum(0))

    def _rebuild(self, z: Tensor, point: str) -> Tensor:  # noqa: ARG002
        return stream_major(self.dictionary(z.float().movedim(0, -2)))

    def _level(self, z: Tensor, point: str) -> Tensor:
        return self.replacements[point][:, None, None].expand_as(z)

    def result(self, evidence: Evidence) -> Quality:
        need_targets(self.means["loss"])
        config = self.dictionary.config
        settings = {"points": self.points, "k": config.k, "activation": config.activation}
        return Quality(evidence=evidence, **settings, **self.numbers())


def quality(
    model: LanguageModel,
    dictionary: Dictionary,
    batches: Batches,
    progress: Callable[[int], None] | None = None,
) -> Quality:
    """What a dictionary explains, and what the model loses by it. The losses cost 2·(S + 1) unembeddings a
    token; 2·(S + 1) passes if the dictionary is not of the final states alone."""
    model = check(model, dictionary)
    (means,) = capture(model, read_twice(batches), StateSums(model))
    sums = QualitySums(model, dictionary.to(model.device), means)
    return capture(model, batches, sums, progress=progress)[0]


def check(model: LanguageModel, dictionary: Dictionary) -> LanguageModel:
    """The model, if the dictionary was learned on it."""
    model = streams_of(model, "a dictionary")
    config = dictionary.config
    fits = (config.streams, config.dim) == (len(model.streams), model.config.stream_dim)
    if not fits or (config.model and config.model != model_mark(model)):
        raise UserError(
            "this dictionary was learned on other weights (was the run trained further?): "
            "`srmlab dictionary` learns one on these"
        )
    if not config.points or not set(config.points) <= set(points_of(model)):
        raise UserError(f"this dictionary's points, {config.points}, are not states of this model")
    return model
