"""Token similarity: have the states of different tokens become alike (collapse)?

At every point in depth, for every stream, the mean cosine similarity between the states of two different
tokens in a window, over all pairs. 1: every token has the same state, up to its norm, and the model can only
predict token frequencies. States that share a mean are similar without having collapsed: compare with the
same number for untrained twins.

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("hrm-nano"))
    >>> found = srmlab.analysis.token_similarity(model, [torch.arange(64).view(2, 32)])
    >>> found.cosine.shape                                          # high cycles, nets
    (3, 2)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from srmlab.analysis.capture import Accumulator, Batches, Mean, Placed, capture
from srmlab.analysis.registry import Analysis, register
from srmlab.analysis.result import Array, Measured, Result, derived
from srmlab.analysis.states import PointReader
from srmlab.models import LanguageModel


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenSimilarity(Result):
    """How alike the states of different tokens are; made by `token_similarity`."""

    kind: ClassVar[str] = "token_similarity"

    points: tuple[str, ...]
    streams: tuple[str, ...]
    cosine: Annotated[Array, Measured("point stream", "cosine, mean over pairs of tokens of a window")]

    @derived("point", "cosine")
    def by_depth(self) -> Array:
        """[point] The mean over streams."""
        return self.cosine.mean(1)

    @derived("", "cosine")
    def last(self) -> float:
        """At the last point, whose states are read out."""
        return float(self.by_depth[-1])

    def headline(self) -> str:
        return f"cosine between tokens {self.by_depth[0]:.2f} at first, {self.last:.2f} at the end"

    def summary(self) -> str:
        lines = [f"Similarity of tokens: cosine between states of different tokens ({self.evidence})"]
        for p, point in enumerate(self.points):
            shown = " ".join(f"{value:+.2f}" for value in self.cosine[p])
            lines.append(f"  {point}: mean {self.text('by_depth', at=(p,))}; by stream {shown}")
        return "\n".join(lines)


class TokenPairs(Accumulator):
    makes = TokenSimilarity

    def __init__(self, model: LanguageModel) -> None:
        self.reader = PointReader(model)
        self.known, self.sites = {"points": self.reader.names, "streams": model.streams}, self.reader.sites
        self.means = {"cosine": Mean(len(self.reader), len(model.streams))}

    def begin(self, batch: Placed) -> None:
        super().begin(batch)
        ids = torch.zeros_like(batch.tokens) if batch.documents is None else batch.documents
        self.documents = [(ids == d)[:, :, None, None] for d in ids.unique()]  # [B, T, 1, 1]
        sizes = torch.stack([document.flatten(1).sum(1) for document in self.documents])  # [document, B]
        self.tokens = torch.where(sizes > 1, sizes, 0).sum(0)  # one token has no other

    def see(self, name: str, value: Tensor) -> None:
        if (found := self.reader.see(name, value)) is None:
            return
        unit = F.normalize(found[1].float(), dim=-1)  # [B, T, S, D]
        total = unit.new_zeros(unit.shape[0], unit.shape[2])
        for document in self.documents:  # tokens of different documents have nothing to do with each other
            mine = unit * document
            cosines = mine.sum(1).square().sum(-1) - mine.square().sum((1, 3))  # [B, S], of all i ≠ j
            total += cosines / (document.sum(1)[..., 0] - 1).clamp(min=1)  # a mean over pairs, times tokens
        self.sums["cosine"][:, found[0]] = total


def token_similarity(model: LanguageModel, batches: Batches) -> TokenSimilarity:
    """How alike the states of different tokens are, at every point and in every stream."""
    return capture(model, batches, TokenPairs(model))[0]


register(Analysis(TokenSimilarity, lambda request: TokenPairs(request.model)))
