"""Interventions: change something inside the model on purpose, and see what becomes of the prediction.

Three kinds of change, each a list of hooks for `effect` (or for `model.hooks` and `model.run_with_hooks`;
lists can be added):

    replace_streams   put the mean, zero, or another token's state in place of some streams after some layers
    cut_edges         take edges (layer, head, target, source) out of the pattern, at all tokens or one,
                      renormalised or not
    patch_streams     put in streams from a run on another prompt or from another layer, at all or some tokens

    >>> import srmlab, srmlab.analysis, torch
    >>> from srmlab.analysis import interventions
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> tokens, other = torch.arange(32)[None], torch.arange(50, 82)[None]
    >>> cut = interventions.cut_edges([(3, None, 0, 5)])        # layer 3: stream 0 cannot hear stream 5
    >>> effect = srmlab.analysis.effect(model, tokens, cut)
    >>> effect.kl.shape                                         # batch, token
    (1, 32)
    >>> patch = interventions.patch_streams(model, other, streams=[2], layer=4)
    >>> bool(srmlab.analysis.effect(model, tokens, patch).mean_kl > 0)
    True

`interaction` asks of all pairs of streams whether ablating both costs more or less than the two alone: joint
KL − (KL_i + KL_j). Positive: each covers for the other; negative: without the one, the other was of less use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.ablation import BITS, By, FinalAblation, Layers, check_by, other_tokens, points_at
from srmlab.analysis.capture import (
    Batch,
    Batches,
    EvidenceSums,
    Mean,
    as_batch,
    capture,
    evaluating,
    observe,
    read_twice,
)
from srmlab.analysis.readout import chunks, kl_divergence
from srmlab.analysis.registry import Analysis, Request, has_streams, register, streams_of
from srmlab.analysis.result import Array, Axes, Evidence, Measured, Result, derived, require
from srmlab.analysis.states import StateMeans, StateSums, means_in
from srmlab.errors import UserError
from srmlab.models import SRM, HookPoint, LanguageModel

Hook = tuple[str, Callable[[Tensor, HookPoint], Tensor | None]]
# layer, head, target, source, and token if it is not at all of them; None means all
Edge = (
    tuple[int, int | None, int | None, int | None]
    | tuple[int, int | None, int | None, int | None, int | None]
)


def replace_streams(
    model: LanguageModel,
    streams: Iterable[int],
    layers: Layers = "every",
    by: By = "mean",
    means: StateMeans | None = None,
    seed: int = 0,
) -> list[Hook]:
    """Hooks that replace streams after some layers ("last", "every", or layer numbers)."""
    model = streams_of(model, "replace_streams")
    check_by(by)
    if by == "mean" and means is None:
        raise UserError('by = "mean" needs means = srmlab.analysis.state_means(model, batches)')
    chosen = _checked_streams(model, streams)
    points = points_at(model, layers)
    if by == "mean" and means is not None:
        means.check(model, points)

    def replace(value: Tensor, hook: HookPoint) -> Tensor:
        value = value.clone()
        if by == "zero":
            value[:, :, chosen] = 0
        elif by == "mean":
            assert means is not None
            value[:, :, chosen] = means.at(hook.name, value.device)[chosen].to(value.dtype)
        else:
            B, T = value.shape[:2]
            other = other_tokens(B * T, seed).to(value.device)
            value[:, :, chosen] = value[:, :, chosen].flatten(0, 1)[other].unflatten(0, (B, T))
        return value

    return [(point, replace) for point in points]


def cut_edges(edges: Iterable[Edge], renormalise: bool = True) -> list[Hook]:
    """Hooks that set edges of the connection's pattern to zero; renormalised, a target's other edges grow to
    add up to 1."""
    by_layer: dict[int, list[tuple]] = {}
    for layer, head, target, source, *token in edges:
        place = (*(token or [None]), head, target, source)
        by_layer.setdefault(layer, []).append(tuple(slice(None) if at is None else at for at in place))

    def cutter(places: list[tuple]) -> Callable[[Tensor, HookPoint], Tensor]:
        def cut(pattern: Tensor, hook: HookPoint) -> Tensor:
            pattern = pattern.clone()
            for place in places:
                _check_edge(place, pattern, hook)
                pattern[(slice(None), *place)] = 0
            if renormalise:
                pattern = pattern / pattern.sum(-1, keepdim=True).clamp(min=1e-12)
            return pattern

        return cut

    return [(f"layers.{layer}.connection.pattern", cutter(places)) for layer, places in by_layer.items()]


def _check_edge(place: tuple, pattern: Tensor, hook: HookPoint) -> None:
    for axis, at, size in zip(("token", "head", "target", "source"), place, pattern.shape[1:], strict=True):
        if not isinstance(at, slice) and not -size <= at < size:
            raise UserError(f"cut_edges at {hook.name}: {axis} {at}, give one of 0 to {size - 1}")


def patch_streams(
    model: LanguageModel,
    source: Tensor,
    streams: Iterable[int],
    layer: int,
    from_layer: int | None = None,
    tokens: Iterable[int] | None = None,
    from_tokens: Iterable[int] | None = None,
) -> list[Hook]:
    """Hooks that put in, after `layer`, the streams that a run on `source` [B, T] has after `from_layer` (the
    same by default). At all tokens, of prompts of one length; or at `tokens`, from those of the source at
    `from_tokens` (the same by default), of prompts of any length."""
    model = streams_of(model, "patch_streams")
    chosen = _checked_streams(model, streams)
    (to,) = points_at(model, [layer])
    (origin,) = points_at(model, [layer if from_layer is None else from_layer])
    if tokens is None and from_tokens is not None:
        raise UserError("from_tokens goes with tokens: say where in the prompt they are put")
    at = None if tokens is None else list(tokens)
    origins = at if from_tokens is None else list(from_tokens)
    if at is not None and origins is not None and len(at) != len(origins):
        raise UserError(f"{len(origins)} tokens of the source for {len(at)} of the prompt: give one for each")
    with evaluating(model), torch.inference_mode():
        _, cache = model.run_with_cache(source.to(model.device), origin)
    given = cache[origin].clone()
    if origins is not None:
        given = given[:, _checked_tokens(origins, given.shape[1], "the source")]

    def patch(value: Tensor, hook: HookPoint) -> Tensor:
        places = slice(None) if at is None else _checked_tokens(at, value.shape[1], "the prompt")
        value = value.clone()
        patched = value[:, places]
        if patched.shape[:2] != given.shape[:2]:
            raise UserError(
                f"the patch at {hook.name} is of {tuple(given.shape[:2])} tokens, "
                f"the prompt of {tuple(patched.shape[:2])}; give both the same shape [batch, token], or "
                "say which tokens"
            )
        patched = patched.clone()
        patched[:, :, chosen] = given[:, :, chosen].to(value.dtype)
        value[:, places] = patched
        return value

    return [(to, patch)]


def _checked_tokens(tokens: list[int], length: int, whose: str) -> list[int]:
    for token in tokens:
        if not -length <= token < length:
            raise UserError(f"token {token} of {whose}: it has {length}")
    return tokens


@dataclass(frozen=True, kw_only=True, eq=False)
class Effect(Result):
    kind: ClassVar[str] = "effect"
    drawn: ClassVar[bool] = False

    kl: Annotated[Array, Axes("batch token", "nats, KL(unchanged ‖ changed)")]
    loss_before: Annotated[Array, Axes("batch token", "nats, NaN where there is no target")]
    loss_after: Annotated[Array, Axes("batch token", "nats, NaN where there is no target")]
    top_tokens: Annotated[
        Array, Axes("batch rank", "token ids, most changed probability after the last token first")
    ]
    top_before: Annotated[Array, Axes("batch rank", "probability unchanged")]
    top_after: Annotated[Array, Axes("batch rank", "probability changed")]

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool((self.kl >= 0).all()), "a KL divergence is not negative")

    @property
    @derived("", "nats")
    def mean_kl(self) -> float:
        """Nats, over all tokens."""
        return float(self.kl.mean())

    @property
    @derived("", "bits")
    def mean_bits(self) -> float:
        return self.mean_kl * BITS

    @property
    @derived("", "nats")
    def loss_change(self) -> float:
        """Nats, over all tokens with a target."""
        change = self.loss_after - self.loss_before
        return float(np.nanmean(change)) if np.isfinite(change).any() else float("nan")

    def headline(self) -> str:
        kl, bits = self.told("mean_kl", ".4g"), self.told("mean_bits", ".4g")
        return f"KL {kl} nats ({bits} bits), loss {self.told('loss_change', '+.4f')} nats"

    def summary(self, decode: Callable[[int], str] | None = None) -> str:
        """Pass a tokenizer's decoding of one id to read tokens instead of numbers."""
        name = decode or (lambda token: f"#{token}")
        lines = [f"Effect ({self.evidence})", f"  {self.headline()}"]
        for row, tokens in enumerate(self.top_tokens):
            moved = ", ".join(
                f"{name(int(token))!r} {self.top_before[row, k]:.3f}→{self.top_after[row, k]:.3f}"
                for k, token in enumerate(tokens)
            )
            lines.append(f"  after sequence {row}: {moved}")
        return "\n".join(lines)


def effect(
    model: LanguageModel, tokens: Tensor, hooks: Sequence[Hook], targets: Tensor | None = None, top: int = 10
) -> Effect:
    """What hooks do to the predictions after `tokens` [B, T]."""
    batch = as_batch(tokens if targets is None else (tokens, targets), 0, model.device)
    model.check_tokens(batch.tokens, targets=batch.targets)
    with evaluating(model), torch.inference_mode():
        with model.hooks(
            [(name, _listen) for name, _ in hooks]
        ):  # the same arithmetic as in the changed pass
            before = Prediction(*observe(model, batch), model.unembedding.float())
        with model.hooks(hooks):
            after = Prediction(*observe(model, batch), model.unembedding.float())
        kl, losses = _compare(before, after, batch)
        T = batch.tokens.shape[1]
        p, q = (found.log_p(slice(T - 1, None, T)).exp() for found in (before, after))
    ranked = (q - p).abs().topk(min(top, p.shape[-1]), dim=-1).indices
    text = EvidenceSums()
    text.begin(batch)
    shape = batch.tokens.shape
    mean_kl, change = Mean(), Mean()
    mean_kl.add(batch, kl.view(shape).sum(1))
    change.add(batch, (losses[1] - losses[0]).view(shape).nansum(1), batch.counted.sum(1))
    return Effect(
        evidence=text.result(),
        errors={
            "mean_kl": mean_kl.standard_error,
            "mean_bits": np.asarray(mean_kl.standard_error * BITS),
            "loss_change": change.standard_error,
        },
        kl=_array(kl.view(shape)),
        loss_before=_array(losses[0].view(shape)),
        loss_after=_array(losses[1].view(shape)),
        top_tokens=ranked.cpu().numpy(),
        top_before=_array(p.gather(-1, ranked)),
        top_after=_array(q.gather(-1, ranked)),
    )


def _listen(value: Tensor, hook: HookPoint) -> None:
    """Changes nothing."""


class Prediction:
    """The next-token distributions of a pass: of its logits if they were looked at, else of its embedding."""

    def __init__(self, embedding: Tensor, logits: Tensor | None, unembedding: Tensor) -> None:
        self.embedding, self.unembedding = embedding.flatten(0, 1), unembedding
        self.logits = None if logits is None else logits.flatten(0, 1)

    def log_p(self, rows: slice) -> Tensor:
        """[n, V] Log-probabilities after some of the B·T positions."""
        if self.logits is not None:
            return self.logits[rows].float().log_softmax(-1)
        return (self.embedding[rows].float() @ self.unembedding.T).log_softmax(-1)


def _compare(before: Prediction, after: Prediction, batch: Batch) -> tuple[Tensor, Tensor]:
    """KL [N] and the losses before and after [2, N] (NaN without target) of two passes."""
    targets = batch.targets.flatten()
    N, device = len(targets), targets.device
    kl, losses = torch.empty(N, device=device), torch.empty(2, N, device=device)
    for rows in chunks(N, len(before.unembedding)):
        p, q = before.log_p(rows), after.log_p(rows)
        kl[rows] = kl_divergence(p, q)
        index = targets[rows].clamp(min=0)[:, None]
        losses[:, rows] = -torch.stack([p.gather(-1, index), q.gather(-1, index)]).squeeze(-1)
    return kl, losses.masked_fill(~batch.counted.flatten(), torch.nan)


@dataclass(frozen=True, kw_only=True, eq=False)
class Interaction(Result):
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

    @property
    @derived("", "share of pairs")
    def positive_share(self) -> float:
        """The share of pairs in which each covers for the other; NaN without pairs."""
        signs = [self.interaction[pair] > 0 for pair in self.pairs]
        return float(np.mean(signs)) if signs else float("nan")

    def headline(self) -> str:
        return ", ".join(f"S{a}·S{b} {self.interaction[a, b]:+.3f}" for a, b in self.pairs[:3]) + " nats"

    def summary(self) -> str:
        lines = [
            f"Interaction of streams under joint ablation by {self.by} ({self.evidence})",
            f"  positive, each covering for the other, in {self.told('positive_share', '.0%')} "
            f"of {len(self.pairs)} pairs",
        ]
        for a, b in self.pairs[:6]:
            joint, more = self.told("joint", at=(a, b)), self.told("interaction", "+.4f", (a, b))
            lines.append(f"  S{a} and S{b}: joint {joint}, more than the sum by {more} nats")
        return "\n".join(lines)


class InteractionSums(FinalAblation):
    def __init__(self, model: SRM, by: By = "mean", means: StateMeans | None = None) -> None:
        S = model.config.streams
        self.pairs = list(combinations(range(S), 2))
        super().__init__(model, by, means, [(s,) for s in range(S)] + self.pairs)
        self.first = [a for a, _ in self.pairs]
        self.second = [b for _, b in self.pairs]
        self.means["interaction"] = Mean(len(self.pairs))

    def measured(self, batch: Batch, kl: Tensor) -> None:
        S = self.model.config.streams
        beyond = kl[S:] - kl[self.first] - kl[self.second]
        self.means["interaction"].add(batch, beyond.sum(-1).T)

    def result(self, evidence: Evidence) -> Interaction:  # pyright: ignore[reportIncompatibleMethodOverride]
        S = self.model.config.streams

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
        (means,) = capture(model, read_twice(batches), StateSums(model, last=True))
    return capture(model, batches, InteractionSums(model, by, means))[0]


def _checked_streams(model: SRM, streams: Iterable[int]) -> list[int]:
    chosen = list(streams)
    if not chosen or any(not 0 <= s < model.config.streams for s in chosen):
        raise UserError(f"streams = {chosen}: give some of 0 to {model.config.streams - 1}")
    return chosen


def _array(value: Tensor) -> Array:
    return value.detach().cpu().double().numpy()


def _accumulator(request: Request) -> InteractionSums:
    return InteractionSums(streams_of(request.model, "interaction"), "mean", means_in(request))


register(Analysis(Interaction, _accumulator, has_streams, needs="means"))
