"""How good a dictionary is: variance explained, and loss recovered when the model runs on reconstructions.

    explained    1 − |x − x̂|² / |x − mean|²: the share of a stream's variance that its dictionary explains
    active       active features per state (L0)
    alive        the share of features that fire at all on this text
    recovered    (loss with the stream at its mean − loss with x̂ in place of x) / (loss with the stream at
                 its mean − loss): 1 if the model does as well on the reconstruction as on the state itself,
                 0 if the reconstruction is worth no more than the mean

States are replaced at all points the dictionary was trained on, so with `layers="every"` the model runs on
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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.capture import Accumulator, Batches, Mean, Placed, capture, read_twice
from srmlab.analysis.readout import Readout, sequence_losses
from srmlab.analysis.replacement import replacer, replacing
from srmlab.analysis.result import Array, Derived, Measured, Result, derived, require, require_named
from srmlab.analysis.states import StateMeans, StateSums, points_of, stream_major
from srmlab.dictionaries.dictionary import Dictionary, DictionaryConfig, check, of_states
from srmlab.models import LanguageModel


class AllReplaced:
    """What the quality of a dictionary and that of transcoders have in common."""

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
    """How much of the states a dictionary explains, and of the loss it recovers."""

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
        return f"{self.features} features per stream, {self.in_use} active: {found}"

    def summary(self) -> str:
        most = f"at most {self.k}" if self.activation == "topk" else self.in_use
        lines = [
            f"Dictionaries of {self.features} features, {most} active ({self.evidence})",
            f"  {self.text('mean_explained', '.1%')} of variance explained; with all streams replaced "
            f"the loss is {self.text('all_spliced')} instead of {self.text('loss')} nats, "
            f"{self.text('all_recovered', '.1%')} recovered",
        ]
        for s in range(len(self.recovered)):
            active, alive = self.text("stream_active", ".1f", (s,)), self.text("alive", ".0%", (s,))
            lines.append(
                f"  S{s}: {self.text('stream_explained', '.1%', (s,))} of variance, {active} active, "
                f"{alive} alive, {self.text('recovered', '.1%', (s,))} recovered"
            )
        return "\n".join(lines)


def share(part: Array, whole: Array) -> Array:
    """part / whole; NaN where there is nothing to recover."""
    return np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=np.asarray(whole) > 0)


class ReplacedSums(Accumulator):
    """Sums of what is explained of some values, and of the losses with them replaced: "spliced", by what was
    learned, or "ablated", by their means; all at once, and each alone.
    """

    needed = "loss"
    beside: ReplacedSums | None = None  # one of the same values, read before it, which has the losses without

    def __init__(
        self,
        model: LanguageModel,
        config: DictionaryConfig,
        means: StateMeans,
        own_mean: str,
        places: int,
        members: int,
        everything: Any,
        alone: Sequence[Any],
    ) -> None:
        """`own_mean` is what the result calls the mean of the values; `everything` and `alone` are what
        `losses_with` takes."""
        self.model, self.own_mean, self.at_mean = model, own_mean, replacer("mean", means)
        self.everything, self.alone = everything, alone
        self.unembedding = model.unembedding.detach().float()
        P, S, R = places, config.streams, len(alone)
        shapes = {"residual": (P, S), "power": (P, S), own_mean: (P, S, config.dim), "active": (P, S)}
        shapes["firing"] = (members, S, config.features)
        losses = {"loss": (), "spliced": (R,), "ablated": (R,), "all_spliced": (), "all_ablated": ()}
        self.means = {name: Mean(*shape) for name, shape in shapes.items()}
        self.means |= {name: Mean(*shape, over="targets") for name, shape in losses.items()}

    def explain(
        self, place: int, value: Tensor, rebuilt: Tensor, codes: Tensor, member: int, calls: int = 1
    ) -> None:
        """Values at a place, and what was made of them, [B, T, S, D], by codes [B, T, S, F] of a member that
        is called so often."""
        fired = (codes > 0).sum(1)  # [B, S, F]
        self.sums["residual"][:, place] = (value - rebuilt).square().sum((1, 3))
        self.sums["power"][:, place] = value.square().sum((1, 3))
        self.sums[self.own_mean][:, place] = value.sum(1)
        self.sums["active"][:, place] = fired.sum(-1)
        self.sums["firing"][:, member] += fired / calls

    def end(self, batch: Placed, embedding: Tensor) -> None:
        if self.beside is None:
            self.sums["loss"][:] = self.loss(batch, embedding)
            self.replace_all("ablated", batch, embedding)
        else:
            for name in ("loss", "all_ablated", *(["ablated"] if self.alone else [])):
                self.sums[name][:] = self.beside.sums[name]
        self.replace_all("spliced", batch, embedding)
        super().end(batch, embedding)

    def replace_all(self, how: str, batch: Placed, embedding: Tensor) -> None:
        self.sums[f"all_{how}"][:] = self.losses_with(how, self.everything, batch, embedding)
        for i, one in enumerate(self.alone):
            self.sums[how][:, i] = self.losses_with(how, one, batch, embedding)

    def losses_with(self, how: str, replaced: Any, batch: Placed, embedding: Tensor) -> Tensor:
        """[B] The losses with something replaced."""
        raise NotImplementedError

    def loss(self, batch: Placed, embedding: Tensor) -> Tensor:
        return sequence_losses(embedding, self.unembedding, batch.targets)

    def loss_under(self, batch: Placed, hooks: Sequence[Any]) -> Tensor:
        """[B] The losses of another pass."""
        with self.model.hooks(hooks):
            return self.loss(batch, self.model.output_embedding(batch.tokens, documents=batch.documents))


class QualitySums(ReplacedSums):
    makes = Quality

    def __init__(self, model: LanguageModel, dictionary: Dictionary, means: StateMeans) -> None:
        config, self.dictionary = dictionary.config, dictionary
        P, streams = len(config.points), range(config.streams)
        super().__init__(model, config, means, "state", P, P, list(streams), [[s] for s in streams])
        self.sites = config.points
        self.readout = Readout(model) if config.points == points_of(model)[-1:] else None
        self.known = {"points": config.points, "k": config.k, "activation": config.activation}

    def see(self, name: str, value: Tensor) -> None:
        point, codes = self.sites.index(name), self.dictionary.encode(value)
        rebuilt = self.dictionary.decode(codes)
        self.z, self.rebuilt = stream_major(value), stream_major(rebuilt)  # [S, B, T, D]
        self.explain(point, value.float(), rebuilt, codes, point)

    def losses_with(self, how: str, replaced: list[int], batch: Placed, embedding: Tensor) -> Tensor:
        if self.readout is None:
            replace = self.rebuild if how == "spliced" else self.at_mean
            return self.loss_under(batch, [(self.sites, replacing(replaced, replace))])
        instead = self.rebuilt if how == "spliced" else self.at_mean(self.z, self.sites[0])
        change = torch.zeros_like(self.z)  # the output function is linear: no second pass
        change[replaced] = (instead - self.z)[replaced]
        return self.loss(batch, embedding.float() + self.readout.parts(change).sum(0))

    def rebuild(self, z: Tensor, point: str) -> Tensor:  # noqa: ARG002
        return stream_major(self.dictionary(z.float().movedim(0, -2)))


def measured_together(
    model: LanguageModel,
    batches: Batches,
    sums: Sequence[ReplacedSums],
    progress: Callable[[int], None] | None,
) -> list[Any]:
    """The results of sums of the same values; the losses without what was learned are found once."""
    for one in sums[1:]:
        one.beside = sums[0]
    return capture(model, batches, *sums, progress=progress)


def quality(
    model: LanguageModel,
    dictionary: Dictionary,
    batches: Batches,
    progress: Callable[[int], None] | None = None,
) -> Quality:
    """What a dictionary explains, and what the model loses by it. The losses cost 2·(S + 1) unembeddings a
    token; 2·(S + 1) passes if the dictionary is not of the final states alone."""
    return qualities(model, [dictionary], batches, progress)[0]


def qualities(
    model: LanguageModel,
    dictionaries: Sequence[Dictionary],
    batches: Batches,
    progress: Callable[[int], None] | None = None,
) -> list[Quality]:
    """The quality of several dictionaries of the same states, which are read together."""
    model, points = check(model, of_states(dictionaries[0])), dictionaries[0].config.points
    assert all(check(model, one) and one.config.points == points for one in dictionaries)
    (means,) = capture(model, read_twice(batches), StateSums(model, points), bootstrap=False)
    sums = [QualitySums(model, one.to(model.device), means) for one in dictionaries]
    return measured_together(model, batches, sums, progress)
