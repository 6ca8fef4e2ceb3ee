"""The stream-wise logit lens: what one stream alone predicts about the next token, after every layer.

A state is decoded with the output function after layer t, with stream s kept and

    corrected    the other streams at their mean at that layer over the evaluation tokens ("mean-corrected")
    raw          the other streams at zero

and `full` keeps them all: at the last point that is the model itself. Reported is the mean log-probability of
the correct next token, in nats.

A model with post-steps has a point after each of them too. At a layer, the layer's own state is decoded: the
lens asks what is in it, and a post-step would add its own computation. `through_post` asks the other
question, what the model would predict if it stopped there: every layer's state first goes through the
post-steps, and the points are the layers.

The lens costs 2·S + 1 unembeddings per token and point, so it reads a random sample of positions
(`lens_tokens`).

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> found = srmlab.analysis.logit_lens(model, [torch.arange(64).view(2, 32)], lens_tokens=16)
    >>> found.corrected.shape                                   # point, stream
    (8, 8)
    >>> print(lens_cost(model, 4096))
    4,096 positions × 8 points × 17 decodings = 557,056 unembeddings, 0.073 TFLOP
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.capture import Accumulator, Batches, Mean, Placed, capture, placed, read_twice
from srmlab.analysis.readout import Readout, log_probabilities
from srmlab.analysis.registry import LENS_TOKENS, Analysis, Request, has_streams, register
from srmlab.analysis.result import Array, Evidence, Measured, Result, derived, require, require_named
from srmlab.analysis.states import Finished, StateMeans, StateSums, means_in, points_of, stream_major
from srmlab.errors import UserError
from srmlab.models import LanguageModel


@dataclass(frozen=True, kw_only=True, eq=False)
class LogitLens(Result):
    """What each stream alone predicts after every layer; made by `logit_lens`."""

    kind: ClassVar[str] = "logit_lens"

    points: tuple[str, ...]  # the sites decoded
    streams: tuple[str, ...]
    sampled: int  # positions decoded, of all those in the evidence
    corrected: Annotated[Array, Measured("point stream", "nats, mean log-probability of the correct token")]
    raw: Annotated[Array, Measured("point stream", "nats, mean log-probability of the correct token")]
    full: Annotated[Array, Measured("point", "nats, mean log-probability of the correct token")]

    def __post_init__(self) -> None:
        super().__post_init__()
        require_named(self.points, self.full)
        for name in ("corrected", "raw", "full"):
            require(bool((getattr(self, name) <= 1e-6).all()), f"{name}: a log-probability is not positive")

    @property
    def labels(self) -> list[str]:
        """The points in short: 0 … n−1 after the layers, "post 0" … after the post-steps."""
        return [
            point.removesuffix("+post").removeprefix("layers.").removesuffix(".out").replace(".", " ")
            for point in self.points
        ]

    @derived("mode point", "nats, mean log-probability of the correct token")
    def stream_mean(self) -> Array:
        """[corrected, raw; point] Mean over streams."""
        return np.stack([self.corrected.mean(1), self.raw.mean(1)])

    @derived("mode", "nats")
    def largest_fall(self) -> Array:
        """[corrected, raw] The largest fall of the mean over streams from one point to the next; 0 if it
        never falls."""
        return np.diff(self.stream_mean).min(1, initial=0.0)

    def headline(self) -> str:
        last = self.corrected[-1]
        best = int(last.argmax())
        return f"best alone {self.streams[best]} {last[best]:.2f}, all {self.full[-1]:.2f} nats"

    def summary(self) -> str:
        P = len(self.points)
        lines = [f"Stream-wise logit lens, {self.sampled:,} positions of {self.evidence}"]
        lines.append(f"  all streams: {', '.join(self.text('full', '.2f', (p,)) for p in range(P))} nats")
        for m, mode in enumerate(("corrected", "raw")):
            order = np.argsort(-getattr(self, mode)[-1], kind="stable")
            last = ", ".join(f"{self.streams[s]} {self.text(mode, '.2f', (P - 1, s))}" for s in order[:4])
            mean = ", ".join(self.text("stream_mean", ".2f", (m, p)) for p in range(P))
            lines.append(f"  {mode}, mean over streams: {mean}; at the end {last}")
            if self.largest_fall[m] < 0:
                t = int(np.diff(self.stream_mean[m]).argmin())
                fall = self.text("largest_fall", ".2f", (m,))
                lines.append(f"    the largest drop, {fall} nats: {self.points[t]} → {self.points[t + 1]}")
        return "\n".join(lines)


# What is to be decoded at a site, for some of the B·T positions: (field, point, stream), embeddings [n, E]
Asked = list[tuple[tuple[str, int, int], Tensor]]


class StreamDecoder:
    """For streams that add up to the output: each alone, the others at zero or at their mean."""

    def __init__(self, model: LanguageModel, means: StateMeans, through_post: bool = False) -> None:
        self.finished = Finished(model) if through_post else None
        self.points = points_of(model) if self.finished is None else self.finished.names
        means.check(model, self.points)
        self.sites: Sequence[str] = self.points if self.finished is None else self.finished.sites
        self.streams = model.streams
        self.readout = Readout(model)
        self.unembedding = self.readout.unembedding
        stacked = torch.stack([means.at(point, model.device) for point in self.points], dim=1)  # [S, P, D]
        self.mean_parts = self.readout.parts(stacked)  # [S, P, E]

    def decode(self, name: str, value: Tensor, chosen: Tensor, documents: Tensor | None) -> Asked:
        if self.finished is None:
            p = self.points.index(name)
        elif found := self.finished.see(name, value, documents):
            p, value = found
        else:
            return []
        parts = self.readout.parts(stream_major(value).flatten(1, 2)[:, chosen])  # [S, n, E]
        others = self.mean_parts[:, p].sum(0) - self.mean_parts[:, p]  # [S, E]
        asked = [(("full", p, -1), parts.sum(0))]
        for s in range(len(self.streams)):
            asked.append((("raw", p, s), parts[s]))
            asked.append((("corrected", p, s), parts[s] + others[s]))
        return asked


class PlainDecoder:
    """For models whose streams do not add up: each is read on its own, and there are no others to hold at
    their mean. HRM: z_L and z_H after every high cycle. GPT-2: the residual stream, through the final norm.
    Hyper-connections: each stream through that norm, which the output takes of their sum.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.streams = model.streams
        self.points = tuple(point.name for point in model.points)
        self.places = {
            site: (p, s) for p, point in enumerate(model.points) for s, site in enumerate(point.sites)
        }
        self.sites: Sequence[str] = list(self.places)
        self.unembedding = model.unembedding.detach().float()

    def decode(self, name: str, value: Tensor, chosen: Tensor, documents: Tensor | None) -> Asked:  # noqa: ARG002
        point, stream = self.places[name]
        state = value.flatten(0, 1)[chosen]  # [n, D]; of a site that has all streams [n, S, D]
        asked: Asked = []
        for s, one in enumerate(state.unbind(1)) if state.ndim == 3 else [(stream, state)]:
            embedding = self.model.read_stream(one, s)
            asked += [(("raw", point, s), embedding), (("corrected", point, s), embedding)]
            if state.ndim == 2 and s == len(self.streams) - 1:  # the one the output reads
                asked.append((("full", point, -1), embedding))
        if state.ndim == 3:
            asked.append((("full", point, -1), self.model.read_out(state)))
        return asked


class LensSums(Accumulator):
    makes = LogitLens
    needed = "full"

    def __init__(
        self,
        decoder: StreamDecoder | PlainDecoder,
        targets: int,
        lens_tokens: int | None,
        seed: int = 0,
    ) -> None:
        if lens_tokens is not None and lens_tokens < 1:
            raise UserError(f"lens_tokens = {lens_tokens}: must be at least 1, or None for every token")
        self.decoder, self.seed = decoder, seed
        self.sites = decoder.sites
        self.rate = 1.0 if lens_tokens is None else min(1.0, lens_tokens / max(targets, 1))
        self.settings = {"rate": self.rate, "seed": seed}
        P, S = len(decoder.points), len(decoder.streams)
        self.means = {"full": Mean(P), "raw": Mean(P, S), "corrected": Mean(P, S)}

    def begin(self, batch: Placed) -> None:
        super().begin(batch)
        self.documents = batch.documents
        self.chosen = sample_positions(batch, self.rate, self.seed)
        self.targets = batch.targets.flatten()[self.chosen]
        self.rows = self.chosen // batch.tokens.shape[1]  # the sequence each position is in
        self.tokens = torch.bincount(self.rows, minlength=len(batch.tokens))

    def see(self, name: str, value: Tensor) -> None:
        n = len(self.chosen)
        asked = self.decoder.decode(name, value, self.chosen, self.documents) if n else []
        if not asked:
            return
        stacked = torch.cat([embedding.float() for _, embedding in asked])
        found = log_probabilities(stacked, self.decoder.unembedding, self.targets.repeat(len(asked)))
        per_sequence = torch.zeros(len(asked), len(self.sums["full"]), device=found.device)
        per_sequence.index_add_(1, self.rows, found.view(len(asked), n))
        for ((field, point, stream), _), sums in zip(asked, per_sequence, strict=True):
            place = self.sums[field][:, point] if stream < 0 else self.sums[field][:, point, stream]
            place.copy_(sums)

    def result(self, evidence: Evidence) -> LogitLens:
        self.known = {
            "points": self.decoder.points,
            "streams": self.decoder.streams,
            "sampled": int(self.means["full"].total),
        }
        return super().result(evidence)


def sample_positions(batch: Placed, rate: float, seed: int) -> Tensor:
    """Positions of B·T with a target: all of them, or a random share that depends on seed and batch index
    alone. It is a share of the targets, so that a batch with few of them does not count for more."""
    positions = batch.counted.flatten().nonzero().squeeze(1)
    if rate >= 1:
        return positions
    count = max(1, round(rate * len(positions)))
    generator = torch.Generator().manual_seed(seed * 1_000_003 + batch.index)
    order = torch.randperm(len(positions), generator=generator)[:count]
    return positions[order.sort().values.to(positions.device)]


@dataclass(frozen=True)
class LensCost:
    positions: int
    points: int
    decodings: int  # of each position at each point
    flops: float

    def __str__(self) -> str:
        count = self.positions * self.points * self.decodings
        return (
            f"{self.positions:,} positions × {self.points} points × {self.decodings} decodings = "
            f"{count:,} unembeddings, {self.flops / 1e12:.3g} TFLOP"
        )


def lens_cost(model: LanguageModel, lens_tokens: int) -> LensCost:
    """What a lens over this many positions will cost, before it is run."""
    points, decodings = len(model.points), 2 * len(model.streams) + 1
    V, E = model.unembedding.shape
    return LensCost(lens_tokens, points, decodings, 2.0 * lens_tokens * points * decodings * V * E)


def logit_lens(
    model: LanguageModel,
    batches: Batches,
    lens_tokens: int | None = LENS_TOKENS,
    means: StateMeans | None = None,
    seed: int = 0,
    through_post: bool = False,
) -> LogitLens:
    """What each stream alone predicts about the next token. `means` saves the pass that measures them.

    `through_post` takes every layer's state through the post-steps before it is decoded.
    """
    if has_streams(model) and means is None:
        (means,) = capture(model, read_twice(batches), StateSums(model, through_post=through_post))
    return capture(model, batches, _sums(model, batches, lens_tokens, means, seed, through_post))[0]


def _sums(
    model: LanguageModel,
    batches: Batches,
    lens_tokens: int | None,
    means: StateMeans | None,
    seed: int = 0,
    through_post: bool = False,
) -> LensSums:
    if has_streams(model) and means is not None:
        decoder = StreamDecoder(model, means, through_post)
    else:
        decoder = PlainDecoder(model)
    targets = 0
    if lens_tokens is not None:
        targets = sum(int(batch.counted.sum()) for batch in placed(read_twice(batches), torch.device("cpu")))
    return LensSums(decoder, targets, lens_tokens, seed)


def _accumulator(request: Request) -> LensSums:
    means = means_in(request) if has_streams(request.model) else None
    return _sums(request.model, request.batches, request.lens_tokens, means)


register(Analysis(LogitLens, _accumulator, needs="means"))
