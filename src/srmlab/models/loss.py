"""Chunked cross-entropy: unembedding and loss, one chunk of tokens at a time, never holding all logits.

All logits of a training step would be the largest tensor of the whole computation ([tokens × 50257]: 200 KB
per token in fp32). Here a chunk's logits are computed, turned into their loss and its gradient right away,
and freed. The arithmetic is the same as with the full logits (three matmuls each way); only the peak memory
differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORE = -100  # targets with this id do not count
CHUNK = 1024  # tokens whose logits are held at once

_for_memory_alone = False


@contextmanager
def for_memory_alone() -> Iterator[None]:
    """While open only two chunks are computed, for fake tensors: all that come after take the same memory."""
    global _for_memory_alone
    before, _for_memory_alone = _for_memory_alone, True
    try:
        yield
    finally:
        _for_memory_alone = before


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        chunk: int,
        differentiate: bool,
        shares: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        counted = (targets != IGNORE).sum().clamp(min=1)
        total = torch.zeros(
            (), dtype=torch.float32 if hidden.dtype != torch.float64 else torch.float64, device=hidden.device
        )
        d_hidden = torch.empty_like(hidden) if differentiate and ctx.needs_input_grad[0] else None
        d_weight = torch.zeros_like(weight) if differentiate and ctx.needs_input_grad[1] else None
        losses = None if shares is None else torch.empty_like(shares, dtype=total.dtype)
        starts = range(0, hidden.shape[0], chunk)
        for start in starts[:2] if _for_memory_alone else starts:
            rows = slice(start, start + chunk)
            h, target = hidden[rows], targets[rows]
            used = target != IGNORE
            index = target.where(used, 0)[:, None]  # any other id beyond the vocabulary is an error
            logits = (h @ weight.T).to(total.dtype)
            log_total = logits.logsumexp(-1, keepdim=True)
            loss = (log_total - logits.gather(-1, index)).squeeze(-1) * used
            if shares is not None and losses is not None:
                losses[rows] = loss
                loss = loss * shares[rows]
            total += loss.sum()
            if d_hidden is None and d_weight is None:
                continue
            d_logits = logits.sub_(log_total).exp_()  # softmax, in the logits' own memory
            d_logits.scatter_add_(-1, index, d_logits.new_full(index.shape, -1.0))
            d_logits = d_logits.mul_(used[:, None]).div_(counted)
            if shares is not None:
                d_logits = d_logits.mul_(shares[rows, None])
            d_logits = d_logits.to(h.dtype)
            if d_hidden is not None:
                d_hidden[rows] = d_logits @ weight
            if d_weight is not None:
                d_weight += d_logits.T @ h
        ctx.save_for_backward(
            d_hidden, d_weight, None if losses is None else losses / counted, hidden, weight, targets, shares
        )
        if losses is not None:
            ctx.mark_non_differentiable(losses)
        return total / counted, losses

    @staticmethod
    def backward(ctx, *grads: Tensor | None):  # pyright: ignore[reportIncompatibleMethodOverride]
        d_hidden, d_weight, d_shares, hidden, weight, targets, shares = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient is to be differentiated in its turn
            parts = [part for part in (hidden, weight, shares) if part is not None and part.requires_grad]
            total = _plain(hidden, weight, targets, shares)
            found = iter(torch.autograd.grad(total, parts, grads[0], create_graph=True))
            d_hidden, d_weight, d_shares = (
                next(found) if part is not None and part.requires_grad else None
                for part in (hidden, weight, shares)
            )
            return d_hidden, d_weight, None, None, None, d_shares
        grad = grads[0]
        return (
            d_hidden * grad if d_hidden is not None else None,
            d_weight * grad if d_weight is not None else None,
            None,
            None,
            None,
            d_shares * grad if d_shares is not None else None,
        )


def _plain(hidden: Tensor, weight: Tensor, targets: Tensor, shares: Tensor | None) -> Tensor:
    """The same as a formula that torch differentiates, with all logits at once: for a second derivative."""
    logits = (hidden @ weight.T).to(torch.promote_types(hidden.dtype, torch.float32))
    losses = F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="none")
    losses = losses if shares is None else losses * shares
    return losses.sum() / (targets != IGNORE).sum().clamp(min=1)


def chunked_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int = CHUNK) -> Tensor:
    """Mean cross-entropy in nats of logits = hidden·weightᵀ; hidden [B, T, E], weight [V, E], targets [B,
    T].
    """
    rows = hidden.flatten(0, -2), weight, targets.flatten()
    if torch._C._are_functorch_transforms_active():  # vmap, grad, jvp, …: they take no such function
        return _plain(*rows, None)
    differentiate = torch.is_grad_enabled()  # inside the function it never is
    return _ChunkedCrossEntropy.apply(*rows, chunk, differentiate, None)[0]  # pyright: ignore[reportOptionalSubscript]


def shared_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, shares: Tensor, chunk: int = CHUNK
) -> tuple[Tensor, Tensor]:
    """The same with every token's loss times its share [B, T], through which the gradient flows too; and
    the losses themselves [B, T], without gradient.
    """
    differentiate = torch.is_grad_enabled()
    rows = hidden.flatten(0, -2), weight, targets.flatten()
    found = _ChunkedCrossEntropy.apply(*rows, chunk, differentiate, shares.flatten())
    total, losses = found  # pyright: ignore[reportGeneralTypeIssues]
    return total, losses.view_as(targets)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The same from given logits [B, T, V]."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORE, reduction="sum")
    return total / (targets != IGNORE).sum().clamp(min=1)


def token_losses(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of every token [B, T] in nats, 0 where none counts; hidden [B, T, E], weight [V, E]."""
    rows = zip(hidden.flatten(0, 1).split(CHUNK), targets.flatten().split(CHUNK), strict=True)
    wide = torch.promote_types(hidden.dtype, torch.float32)
    parts = [F.cross_entropy((h @ weight.T).to(wide), target, reduction="none") for h, target in rows]
    return torch.cat(parts).view_as(targets)
