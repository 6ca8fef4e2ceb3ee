"""Stream similarity: have the streams become alike, so that many do the work of one?

At every point in depth, the mean over tokens of the cosine similarity between the states of two streams. Each
stream has its own basis, so that untrained ones are near 0, and a cosine of 1 means the same state in the
same basis; the same content in different bases is not detected.

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> found = srmlab.analysis.stream_similarity(model, [torch.arange(64).view(2, 32)])
    >>> found.cosine.shape                                          # point, stream, other
    (8, 8, 8)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from srmlab.analysis.capture import Accumulator, Batches, Mean, capture
from srmlab.analysis.registry import Analysis, register
from srmlab.analysis.result import Array, Measured, Result, derived
from srmlab.analysis.states import PointReader
from srmlab.errors import UserError
from srmlab.models import LanguageModel


def pairs(streams: int) -> tuple[Array, Array]:
    """The indices of all pairs of different streams."""
    return np.triu_indices(streams, 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class StreamSimilarity(Result):
    """How alike the streams are; made by `stream_similarity`."""

    kind: ClassVar[str] = "stream_similarity"

    points: tuple[str, ...]
    streams: tuple[str, ...]
    cosine: Annotated[Array, Measured("point stream other", "cosine of two states, mean over tokens")]

    @derived("point", "cosine")
    def by_depth(self) -> Array:
        """[point] The mean over pairs of different streams."""
        return self.cosine[:, *pairs(len(self.streams))].mean(1)

    @derived("point", "cosine")
    def most_alike(self) -> Array:
        """[point] The cosine of the two streams most alike."""
        return self.cosine[:, *pairs(len(self.streams))].max(1)

    @derived("", "cosine")
    def last(self) -> float:
        """The mean over pairs at the last point."""
        return float(self.by_depth[-1])

    def headline(self) -> str:
        return (
            f"cosine between streams {self.by_depth[0]:+.2f} at first, {self.last:+.2f} at the end; "
            f"the two most alike {self.most_alike[-1]:+.2f}"
        )

    def summary(self) -> str:
        lines = [f"Similarity of streams: cosine between their states at a token ({self.evidence})"]
        for p, point in enumerate(self.points):
            mean, most = (self.text(name, "+.3f", (p,)) for name in ("by_depth", "most_alike"))
            lines.append(f"  {point}: mean {mean}, the two most alike {most}")
        return "\n".join(lines)


class StreamPairs(Accumulator):
    makes = StreamSimilarity

    def __init__(self, model: LanguageModel) -> None:
        if not has_several_streams(model):
            raise UserError(f"stream_similarity compares streams; {type(model).__name__} has one")
        self.reader = PointReader(model)
        self.known, self.sites = {"points": self.reader.names, "streams": model.streams}, self.reader.sites
        S = len(model.streams)
        self.means = {"cosine": Mean(len(self.reader), S, S)}

    def see(self, name: str, value: Tensor) -> None:
        if found := self.reader.see(name, value):
            unit = F.normalize(found[1].float(), dim=-1)  # [B, T, S, D]
            self.sums["cosine"][:, found[0]] = torch.einsum("btsd,btrd->bsr", unit, unit)


def has_several_streams(model: LanguageModel) -> bool:
    return len(model.streams) > 1


def stream_similarity(model: LanguageModel, batches: Batches) -> StreamSimilarity:
    """How alike the states of the streams are, at every point in depth."""
    return capture(model, batches, StreamPairs(model))[0]


register(Analysis(StreamSimilarity, lambda request: StreamPairs(request.model), has_several_streams))
