"""Reading token distributions out of the streams: the arithmetic behind lens, attribution and ablation.

The output function is linear, so the output embedding is a sum with one part for each stream:

    output embedding = Σ_s W_s z_s          W_s the columns of `from_streams` that belong to stream s

Decoding one stream alone, ablating it or asking for its part in a logit is then arithmetic on S small vectors
a token; the model need not run again.

Axes:  L layer   N tick   T token   S stream   D stream dim   E embedding   V vocabulary   K rank
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from srm.models import SRM

LOG2E = 1 / math.log(2)


def stream_parts(model: SRM, z: Tensor) -> Tensor:
    """z [..., S, D] → what each stream writes to the output embedding, [..., S, E]."""
    config = model.config
    weight = model.output_function.from_streams.weight.view(
        config.embedding_dim, config.streams, config.stream_dim
    )
    return torch.einsum("...sd,esd->...se", z, weight)


def log_probs(model: SRM, embedding: Tensor) -> Tensor:
    """[..., E] → log-probabilities [..., V] in float32."""
    return torch.log_softmax((embedding @ model.unembedding.T).float(), dim=-1)


def top_lens(model: SRM, embedding: Tensor, target: Tensor, ranks: int) -> tuple[Tensor, Tensor, Tensor]:
    """embedding [N, T, E], target [T] → ids [N, T, K], their log-probs, and the target's [N, T].

    One row of N at a time: at 50,257 words a full table of log-probabilities is too large to hold.
    """
    ids, values, targets = [], [], []
    for row in embedding:
        scores = log_probs(model, row)  # [T, V]
        best = scores.topk(ranks, dim=-1)
        ids.append(best.indices)
        values.append(best.values)
        targets.append(scores.gather(-1, target[:, None]).squeeze(-1))
    return torch.stack(ids), torch.stack(values), torch.stack(targets)


def stream_lens(model: SRM, parts: Tensor, mean: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each stream decoded alone, the others at their mean: parts [L, T, S, E], mean [L, S, E] → id, log-prob,
    target's; [L, T, S].
    """
    alone = parts - mean[:, None] + mean.sum(1)[:, None, None]  # [L, T, S, E]
    rows = alone.permute(0, 2, 1, 3).flatten(0, 1)  # [L·S, T, E]
    ids, values, targets = top_lens(model, rows, target, ranks=1)
    shape = (parts.shape[0], parts.shape[2], parts.shape[1])

    def back(x: Tensor) -> Tensor:
        return x.reshape(shape).transpose(1, 2)

    return back(ids[..., 0]), back(values[..., 0]), back(targets)


def attribution(model: SRM, parts: Tensor, target: Tensor) -> Tensor:
    """Each stream's part in the target's logit, less its part in the mean logit: parts [L, T, S, E] → [L, T,
    S].

    Exact: over the streams these sum to the target's logit less the mean logit.
    """
    direction = model.unembedding[target] - model.unembedding.mean(0)  # [T, E]
    return torch.einsum("ltse,te->lts", parts, direction)


def ablation_kl(model: SRM, parts: Tensor, mean: Tensor) -> Tensor:
    """KL(full ‖ one stream at its mean) in bits: final parts [T, S, E], their means [S, E] → [T, S]."""
    total = parts.sum(1)  # [T, E]
    full = log_probs(model, total)
    columns = []
    for s in range(parts.shape[1]):
        ablated = log_probs(model, total - parts[:, s] + mean[s])
        columns.append(kl_bits(full, ablated))
    return torch.stack(columns, dim=1)


def kl_bits(full: Tensor, changed: Tensor) -> Tensor:
    """KL(full ‖ changed) in bits, over the last axis of log-probabilities. Never negative."""
    return ((full.exp() * (full - changed)).sum(-1) * LOG2E).clamp_min(0)
