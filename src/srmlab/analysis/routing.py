"""Routing: which stream reads which. Statistics of the connection function's attention pattern, the learned
wiring between streams.

At every token, layer and head the pattern A[target, source] is a softmax over sources: how much of each
source stream the target stream takes in. An edge is in use when A > 0.10 (strictly; `threshold`). Measured
per (layer, head, target, source):

    frequency   the share of tokens at which the edge is in use
    weight      the mean of A

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> found = srmlab.analysis.routing(model, [torch.arange(64).view(2, 32)], threshold=0.10)
    >>> float(found.weight.sum(-1).round(5).min()), found.uniform   # a target's weights add up to 1
    (1.0, 0.125)

The paper contradicts itself on which axis is which; here axes are always named, target before source, and
drawings can be transposed. Layer 0 reads z_0, which is the same for every token: its pattern is a constant of
the model (`token_independent`).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.bootstrap import correlation
from srmlab.analysis.capture import Accumulator, Batches, Mean, capture
from srmlab.analysis.registry import Analysis, has_stream_attention, pattern_sites, register, streams_of
from srmlab.analysis.result import Array, Measured, Result, derived, require
from srmlab.errors import UserError
from srmlab.models import LanguageModel

EDGES = "layer head target source"


@dataclass(frozen=True, kw_only=True, eq=False)
class Routing(Result):
    """Which stream reads which; made by `routing`."""

    kind: ClassVar[str] = "routing"

    threshold: float
    token_independent: tuple[int, ...]  # layers whose pattern cannot depend on the token
    frequency: Annotated[Array, Measured(EDGES, "share of tokens with weight > threshold")]
    weight: Annotated[Array, Measured(EDGES, "mean attention weight")]

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.weight.shape[-1] == self.weight.shape[-2], "target and source must be the same streams")
        require(bool(((self.frequency >= 0) & (self.frequency <= 1)).all()), "a frequency is a share: 0 to 1")
        off = np.abs(self.weight.sum(-1) - 1).max()  # a weight in bf16 is rounded by up to 2⁻⁹ of itself
        require(bool(off < 2**-8), "weights must add up to 1 over sources")

    @property
    def streams(self) -> int:
        return self.weight.shape[-1]

    @property
    def uniform(self) -> float:
        """The weight of every edge if a stream read all streams equally: 1/S."""
        return 1 / self.streams

    @derived("", "share of all edges and tokens")
    def in_use(self) -> float:
        """Mean frequency over all edges."""
        return float(self.frequency.mean())

    @derived("source", "share of tokens")
    def outgoing(self) -> Array:
        """[source] How often a stream is read by another one: mean frequency over layers, heads and
        other targets."""
        return outgoing(self.frequency)

    @derived("target", "share of tokens")
    def incoming(self) -> Array:
        """[target] How often a stream reads another one: mean frequency over layers, heads and other
        sources."""
        return incoming(self.frequency)

    @derived("stream", "share of tokens")
    def hub_score(self) -> Array:
        """[stream] The outgoing frequency."""
        return self.outgoing

    @derived("", "share of all outgoing frequency")
    def hub_share(self) -> float:
        """What the strongest stream has of all outgoing frequency (1/S: no hub)."""
        total = float(self.outgoing.sum())
        return float(self.outgoing.max()) / total if total > 0 else self.uniform

    @derived("", "share of all attention")
    def most_attention(self) -> float:
        """What the most attended stream has of all attention (1/S: no hub), whatever the threshold."""
        return float(self.weight.mean((0, 1, 2)).max())

    @derived("stream", "share of tokens")
    def sink_score(self) -> Array:
        """[stream] Incoming minus outgoing frequency: positive where a stream takes more than it gives."""
        return self.incoming - self.outgoing

    @derived("stream", "share of tokens")
    def self_routing(self) -> Array:
        """[stream] How often a stream reads itself: mean frequency of the diagonal."""
        return self_routing(self.frequency)

    @derived("", "share of tokens")
    def mean_self_routing(self) -> float:
        return float(self.self_routing.mean())

    @derived("", "(layer, head, stream) triples")
    def mostly_self(self) -> int:
        """In how many layers, heads and streams the stream reads itself at more than half the tokens."""
        return int((np.diagonal(self.frequency, axis1=-2, axis2=-1) > 0.5).sum())

    @property
    def hubs(self) -> list[int]:
        """Streams whose outgoing frequency is a standard deviation above the mean, strongest first."""
        out = self.outgoing
        bar = out.mean() + out.std()
        ranked = np.argsort(-out, kind="stable")
        return [int(s) for s in ranked if out[s] >= bar and out.std() > 1e-12]

    @property
    def sinks(self) -> list[int]:
        """Streams whose outgoing frequency is under half the mean, weakest first."""
        out = self.outgoing
        return [int(s) for s in np.argsort(out, kind="stable") if out[s] < out.mean() / 2]

    @derived("transition", "correlation")
    def stability(self) -> Array:
        """[transition] Correlation of the frequency maps of consecutive layers (1: the same wiring)."""
        flat = self.frequency.reshape(self.frequency.shape[0], -1)
        return np.array([_correlation(a, b) for a, b in itertools.pairwise(flat)])

    @derived("", "correlation")
    def mean_stability(self) -> float:
        """Mean correlation of consecutive layers; NaN for one layer."""
        return float(self.stability.mean()) if self.stability.size else float("nan")

    def headline(self) -> str:
        first = ", ".join(f"S{s} {self.outgoing[s]:.0%}" for s in self.hubs[:3]) or "none"
        self_routing = f"self-routing {self.mean_self_routing:.0%}"
        return f"read most {first}; {self_routing}; layer to layer r = {self.mean_stability:.2f}"

    def summary(self) -> str:
        layers, heads = self.frequency.shape[:2]

        def named(streams: list[int]) -> str:
            return ", ".join(f"S{s} {self.text('outgoing', '.1%', (s,))}" for s in streams) or "none"

        lines = [
            f"Routing, weight > {self.threshold:g} ({self.evidence})",
            f"  {layers} layers × {heads} heads × {self.streams} streams; uniform 1/S = {self.uniform:.3f}",
            f"  edges in use: {self.text('in_use', '.1%')} of all",
            "  read most (outgoing frequency over mean + 1 s.d.): " + named(self.hubs),
            "  sinks (rarely read): " + named(self.sinks),
            f"  self-routing: mean {self.text('mean_self_routing', '.1%')}, above one half in "
            f"{self.text('mostly_self', 'd')} of {layers * heads * self.streams}",
            "  correlation with the next layer: "
            + ", ".join(self.text("stability", ".2f", (t,)) for t in range(layers - 1)),
        ]
        if self.token_independent:
            lines.append("  layer 0 reads z_0 and is the same for every token")
        return "\n".join(lines)


class RoutingSums(Accumulator):
    makes = Routing

    def __init__(self, model: LanguageModel, threshold: float = 0.10) -> None:
        if not 0 <= threshold < 1:
            raise UserError(f"threshold = {threshold}: must be an attention weight, from 0 to below 1")
        self.sites = pattern_sites(model, "routing")
        self.threshold = threshold
        self.settings = {"threshold": threshold}
        self.known = {**self.settings, "token_independent": model.token_independent}
        shape = (len(self.sites), model.exchanges[0].heads, len(model.streams), len(model.streams))
        self.means = {"frequency": Mean(*shape), "weight": Mean(*shape)}

    def see(self, name: str, value: Tensor) -> None:
        layer = self.sites.index(name)
        self.sums["frequency"][:, layer] = (value > self.threshold).sum(1)  # [B, H, target, source]
        self.sums["weight"][:, layer] = value.sum(1, dtype=torch.float32)


def routing(model: LanguageModel, batches: Batches, threshold: float = 0.10) -> Routing:
    """How often, and how strongly, each stream reads each other one."""
    return capture(model, batches, RoutingSums(streams_of(model, "routing"), threshold))[0]


def outgoing(frequency: Array) -> Array:
    """[source] The hub score: how often a stream is read by another one, of frequencies [layer, head,
    target, source]."""
    return _off_diagonal_mean(frequency.mean((0, 1)), axis=0)


def incoming(frequency: Array) -> Array:
    """[target] How often a stream reads another one."""
    return _off_diagonal_mean(frequency.mean((0, 1)), axis=1)


def self_routing(frequency: Array) -> Array:
    """[stream] How often a stream reads itself."""
    return np.diagonal(frequency, axis1=-2, axis2=-1).mean((0, 1))


def pattern_entropy(pattern: Tensor) -> Tensor:
    """[…, head] Bits, over the sources of a pattern [… head, target, source], mean over targets."""
    return -(pattern * pattern.clamp_min(1e-12).log2()).sum(-1).mean(-1)


def _off_diagonal_mean(matrix: Array, axis: int) -> Array:
    others = matrix.shape[0] - 1
    return (matrix.sum(axis) - np.diagonal(matrix)) / others if others else np.zeros(1)


def _correlation(a: Array, b: Array) -> float:
    """Of a map without contrast: 1 with another such, 0 with any other."""
    found = correlation(a, b)
    return found if np.isfinite(found) else float(np.ptp(a) == np.ptp(b))


register(
    Analysis(Routing, lambda request: RoutingSums(request.model, request.threshold), has_stream_attention)
)
