"""Ablation: how much the prediction needs each stream.

A stream's final state, as the output function reads it, is replaced for all tokens, and the next-token
distributions are compared: KL(full ‖ ablated), averaged over tokens. The replacement is

    mean       its mean over the evaluation tokens (the default, and the paper's)
    zero       nothing
    resample   its state at another token of the batch, drawn at random

Because the output function is linear in the streams, this is exact without running the model again: S
unembeddings per token. This counts only what a stream adds to the output, not what other streams read from
it on the way. `layers="every"` replaces the stream after every layer instead (`range(2, 5)`: after those), so
that both count, and runs the model once per stream; in a survey it is `ablation_everywhere`. The two can rank
streams in opposite order. `groups` ablates streams together; `interaction` (in interaction.py) covers all
pairs.

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> found = srmlab.analysis.ablation(model, [torch.arange(64).view(2, 32)])
    >>> found.kl.shape, len(found.ranking)
    ((8,), 8)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.capture import Accumulator, Batches, Mean, Placed, capture, read_twice
from srmlab.analysis.readout import BITS, Readout, add_changes, changes_by
from srmlab.analysis.registry import Analysis, Request, has_streams, register, streams_of
from srmlab.analysis.replacement import By, Layers, check_by, points_at, replacement, replacer, replacing
from srmlab.analysis.result import Array, Measured, Result, derived, require, write_table
from srmlab.analysis.states import StateMeans, StateSums, means_in, points_of, stream_major
from srmlab.errors import UserError
from srmlab.models import LanguageModel

Groups = Sequence[tuple[int, ...]]
SHARES = (0.5, 0.75, 0.8)  # of the total impact


@dataclass(frozen=True, kw_only=True, eq=False)
class Ablation(Result):
    """How much the prediction changes when streams are replaced; made by `ablation`."""

    kind: ClassVar[str] = "ablation"

    by: By
    points: tuple[str, ...]  # the sites at which streams were replaced
    groups: tuple[tuple[int, ...], ...]  # the streams ablated together; by default one each
    kl: Annotated[Array, Measured("group", "nats, KL(full ‖ ablated), mean over tokens")]
    loss_change: Annotated[Array, Measured("group", "nats, loss ablated − full, mean over targets")]

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.groups) == len(self.kl), f"{len(self.groups)} groups named, {len(self.kl)} measured")
        require(bool((self.kl >= 0).all()), "a KL divergence is not negative")

    @property
    def names(self) -> list[str]:
        return ["+".join(f"S{s}" for s in group) for group in self.groups]

    @derived("group", "bits")
    def bits(self) -> Array:
        """[group] The KL in bits."""
        return self.kl * BITS

    @property
    def ranking(self) -> list[int]:
        """Groups from the greatest impact to the least."""
        return [int(g) for g in np.argsort(-self.kl, kind="stable")]

    @derived("rank", "bits")
    def ranked_bits(self) -> Array:
        """The KLs from the greatest to the least."""
        return self.bits[self.ranking]

    @derived("", "bits")
    def mean_bits(self) -> float:
        """Mean KL over groups."""
        return float(self.bits.mean())

    @derived("rank", "share of the total impact")
    def cumulative_share(self) -> Array:
        """[rank] The share of the total impact that the highest-ranked groups have together."""
        total = self.kl.sum()
        return (
            np.cumsum(self.kl[self.ranking]) / total if total > 0 else np.linspace(0, 1, len(self.kl) + 1)[1:]
        )

    def groups_for(self, share: float) -> int:
        """How many of the highest-ranked groups have at least this share of the total impact."""
        return int(np.searchsorted(self.cumulative_share, share - 1e-12) + 1)

    @derived("share", "groups")
    def carriers(self) -> Array:
        """[50, 75, 80 %] How many of the highest-ranked groups have that share of the total impact."""
        return np.array([self.groups_for(share) for share in SHARES])

    @derived("", "ratio")
    def dynamic_range(self) -> float:
        """The greatest KL over the least."""
        return float(self.kl.max() / self.kl.min()) if self.kl.min() > 0 else math.inf

    def tiers(self) -> list[list[int]]:
        """Groups in tiers of similar impact, the highest first: the cut that leaves the least variance inside
        tiers. There are four tiers of twelve groups or more, three of fewer (as the paper cuts its 16 and 8
        streams).
        """
        count = min(len(self.kl), 4 if len(self.kl) >= 12 else 3)
        cuts = _natural_breaks(self.kl[self.ranking], count)
        return [self.ranking[a:b] for a, b in pairwise(cuts)]

    def headline(self) -> str:
        first = ", ".join(f"{self.names[g]} {self.bits[g]:.3f}" for g in self.ranking[:3])
        return f"{first} … bits; {self.groups_for(0.5)} of {len(self.kl)} make up half the impact"

    def summary(self) -> str:
        where = self.points[0] if len(self.points) == 1 else f"{self.points[0]} … {self.points[-1]}"
        spread = self.bits.std(ddof=1) if len(self.bits) > 1 else 0.0
        carried = (
            f"{share:.0%} is from the top {self.text('carriers', 'd', (i,))}"
            for i, share in enumerate(SHARES)
        )
        lines = [
            f"Ablation by {self.by} at {where} ({self.evidence})",
            f"  KL {self.bits.min():.3f} to {self.bits.max():.3f} bits "
            f"(× {self.text('dynamic_range', '.1f')}), mean {self.text('mean_bits')} bits, "
            f"spread over streams {spread:.3f} bits",
            f"  of the total impact, {', '.join(carried)}",
        ]
        for tier, members in enumerate(self.tiers(), start=1):
            listed = ", ".join(f"{self.names[g]} {self.text('bits', at=(g,))}" for g in members)
            lines.append(f"  tier {tier}: {listed} bits")
        worst = self.ranking[0]
        change = self.text("loss_change", "+.3f", (worst,))
        lines.append(f"  without {self.names[worst]} the loss changes by {change} nats")
        return "\n".join(lines)

    def to_pgfplots(self, directory: str | Path, prefix: str) -> list[Path]:
        """`{prefix}_ablation_ranked.dat`: stream and kl, ranked; in bits, as the paper has it."""
        rows = (("+".join(map(str, self.groups[g])), float(self.bits[g])) for g in self.ranking)
        return [write_table(Path(directory) / f"{prefix}_ablation_ranked.dat", ["stream", "kl"], rows)]


class AblationSums(Accumulator):
    """Sums of KL and loss change for groups of streams, replaced at some points; by default at the last. The
    output function, which reads that one, is linear, so one pass is exact; elsewhere every group takes
    another.
    """

    makes = Ablation

    def __init__(
        self,
        model: LanguageModel,
        by: By = "mean",
        means: StateMeans | None = None,
        groups: Groups | None = None,
        points: Sequence[str] | None = None,
    ) -> None:
        S, last = len(model.streams), points_of(model)[-1:]
        self.by: By = by
        self.model, self.means_at, self.points = model, means, tuple(points or last)
        self.sites = self.points if self.points == last else ()
        self.groups = tuple(groups) if groups is not None else tuple((s,) for s in range(S))
        for group in self.groups:
            if not group or len(set(group)) < len(group) or any(not 0 <= s < S for s in group):
                raise UserError(f"group {group}: give distinct streams from 0 to {S - 1}")
        if by == "mean" and means is not None:
            means.check(model, self.points)
        self.readout = Readout(model)
        G = len(self.groups)
        self.means = {"kl": Mean(G), "loss_change": Mean(G, over="targets")}
        self.known = {"by": by, "groups": self.groups, "points": self.points}
        self.settings = {**self.known, "means": None if means is None else means.evidence.fingerprint}

    def see(self, name: str, value: Tensor) -> None:  # noqa: ARG002
        self.parts = self.readout.parts(stream_major(value))  # [S, B, T, E]

    def end(self, batch: Placed, embedding: Tensor) -> None:
        changes = self.read_out(batch) if self.sites else self.run_again(batch, embedding)
        kl = add_changes(self.means, batch, embedding, changes, self.readout.unembedding)
        self.measured(batch, kl)

    def read_out(self, batch: Placed) -> Tensor:
        """[G, B, T, E] The changes of the embedding, from the parts that streams have of it."""
        mean = None  # the output function is linear, so parts are replaced like states
        if self.by == "mean":
            assert self.means_at is not None
            mean = self.readout.parts(self.means_at.at(self.points[0], self.parts.device)[:, None])[:, 0]
        changes = replacement(self.parts, self.by, mean, batch.index) - self.parts
        if any(len(group) > 1 for group in self.groups):
            return torch.stack([changes[list(group)].sum(0) for group in self.groups])
        if self.groups != tuple((s,) for s in range(len(changes))):
            return changes[[group[0] for group in self.groups]]
        return changes

    def run_again(self, batch: Placed, embedding: Tensor) -> Tensor:
        """[G, B, T, E] The same by running the model on with the streams replaced."""
        replace = replacer(self.by, self.means_at, batch.index)
        hooks = [(self.points, replacing(group, replace)) for group in self.groups]
        return changes_by(self.model, batch, embedding, hooks)

    def measured(self, batch: Placed, kl: Tensor) -> None:
        """A place for more sums of the KLs [G, B, T]."""


def ablation(
    model: LanguageModel,
    batches: Batches,
    by: By = "mean",
    layers: Layers = "last",
    groups: Groups | None = None,
    means: StateMeans | None = None,
) -> Ablation:
    """The impact of each stream (or group of streams) on the prediction. `means` saves the pass that
    measures them."""
    model = streams_of(model, "ablation")
    check_by(by)
    points = points_at(model, layers)
    if by == "mean" and means is None:
        (means,) = capture(model, read_twice(batches), StateSums(model))
    return capture(model, batches, AblationSums(model, by, means, groups, points))[0]


def _natural_breaks(values: Array, count: int) -> list[int]:
    """Cuts of sorted values into `count` runs with the least sum of squares around the runs' means (exact, by
    dynamic programming)."""
    n = len(values)
    first, second = (np.concatenate([[0], np.cumsum(values**power)]) for power in (1, 2))

    def within(a: int, b: int) -> float:
        return second[b] - second[a] - (first[b] - first[a]) ** 2 / (b - a)

    best = {(0, 0): (0.0, [0])}
    for runs in range(1, count + 1):
        for end in range(runs, n + 1):
            best[runs, end] = min(
                (best[runs - 1, start][0] + within(start, end), [*best[runs - 1, start][1], end])
                for start in range(runs - 1, end)
                if (runs - 1, start) in best
            )
    return best[count, n][1]


class AblationEverywhere(Ablation):
    """A stream replaced by its mean after every layer: all that the prediction needs it for."""

    kind: ClassVar[str] = "ablation_everywhere"


class EverywhereSums(AblationSums):
    makes = AblationEverywhere


def _final(request: Request) -> AblationSums:
    return AblationSums(request.model, "mean", means_in(request))


def _everywhere(request: Request) -> EverywhereSums:
    return EverywhereSums(request.model, "mean", means_in(request), points=points_of(request.model))


register(Analysis(Ablation, _final, has_streams, needs="means"))
register(Analysis(AblationEverywhere, _everywhere, has_streams, needs="means"))
