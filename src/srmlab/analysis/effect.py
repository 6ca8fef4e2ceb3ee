"""Effect: what a change inside the model does to its predictions.

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> cut = srmlab.analysis.cut_edges(model, [(3, None, 0, 5)])  # layer 3: stream 0 cannot read stream 5
    >>> found = srmlab.analysis.effect(model, torch.arange(32)[None], cut)
    >>> found.kl.shape                                            # batch, token
    (1, 32)

The changes are hooks, from interventions.py or your own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.capture import Mean, Placed, evidence_of, observe, place
from srmlab.analysis.interventions import Hook
from srmlab.analysis.readout import BITS, chunks, kl_divergence
from srmlab.analysis.result import Array, Axes, Result, derived, require
from srmlab.models import HookPoint, LanguageModel


@dataclass(frozen=True, kw_only=True, eq=False)
class Effect(Result):
    """What a change inside the model does at every token; made by `effect`."""

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

    @derived("", "nats")
    def mean_kl(self) -> float:
        """Nats, over all tokens."""
        return float(self.kl.mean())

    @derived("", "bits")
    def mean_bits(self) -> float:
        return self.mean_kl * BITS

    @derived("", "nats")
    def loss_change(self) -> float:
        """Nats, over all tokens with a target."""
        change = self.loss_after - self.loss_before
        return float(np.nanmean(change)) if np.isfinite(change).any() else float("nan")

    def headline(self) -> str:
        return f"KL {self.text('mean_bits', '.4g')} bits, loss {self.text('loss_change', '+.4f')} nats"

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
    batch = place(tokens if targets is None else (tokens, targets), model.device)
    model.check_tokens(batch.tokens, targets=batch.targets)
    with model.evaluating(), torch.inference_mode():
        listening = [(name, _listen) for name, _ in hooks]  # the same arithmetic as in the changed pass
        before, after = (_predictions(model, batch, some) for some in (listening, hooks))
        kl, losses = _compare(before, after, batch, model.config.vocab_size)
        T = batch.tokens.shape[1]
        p, q = (log_p(slice(T - 1, None, T)).exp() for log_p in (before, after))
    ranked = (q - p).abs().topk(min(top, p.shape[-1]), dim=-1).indices
    shape = batch.tokens.shape
    mean_kl, change = Mean(), Mean(over="targets")
    mean_kl.add(batch, kl.view(shape).sum(1))
    change.add(batch, (losses[1] - losses[0]).view(shape).nansum(1))
    return Effect(
        evidence=evidence_of([batch]),
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


LogP = Callable[[slice], Tensor]  # some of the B·T positions → log-probabilities of the next token [n, V]


def _predictions(model: LanguageModel, batch: Placed, hooks: Sequence[Hook]) -> LogP:
    """The next-token distributions of a pass: of its logits if they were looked at, else of its embedding."""
    with model.hooks(hooks):
        embedding, logits = observe(model, batch)
    unembedding = model.unembedding.float()

    def log_p(rows: slice) -> Tensor:
        if logits is not None:
            return logits.flatten(0, 1)[rows].float().log_softmax(-1)
        return (embedding.flatten(0, 1)[rows].float() @ unembedding.T).log_softmax(-1)

    return log_p


def _compare(before: LogP, after: LogP, batch: Placed, vocabulary: int) -> tuple[Tensor, Tensor]:
    """KL [N] and the losses before and after [2, N] (NaN without target) of two passes."""
    targets = batch.targets.flatten()
    N, device = len(targets), targets.device
    kl, losses = torch.empty(N, device=device), torch.empty(2, N, device=device)
    for rows in chunks(N, vocabulary):
        p, q = before(rows), after(rows)
        kl[rows] = kl_divergence(p, q)
        index = targets[rows].clamp(min=0)[:, None]
        losses[:, rows] = -torch.stack([p.gather(-1, index), q.gather(-1, index)]).squeeze(-1)
    return kl, losses.masked_fill(~batch.counted.flatten(), torch.nan)


def _array(value: Tensor) -> Array:
    return value.detach().cpu().double().numpy()
