"""Effective number of sources: how many streams a stream reads, without a threshold.

The exponential of the entropy of its pattern over sources (1: one source; S: all equally), mean over tokens;
and the same for the mean pattern: where that is much larger, a stream reads few sources at a time but
different ones at different tokens.

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> found = srmlab.analysis.effective_sources(model, [torch.arange(64).view(2, 32)])
    >>> found.number.shape, bool((found.number <= 8.001).all())      # layer, head, target
    ((8, 2, 8), True)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.capture import Accumulator, Batches, Mean, capture
from srmlab.analysis.registry import Analysis, has_stream_attention, pattern_sites, register, streams_of
from srmlab.analysis.result import Array, Measured, Result, derived
from srmlab.analysis.routing import EDGES
from srmlab.models import LanguageModel


@dataclass(frozen=True, kw_only=True, eq=False)
class EffectiveSources(Result):
    """How many streams a stream reads; made by `effective_sources`."""

    kind: ClassVar[str] = "effective_sources"

    number: Annotated[Array, Measured("layer head target", "streams, mean over tokens")]
    weight: Annotated[Array, Measured(EDGES, "mean attention weight")]
    above_twice_uniform: Annotated[Array, Measured(EDGES, "share of tokens with weight > 2/S")]

    @derived("layer head target", "streams")
    def of_mean_pattern(self) -> Array:
        """[layer head target] The number of sources of the mean pattern."""
        return np.exp(-(self.weight * np.log(np.maximum(self.weight, 1e-12))).sum(-1))

    @derived("layer", "streams")
    def by_depth(self) -> Array:
        """[layer] The mean over heads and targets."""
        return self.number.mean((1, 2))

    @derived("", "streams")
    def mean_number(self) -> float:
        return float(self.number.mean())

    @derived("", "streams")
    def mean_of_mean_pattern(self) -> float:
        return float(self.of_mean_pattern.mean())

    @derived("", "share of all edges and tokens")
    def in_use(self) -> float:
        """How often an edge has more than twice its uniform weight: unlike a fixed threshold's, this does not
        change with the number of streams alone."""
        return float(self.above_twice_uniform.mean())

    def headline(self) -> str:
        return (
            f"a stream reads {self.mean_number:.1f} of {self.weight.shape[-1]} streams at a token, "
            f"{self.mean_of_mean_pattern:.1f} over all tokens; {self.in_use:.0%} of edges over 2/S"
        )

    def summary(self) -> str:
        lines = [
            f"Effective number of sources, of {self.weight.shape[-1]} ({self.evidence})",
            f"  mean {self.text('mean_number', '.2f')} at a token, "
            f"{self.text('mean_of_mean_pattern', '.2f')} of the mean pattern",
            f"  edges over 2/S, twice the uniform weight: {self.text('in_use', '.1%')} of all",
        ]
        lines += [
            f"  layer {layer}: {self.text('by_depth', '.2f', (layer,))}" for layer in range(len(self.number))
        ]
        return "\n".join(lines)


class SourceSums(Accumulator):
    makes = EffectiveSources

    def __init__(self, model: LanguageModel) -> None:
        self.sites = pattern_sites(model, "effective_sources")
        S = len(model.streams)
        shape = (len(self.sites), model.exchanges[0].heads, S)
        self.means = {"number": Mean(*shape), "weight": Mean(*shape, S)}
        self.means["above_twice_uniform"] = Mean(*shape, S)

    def see(self, name: str, value: Tensor) -> None:
        layer, pattern = self.sites.index(name), value.float()  # [B, T, H, target, source]
        entropy = torch.special.entr(pattern).sum(-1)
        self.sums["number"][:, layer] = entropy.exp().sum(1)
        self.sums["weight"][:, layer] = pattern.sum(1)
        self.sums["above_twice_uniform"][:, layer] = (pattern > 2 / pattern.shape[-1]).sum(1)


def effective_sources(model: LanguageModel, batches: Batches) -> EffectiveSources:
    """How many streams each stream reads, at every layer and head."""
    return capture(model, batches, SourceSums(streams_of(model, "effective_sources")))[0]


register(Analysis(EffectiveSources, lambda request: SourceSums(request.model), has_stream_attention))
