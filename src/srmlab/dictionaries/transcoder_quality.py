"""How good transcoders are: variance explained, and loss recovered when the model runs on them.

    explained    1 − |y − ŷ|² / |y − mean|² of what a call writes, by call and stream
    active       active features (L0)
    recovered    (loss with y at its mean − loss with ŷ in its place) / (loss with y at its mean − loss),
                 replaced wherever the step function is called, through the whole recursion: for each step
                 function and stream alone, and for all at once (`all_recovered`)

Every number has a standard error over sequences.

    >>> import srmlab, srmlab.dictionaries, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> tokens = torch.arange(4 * 32).view(4, 32)
    >>> found = srmlab.dictionaries.learn(model, lambda s: tokens + s, of="mlp", steps=2, features=64, k=4)
    >>> quality = srmlab.dictionaries.transcoder_quality(model, found, [tokens], each=False)
    >>> quality.explained.shape                                  # call, stream
    (24, 8)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from torch import Tensor

from srmlab.analysis.capture import Batches, Placed, capture, read_twice
from srmlab.analysis.replacement import replacing
from srmlab.analysis.result import Array, Measured, Result, derived
from srmlab.analysis.states import StateMeans, StateSums
from srmlab.dictionaries.dictionary import check
from srmlab.dictionaries.quality import AllReplaced, ReplacedSums, measured_together, share
from srmlab.dictionaries.transcoder import Calls, Transcoders
from srmlab.dictionaries.transcoding import splice
from srmlab.models import LanguageModel


@dataclass(frozen=True, kw_only=True, eq=False)
class TranscoderQuality(AllReplaced, Result):
    """How much of what calls write transcoders explain, and of the loss they recover."""

    kind: ClassVar[str] = "transcoders"
    columns: ClassVar[tuple[str, ...]] = ("explained", "active")

    of: str
    names: tuple[str, ...]  # of the transcoders
    calls: tuple[str, ...]  # the sites they write
    replaced: tuple[str, ...]  # what was replaced alone: step function and stream
    features: int
    k: int
    activation: str
    skip: bool
    reach: int
    residual: Annotated[Array, Measured("call stream", "mean squared length of y − ŷ")]
    power: Annotated[Array, Measured("call stream", "mean squared length of y")]
    written: Annotated[Array, Measured("call stream dim", "mean of y")]
    active: Annotated[Array, Measured("call stream", "features in use, mean over tokens")]
    firing: Annotated[Array, Measured("member stream feature", "share of calls at which it is in use")]
    loss: Annotated[Array, Measured("", "nats, mean over targets")]
    spliced: Annotated[Array, Measured("alone", "nats, loss with one step function and stream replaced")]
    ablated: Annotated[Array, Measured("alone", "nats, loss with what these write at its mean")]
    all_spliced: Annotated[Array, Measured("", "nats, loss with all replaced")]
    all_ablated: Annotated[Array, Measured("", "nats, loss with all that is written at its mean")]

    @derived("call stream", "share of variance")
    def explained(self) -> Array:
        variance = self.power - np.square(self.written).sum(-1)
        return 1 - self.residual / np.maximum(variance, 1e-12)

    @derived("alone", "share of the loss")
    def recovered(self) -> Array:
        return share(self.ablated - self.spliced, self.ablated - self.loss)

    @derived("", "share of features")
    def dead(self) -> float:
        """The share of features that never fire."""
        return float((self.firing == 0).mean())

    def headline(self) -> str:
        explained, recovered = self.text("mean_explained", ".1%"), self.text("all_recovered", ".1%")
        return f"{explained} of variance explained, {recovered} of the loss recovered with all replaced"

    def summary(self) -> str:
        kinds = [f"{self.features} features", f"{self.text('mean_active', '.1f')} active ({self.activation})"]
        kinds += ["skip connection"] if self.skip else []
        kinds += [f"writing {self.reach} levels ahead"] if self.reach > 1 else []
        lines = [
            f"Transcoders of every step's {self.of}: {', '.join(kinds)} ({self.evidence})",
            f"  {self.text('mean_explained', '.1%')} of variance explained, {self.text('dead', '.1%')} of "
            "features dead",
            f"  all replaced, through the whole recursion: loss {self.text('all_spliced')} instead of "
            f"{self.text('loss')} nats ({self.text('all_ablated')} at the mean): "
            f"{self.text('all_recovered', '.1%')} recovered",
        ]
        for i, name in enumerate(self.replaced):
            cost = self.text("spliced", ".3f", (i,))
            lines.append(f"  {name} alone: loss {cost}, {self.text('recovered', '.1%', (i,))} recovered")
        return "\n".join(lines)


class TranscoderSums(ReplacedSums):
    makes = TranscoderQuality

    def __init__(self, model: LanguageModel, transcoders: Transcoders, means: StateMeans, each: bool) -> None:
        config, self.transcoders, self.calls = transcoders.config, transcoders, means.points
        names, streams = [member.config.name for member in transcoders], range(config.streams)
        places = [(name, s) for name in names for s in streams] if each else []
        everything, alone = dict.fromkeys(names, streams), [{name: [s]} for name, s in places]
        super().__init__(model, config, means, "written", len(means.points), len(names), everything, alone)
        self.sites = [site for member in transcoders for site in (*member.config.points, *member.writes)]
        self.known = {
            "of": transcoders.of,
            "names": tuple(names),
            "calls": self.calls,
            "replaced": tuple(f"{name} S{stream}" for name, stream in places),
            **{name: getattr(config, name) for name in ("features", "k", "activation", "skip", "reach")},
        }

    def begin(self, batch: Placed) -> None:
        super().begin(batch)
        self.passes = [Calls(member) for member in self.transcoders]
        self.given: dict[str, Tensor] = {}

    def see(self, name: str, value: Tensor) -> None:
        for m, member in enumerate(self.transcoders):
            if name in member.config.points:
                self.given[name] = value.float()
            elif name in member.writes:
                given = self.given.pop(member.config.points[member.writes.index(name)])
                codes, rebuilt = self.passes[m].write(given)
                self.explain(self.calls.index(name), value.float(), rebuilt, codes, m, len(member.writes))

    def losses_with(
        self,
        how: str,
        replaced: Mapping[str, Sequence[int]],
        batch: Placed,
        embedding: Tensor,  # noqa: ARG002
    ) -> Tensor:
        if how == "spliced":
            return self.loss_under(batch, splice(self.transcoders, replaced))
        chosen = [(member, replaced.get(member.config.name, ())) for member in self.transcoders]
        hooks = [(member.writes, replacing(streams, self.at_mean)) for member, streams in chosen if streams]
        return self.loss_under(batch, hooks)


def transcoder_quality(
    model: LanguageModel,
    transcoders: Transcoders,
    batches: Batches,
    each: bool = True,
    progress: Callable[[int], None] | None = None,
) -> TranscoderQuality:
    """What transcoders explain, and what the model loses by them; with `each`, also by every step function
    and stream alone, which costs two passes for each.
    """
    return transcoder_qualities(model, [transcoders], batches, each, progress)[0]


def transcoder_qualities(
    model: LanguageModel,
    several: Sequence[Transcoders],
    batches: Batches,
    each: bool = False,
    progress: Callable[[int], None] | None = None,
) -> list[TranscoderQuality]:
    """The quality of several sets of transcoders of the same calls, which are read together; with `each`, of
    the first also by every step function and stream alone."""
    for member in (member for one in several for member in one):
        check(model, member)
    calls = [site for member in several[0] for site in member.writes]
    (means,) = capture(model, read_twice(batches), StateSums(model, calls), bootstrap=False)
    sums = [
        TranscoderSums(model, one.to(model.device), means, each and i == 0) for i, one in enumerate(several)
    ]
    return measured_together(model, batches, sums, progress)
