"""How good transcoders are: what they explain of what steps write, and what the model loses by them.

    explained    1 − |y − ŷ|² / |y − mean|² of what a call writes, by call and stream
    active       how many features are in use
    recovered    (loss with y at its mean − loss with ŷ in its place) / (loss with y at its mean − loss),
                 replaced wherever the step function is called, through the whole recursion: for each step
                 function and stream alone, and for all at once (`all_recovered`)

Every number has a standard error over sequences.

    >>> import srmlab, srmlab.dictionaries, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> tokens = torch.arange(4 * 32).view(4, 32)
    >>> found = srmlab.dictionaries.learn_transcoders(model, lambda s: tokens + s, steps=2, features=64, k=4)
    >>> quality = srmlab.dictionaries.transcoder_quality(model, found, [tokens], each=False)
    >>> quality.explained.shape                                  # call, stream
    (24, 8)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.capture import Accumulator, Batches, Mean, Placed, capture, need_targets, read_twice
from srmlab.analysis.readout import sequence_losses
from srmlab.analysis.result import Array, Evidence, Measured, Result, derived
from srmlab.dictionaries.quality import AllReplaced, share
from srmlab.dictionaries.transcoder import Transcoders
from srmlab.dictionaries.transcoding import Place, check_transcoders, splice
from srmlab.models import HookPoint, LanguageModel


@dataclass(frozen=True, kw_only=True, eq=False)
class TranscoderQuality(AllReplaced, Result):
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
        kinds = [f"{self.features} features", f"{self.text('mean_active', '.1f')} in use ({self.activation})"]
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


class WrittenSums(Accumulator):
    """The mean of what every call writes."""

    def __init__(self, transcoders: Transcoders) -> None:
        config = transcoders.config
        self.sites = [site for member in transcoders for site in member.config.writes]
        self.means = {"written": Mean(len(self.sites), config.streams, config.dim)}

    def begin(self, batch: Placed) -> None:  # noqa: ARG002
        self.sums: dict[str, Tensor] = {}

    def see(self, name: str, value: Tensor) -> None:
        self.sums[name] = value.float().sum(1)  # [B, S, D]

    def end(self, batch: Placed, embedding: Tensor) -> None:  # noqa: ARG002
        self.means["written"].add(batch, torch.stack([self.sums[site] for site in self.sites], 1))

    def result(self, evidence: Evidence) -> dict[str, Tensor]:  # noqa: ARG002
        mean = torch.from_numpy(self.means["written"].mean).float()
        return dict(zip(self.sites, mean, strict=True))


class TranscoderSums(Accumulator):
    def __init__(
        self, model: LanguageModel, transcoders: Transcoders, means: dict[str, Tensor], each: bool
    ) -> None:
        self.model, self.transcoders, self.written = model, transcoders, means
        self.unembedding = model.unembedding.detach().float()
        self.calls = list(means)
        self.sites = [
            site for member in transcoders for site in (*member.config.points, *member.config.writes)
        ]
        config = transcoders.config
        streams = range(config.streams)
        self.alone = [(member.config.name, s) for member in transcoders for s in streams] if each else []
        C, S, M, R = len(self.calls), config.streams, len(transcoders.members), len(self.alone)
        self.shapes = {
            "residual": (C, S),
            "power": (C, S),
            "written": (C, S, config.dim),
            "active": (C, S),
            "firing": (M, S, config.features),
        }
        losses = {"loss": (), "spliced": (R,), "ablated": (R,), "all_spliced": (), "all_ablated": ()}
        self.means = {name: Mean(*shape) for name, shape in (self.shapes | losses).items()}

    def begin(self, batch: Placed) -> None:
        self.sums = {name: torch.zeros(len(batch.tokens), *shape) for name, shape in self.shapes.items()}
        self.codes: list[list[Tensor]] = [[] for _ in self.transcoders]
        self.given: dict[str, Tensor] = {}

    def see(self, name: str, value: Tensor) -> None:
        for m, member in enumerate(self.transcoders):
            if name in member.config.points:
                self.given[name] = value.float()
            elif name in member.config.writes:
                call = member.config.writes.index(name)
                self.measure(m, call, value.float(), self.given[member.config.points[call]])

    def measure(self, m: int, call: int, value: Tensor, given: Tensor) -> None:
        member = self.transcoders.members[m]
        codes = member.encode(given)  # [B, T, S, F]
        self.codes[m].append(codes)
        rebuilt = member.write(self.codes[m], given)
        c = self.calls.index(member.config.writes[call])
        fired = (codes > 0).sum(1)  # [B, S, F]
        self.sums["residual"][:, c] = (value - rebuilt).square().sum((1, 3)).cpu()
        self.sums["power"][:, c] = value.square().sum((1, 3)).cpu()
        self.sums["written"][:, c] = value.sum(1).cpu()
        self.sums["active"][:, c] = fired.sum(-1).cpu()
        self.sums["firing"][:, m] += fired.cpu() / len(member.config.writes)

    def end(self, batch: Placed, embedding: Tensor) -> None:
        for name, sums in self.sums.items():
            self.means[name].add(batch, sums)
        self.codes, counts = [], batch.counted.sum(1)
        self.means["loss"].add(batch, sequence_losses(embedding, self.unembedding, batch.targets), counts)
        everything = {member.config.name: range(member.config.streams) for member in self.transcoders}
        self.means["all_spliced"].add(batch, self.run(batch, splice(self.transcoders)), counts)
        self.means["all_ablated"].add(batch, self.run(batch, self.level(everything)), counts)
        if self.alone:
            ones: list[dict[str, Sequence[int]]] = [{name: [stream]} for name, stream in self.alone]
            spliced = [self.run(batch, splice(self.transcoders, one)) for one in ones]
            ablated = [self.run(batch, self.level(one)) for one in ones]
            self.means["spliced"].add(batch, torch.stack(spliced, 1), counts)
            self.means["ablated"].add(batch, torch.stack(ablated, 1), counts)
        else:
            for name in ("spliced", "ablated"):
                self.means[name].add(batch, torch.zeros(len(batch.tokens), 0), counts)

    def run(self, batch: Placed, hooks: list[Place]) -> Tensor:
        """[B] The losses with something replaced."""
        with self.model.hooks(hooks):
            embedding = self.model.output_embedding(batch.tokens, documents=batch.documents)
        return sequence_losses(embedding, self.unembedding, batch.targets)

    def level(self, chosen: Mapping[str, Sequence[int]]) -> list[Place]:
        """Hooks that put some streams of what steps write at its mean."""

        def hook(streams: list[int], value: Tensor, site: HookPoint) -> Tensor:
            value = value.clone()
            value[:, :, streams] = self.written[site.name][streams].to(value)
            return value

        return [
            (site, partial(hook, list(chosen[member.config.name])))
            for member in self.transcoders
            if member.config.name in chosen
            for site in member.config.writes
        ]

    def result(self, evidence: Evidence) -> TranscoderQuality:
        need_targets(self.means["loss"])
        config = self.transcoders.config
        return TranscoderQuality(
            evidence=evidence,
            of=self.transcoders.of,
            names=tuple(member.config.name for member in self.transcoders),
            calls=tuple(self.calls),
            replaced=tuple(f"{name} S{stream}" for name, stream in self.alone),
            features=config.features,
            k=config.k,
            activation=config.activation,
            skip=config.skip,
            reach=config.reach,
            **self.numbers(),
        )


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
    model = check_transcoders(model, transcoders)
    (means,) = capture(model, read_twice(batches), WrittenSums(transcoders))
    sums = TranscoderSums(model, transcoders.to(model.device), means, each)
    return capture(model, batches, sums, progress=progress)[0]
