"""Interaction: do two streams cover for each other?

For all pairs of streams: does ablating both cost more or less than ablating each alone? Joint KL −
(KL_i + KL_j). Positive, or super-additive: each covers for the other. Negative, or sub-additive: without one,
the other was of less use.

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> found = srmlab.analysis.interaction(model, [torch.arange(64).view(2, 32)])
    >>> found.interaction.shape                                   # first, second stream
    (8, 8)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, ClassVar

import numpy as np
from torch import Tensor

from srmlab.analysis.ablation import AblationSums
from srmlab.analysis.capture import Batches, Mean, Placed, capture, read_twice
from srmlab.analysis.readout import BITS
from srmlab.analysis.registry import Analysis, Request, has_streams, register, streams_of
from srmlab.analysis.replacement import By, check_by
from srmlab.analysis.result import Array, Evidence, Measured, Result, derived, plus_minus, require
from srmlab.analysis.states import StateMeans, StateSums, means_in, points_of
from srmlab.models import LanguageModel


@dataclass(frozen=True, kw_only=True, eq=False)
class Interaction(Result):
    """What ablating two streams costs beyond each alone; made by `interaction`."""

    kind: ClassVar[str] = "interaction"

    by: By
    single: Annotated[Array, Measured("stream", "nats, KL with this stream ablated")]
    joint: Annotated[
        Array, Measured("first second", "nats, KL with both streams ablated; the diagonal is `single`")
    ]
    interaction: Annotated[Array, Measured("first second", "nats, joint − sum of the two; the diagonal is 0")]

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.joint.shape == (len(self.single),) * 2, "joint must be stream × stream")
        require(bool(np.allclose(self.joint, self.joint.T)), "joint must be symmetric")

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of streams, the strongest interaction (of either sign) first."""
        found = list(combinations(range(len(self.single)), 2))
        return sorted(found, key=lambda pair: -abs(self.interaction[pair]))

    @derived("", "share of pairs")
    def positive_share(self) -> float:
        """The share of super-additive pairs, in which each covers for the other; NaN without pairs."""
        signs = [self.interaction[pair] > 0 for pair in self.pairs]
        return float(np.mean(signs)) if signs else float("nan")

    def headline(self) -> str:
        return (
            ", ".join(f"S{a}·S{b} {self.interaction[a, b] * BITS:+.3f}" for a, b in self.pairs[:3]) + " bits"
        )

    def summary(self) -> str:
        lines = [
            f"Interaction of streams under joint ablation by {self.by} ({self.evidence})",
            f"  super-additive in {self.text('positive_share', '.0%')} of {len(self.pairs)} pairs",
        ]
        for a, b in self.pairs[:6]:
            joint, more = self._bits("joint", a, b, ".3f"), self._bits("interaction", a, b, "+.4f")
            lines.append(f"  S{a} and S{b}: joint {joint}, minus the sum of both {more} bits")
        return "\n".join(lines)

    def _bits(self, name: str, a: int, b: int, form: str) -> str:
        """What an ablation does to predictions is reported in bits."""
        values, errors = getattr(self, name), self.standard_error(name)
        return plus_minus(values[a, b] * BITS, errors[a, b] * BITS, form)


class InteractionSums(AblationSums):
    def __init__(self, model: LanguageModel, by: By = "mean", means: StateMeans | None = None) -> None:
        S = len(model.streams)
        self.pairs = list(combinations(range(S), 2))
        super().__init__(model, by, means, [(s,) for s in range(S)] + self.pairs)
        self.first = [a for a, _ in self.pairs]
        self.second = [b for _, b in self.pairs]
        self.means["interaction"] = Mean(len(self.pairs))

    def measured(self, batch: Placed, kl: Tensor) -> None:
        S = len(self.model.streams)
        beyond = kl[S:] - kl[self.first] - kl[self.second]
        self.means["interaction"].add(batch, beyond.sum(-1).T)

    def result(self, evidence: Evidence) -> Interaction:
        S = len(self.model.streams)

        def matrix(diagonal: Array, pairs: Array) -> Array:
            full = np.diag(diagonal)
            full[self.first, self.second] = full[self.second, self.first] = pairs
            return full

        kl, kl_se = self.means["kl"].mean, self.means["kl"].standard_error
        beyond = self.means["interaction"]
        return Interaction(
            evidence=evidence,
            by=self.by,
            single=kl[:S],
            joint=matrix(kl[:S], kl[S:]),
            interaction=matrix(np.zeros(S), beyond.mean),
            errors={
                "single": kl_se[:S],
                "joint": matrix(kl_se[:S], kl_se[S:]),
                "interaction": matrix(np.zeros(S), beyond.standard_error),
            },
        )


def interaction(
    model: LanguageModel, batches: Batches, by: By = "mean", means: StateMeans | None = None
) -> Interaction:
    """The stream × stream interaction under ablation of the final state: S(S+1)/2 unembeddings a token."""
    model = streams_of(model, "interaction")
    check_by(by)
    if by == "mean" and means is None:
        (means,) = capture(model, read_twice(batches), StateSums(model, points_of(model)[-1:]))
    return capture(model, batches, InteractionSums(model, by, means))[0]


def _accumulator(request: Request) -> InteractionSums:
    return InteractionSums(request.model, "mean", means_in(request))


register(Analysis(Interaction, _accumulator, has_streams, needs="means"))
