"""The output function, stream by stream. It is linear, so much about it is exact and cheap.

    embedding = Σ_s W_s z_s              what each stream adds is one term (`Readout.parts`)
    logits    = U · embedding

Removing a stream moves the embedding by a known δ and the logits by Δ = Uδ. With p the full distribution,

    KL(full ‖ changed) = log Σ_v p_v exp(Δ_v) − Σ_v p_v Δ_v = logsumexp(log p + Uδ) − (Σ_v p_v U_v)·δ

so each change costs one unembedding, fused with the addition of log p, and one logsumexp; Σ_v p_v U_v is
shared by all changes. The sum is over small differences rather than over logits, which keeps small KLs
precise, and is exactly 0 for δ = 0. Rows go through the vocabulary in chunks: memory does not depend on the
number of tokens.

    >>> import torch
    >>> unembedding, embedding = torch.randn(50, 8), torch.randn(3, 8)
    >>> delta = torch.randn(1, 3, 8)
    >>> kl, _ = kl_of_changes(embedding, delta, unembedding)
    >>> full, changed = ((e @ unembedding.T).log_softmax(-1) for e in (embedding, embedding + delta[0]))
    >>> torch.allclose(kl[0], (full.exp() * (full - changed)).sum(-1), atol=1e-4)
    True
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from srmlab.analysis.capture import Mean, Placed
from srmlab.models import LanguageModel
from srmlab.models.loss import IGNORE, token_losses

BITS = 1 / math.log(2)  # bits in a nat
CHUNK_BYTES = 4 * 2**20  # of logits held at once, as long as a chunk has enough rows for an efficient matmul
MIN_ROWS, MAX_ROWS = 256, 4096


class Readout:
    """The output function by stream."""

    def __init__(self, model: LanguageModel) -> None:
        weight = model.stream_readout
        assert weight is not None, "checked by whoever asks for streams"
        self.weight = weight.detach().float().contiguous()  # [S, D, E]
        self.unembedding = model.unembedding.detach().float()

    def parts(self, z: Tensor) -> Tensor:
        """States [S, …, D] → what each stream adds to the embedding, [S, …, E]."""
        flat = z.float().reshape(z.shape[0], -1, z.shape[-1])
        return torch.bmm(flat, self.weight).view(*z.shape[:-1], -1)


def chunks(rows: int, vocabulary: int) -> Iterator[slice]:
    size = min(MAX_ROWS, max(MIN_ROWS, CHUNK_BYTES // (4 * vocabulary)))
    yield from (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def log_total_(logits: Tensor, bounded: bool = False) -> Tensor:
    """logsumexp over the last axis of [N, V], destroying the logits.

    Most rows need no shift by their maximum, which saves two of four passes; the rest are redone with it.
    `bounded`: the caller knows that no row needs it.
    """
    extreme = None if bounded else logits.amax(-1).abs() > 60
    if extreme is None or not bool(extreme.any()):
        return logits.exp_().sum(-1).log_()
    shifted = logits[extreme].logsumexp(-1)
    total = logits.exp_().sum(-1).log_()
    total[extreme] = shifted
    return total


def kl_of_changes(
    embedding: Tensor, changes: Tensor, unembedding: Tensor, targets: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What K changes of the embedding do to the next-token distribution.

    embedding [N, E], changes [K, N, E], unembedding [V, E], targets [N] (−100: none). Returns KL(full ‖
    changed) [K, N] in nats, and the change of the target's loss [K, N] in nats (0 where there is no target).
    """
    K, N, _ = changes.shape
    kl = torch.empty(K, N, device=embedding.device)
    loss = torch.zeros(K, N, device=embedding.device)
    buffer: Tensor | None = None
    reach = (
        torch.linalg.vector_norm(unembedding, dim=-1).max() * torch.linalg.vector_norm(changes, dim=-1).max()
    )
    bounded = bool(reach < 40)  # no logit moves by more, so log p + Uδ stays in range
    for rows in chunks(N, unembedding.shape[0]):
        log_p = (embedding[rows] @ unembedding.T).log_softmax(-1)
        if buffer is None or buffer.shape != log_p.shape:
            buffer = torch.empty_like(log_p)
        expected = torch.exp(log_p, out=buffer) @ unembedding  # Σ p_v U_v, [n, E]
        base = buffer.sum(-1).log_()  # 0 but for rounding, which it cancels
        wanted = None if targets is None else unembedding[targets[rows].clamp(min=0)]
        product = torch.empty_like(expected)  # small tensors again and again: their memory is reused
        for k in range(K):
            delta = changes[k, rows]
            moved = torch.addmm(log_p, delta, unembedding.T, out=buffer)
            growth = log_total_(moved, bounded) - base
            kl[k, rows] = growth - torch.mul(expected, delta, out=product).sum(-1)
            if targets is not None and wanted is not None:
                gain = torch.mul(wanted, delta, out=product).sum(-1)
                loss[k, rows] = (growth - gain) * (targets[rows] != IGNORE)
    return kl.clamp_(min=0), loss


def add_changes(
    means: dict[str, Mean], batch: Placed, embedding: Tensor, changes: Tensor, unembedding: Tensor
) -> Tensor:
    """[K, B, T] The KL that each of the changes [K, B, T, E] of the embedding [B, T, E] makes; added to the
    means "kl" and "loss_change"."""
    kl, loss = (
        found.view(-1, *batch.tokens.shape)
        for found in kl_of_changes(
            embedding.float().flatten(0, 1), changes.flatten(1, 2), unembedding, batch.targets.flatten()
        )
    )
    means["kl"].add(batch, kl.sum(-1).T)
    means["loss_change"].add(batch, loss.sum(-1).T)
    return kl


def changes_by(
    model: LanguageModel, batch: Placed, embedding: Tensor, hooks: Iterable[tuple[Any, Any]]
) -> Tensor:
    """[K, B, T, E] How each of K hooks alone changes the embedding [B, T, E]: a pass for each."""
    changed = []
    for hook in hooks:
        with model.hooks([hook]):
            hidden = model.output_embedding(batch.tokens, documents=batch.documents)
        changed.append(hidden.float() - embedding.float())
    return torch.stack(changed)


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p ‖ q) in nats over the last axis of log-probabilities; never negative."""
    return (log_p.exp() * (log_p - log_q)).sum(-1).clamp(min=0)


def log_probabilities(embedding: Tensor, unembedding: Tensor, targets: Tensor) -> Tensor:
    """The log-probability [N] in nats of each row's target under logits = embedding·unembeddingᵀ (0 where
    there is none)."""
    found = torch.empty(embedding.shape[0], device=embedding.device)
    buffer = None
    for rows in chunks(embedding.shape[0], unembedding.shape[0]):
        part = embedding[rows]
        if buffer is None or buffer.shape[0] != part.shape[0]:
            buffer = part.new_empty(part.shape[0], unembedding.shape[0])
        total = log_total_(torch.mm(part, unembedding.T, out=buffer))
        target = targets[rows]
        logit = torch.linalg.vecdot(part, unembedding[target.clamp(min=0)])
        found[rows] = (logit - total).clamp(max=0) * (target != IGNORE)  # rounding may put it above 0
    return found


def sequence_losses(embedding: Tensor, unembedding: Tensor, targets: Tensor) -> Tensor:
    """[B] The sum over each sequence of its targets' losses in nats: embedding [B, T, E], targets [B, T]."""
    return token_losses(embedding.float(), unembedding, targets).sum(1)
