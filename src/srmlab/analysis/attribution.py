"""Direct attribution: how much each stream adds to the correct token's logit.

The output function is linear, so the logit of a token v is exactly a sum over streams, U_v · W_s z_s: the
contributions sum to the logit. A logit means nothing by itself, since adding a constant to all of them
changes no prediction; `centred` is relative to the mean logit of the vocabulary, (U_v − mean U) · W_s z_s.

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> tokens = torch.arange(64).view(2, 32)
    >>> found = srmlab.analysis.attribution(model, [tokens])
    >>> bool(abs(found.contribution.sum() - found.logit) < 1e-5)
    True
    >>> attribute(model, tokens[:, :-1], tokens[:, 1:]).shape       # of every token: batch, token, stream
    torch.Size([2, 31, 8])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.capture import Accumulator, Batches, Mean, Placed, capture
from srmlab.analysis.readout import Readout
from srmlab.analysis.registry import Analysis, has_streams, register, streams_of
from srmlab.analysis.result import Array, Measured, Result, derived, require
from srmlab.analysis.states import points_of, stream_major
from srmlab.models import LanguageModel
from srmlab.models.decoding import check_targets
from srmlab.models.loss import IGNORE


@dataclass(frozen=True, kw_only=True, eq=False)
class Attribution(Result):
    """What each stream adds to the correct token's logit; made by `attribution`."""

    kind: ClassVar[str] = "attribution"

    logit: Annotated[Array, Measured("", "mean logit of the correct token")]
    contribution: Annotated[Array, Measured("stream", "logits, mean over targets; adds up to `logit`")]
    centred: Annotated[Array, Measured("stream", "logits above the vocabulary's mean, mean over targets")]

    def __post_init__(self) -> None:
        super().__post_init__()
        scale = 1 + np.abs(self.contribution).sum()
        gap = abs(self.contribution.sum() - self.logit)
        require(
            bool(gap < 1e-4 * scale), f"contributions must add up to the logit; they miss it by {gap:.2g}"
        )

    @property
    def ranking(self) -> list[int]:
        """Streams from the largest centred contribution to the smallest."""
        return [int(s) for s in np.argsort(-self.centred, kind="stable")]

    @derived("", "logits above the vocabulary's mean")
    def total(self) -> float:
        """What all streams add together."""
        return float(self.centred.sum())

    @derived("", "streams")
    def against(self) -> int:
        """How many streams lower the correct token's logit on average."""
        return int((self.centred < 0).sum())

    def headline(self) -> str:
        first = ", ".join(f"S{s} {self.centred[s]:+.2f}" for s in self.ranking[:3])
        return f"{first} … of {self.total:+.2f} logits"

    def summary(self) -> str:
        listed = ", ".join(f"S{s} {self.text('centred', '+.3f', (s,))}" for s in self.ranking)
        streams = range(len(self.contribution))
        parts = ", ".join(f"S{s} {self.text('contribution', '+.3f', (s,))}" for s in streams)
        return "\n".join(
            [
                f"Direct attribution to the correct token's logit ({self.evidence})",
                f"  relative to the vocabulary mean: {listed}; together {self.text('total', '+.3f')}",
                f"  {self.text('against', 'd')} of {len(self.centred)} streams lower the correct "
                "token's logit on average",
                f"  mean logit {self.text('logit', '+.3f')}, the sum of {parts}",
            ]
        )


class AttributionSums(Accumulator):
    makes = Attribution
    needed = "logit"

    def __init__(self, model: LanguageModel) -> None:
        S = len(model.streams)
        self.sites = points_of(model)[-1:]
        self.readout = Readout(model)
        self.average = self.readout.unembedding.mean(0)
        shapes = {"contribution": (S,), "centred": (S,), "logit": ()}
        self.means = {name: Mean(*shape, over="targets") for name, shape in shapes.items()}

    def see(self, name: str, value: Tensor) -> None:  # noqa: ARG002
        self.parts = self.readout.parts(stream_major(value))  # [S, B, T, E]

    def end(self, batch: Placed, embedding: Tensor) -> None:  # noqa: ARG002
        wanted = self.readout.unembedding[batch.targets.clamp(min=0)]  # [B, T, E]
        direction = wanted * batch.counted[..., None]
        logits = torch.linalg.vecdot(self.parts.sum(0), direction)  # the embedding in fp32
        contribution = torch.linalg.vecdot(self.parts, direction)  # [S, B, T]
        centred = contribution - (self.parts @ self.average) * batch.counted
        self.means["logit"].add(batch, logits.sum(-1))
        self.means["contribution"].add(batch, contribution.sum(-1).T)
        self.means["centred"].add(batch, centred.sum(-1).T)


def attribution(model: LanguageModel, batches: Batches) -> Attribution:
    """The mean contribution of each stream to the correct token's logit."""
    return capture(model, batches, AttributionSums(streams_of(model, "attribution")))[0]


def attribute(
    model: LanguageModel, tokens: Tensor, targets: Tensor, documents: Tensor | None = None
) -> Tensor:
    """[B, T, S] What each stream adds to the logit of `targets` [B, T] after each of `tokens` [B, T]; NaN
    where there is no target (−100).
    """
    model = streams_of(model, "attribution")
    model.check_tokens(tokens, documents=documents, targets=targets)
    check_targets(targets, model.config.vocab_size)
    point = points_of(model)[-1]
    with model.evaluating(), torch.inference_mode():
        readout = Readout(model)
        kept: list[Tensor] = []
        with model.hooks([(point, lambda value, _: kept.append(value))]):
            model.output_embedding(tokens, documents=documents)
        parts = readout.parts(stream_major(model.at_tokens(kept[0])))
        found = torch.linalg.vecdot(parts, readout.unembedding[targets.clamp(min=0)]).permute(1, 2, 0)
        return found.masked_fill((targets == IGNORE)[..., None], torch.nan)


register(Analysis(Attribution, lambda request: AttributionSums(request.model), has_streams, needs="outputs"))
