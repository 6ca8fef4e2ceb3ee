"""The likeliest tokens of many states: what the trace keeps of every lens.

Axes:  L layer   N tick   T token   S stream   E embedding   V vocabulary   K rank
"""

from __future__ import annotations

import torch
from torch import Tensor

from srmlab.models import LanguageModel


def top_lens(
    model: LanguageModel, embedding: Tensor, target: Tensor, ranks: int
) -> tuple[Tensor, Tensor, Tensor]:
    """embedding [N, T, E], target [T] → ids [N, T, K], their log-probs, and the target's [N, T].

    One row of N at a time: at 50,257 words a full table of log-probabilities is too large to hold.
    """
    ids, values, targets = [], [], []
    for row in embedding:
        scores = torch.log_softmax((row @ model.unembedding.T.to(row)).float(), dim=-1)  # [T, V]
        best = scores.topk(ranks, dim=-1)
        ids.append(best.indices)
        values.append(best.values)
        targets.append(scores.gather(-1, target[:, None]).squeeze(-1))
    return torch.stack(ids), torch.stack(values), torch.stack(targets)


def stream_lens(model: LanguageModel, alone: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The embeddings of each stream alone [S, L, T, E] → id, log-prob, target's; [L, T, S]."""
    ids, values, targets = top_lens(model, alone.flatten(0, 1), target, ranks=1)

    def back(x: Tensor) -> Tensor:
        return x.view(alone.shape[:3]).permute(1, 2, 0)

    return back(ids[..., 0]), back(values[..., 0]), back(targets)
