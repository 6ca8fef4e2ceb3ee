"""The likeliest tokens of many states: what the trace keeps of every lens.

Axes:  L layer   N tick   T token   S stream   E embedding   V vocabulary   K rank
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from srmlab.models import LanguageModel


def top_lens(
    model: LanguageModel, embedding: Tensor, target: Tensor, ranks: int, among: Sequence[int] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """embedding [N, T, E], target [T] → ids [N, T, K], their log-probs, and the target's [N, T].

    One row of N at a time: at 50,257 words a full table of log-probabilities is too large to hold.
    """
    ids, values, targets = [], [], []
    for row in embedding:
        scores = torch.log_softmax((row @ model.unembedding.T.to(row)).float(), dim=-1)  # [T, V]
        best = likeliest(scores, ranks, among)
        ids.append(best)
        values.append(scores.gather(-1, best))
        targets.append(scores.gather(-1, target[:, None]).squeeze(-1))
    return torch.stack(ids), torch.stack(values), torch.stack(targets)


def likeliest(scores: Tensor, ranks: int, among: Sequence[int] | None = None) -> Tensor:
    """The ids [..., K] of the largest scores [..., V]; of a board, `among` the values a cell can have."""
    if among is None:
        return scores.topk(min(ranks, scores.shape[-1]), dim=-1).indices
    ids = torch.tensor(among, device=scores.device)
    return ids[likeliest(scores[..., ids], ranks)]


def stream_lens(
    model: LanguageModel, alone: Tensor, target: Tensor, among: Sequence[int] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The embeddings of each stream alone [S, L, T, E] → id, log-prob, target's; [L, T, S]."""
    ids, values, targets = top_lens(model, alone.flatten(0, 1), target, 1, among)

    def back(x: Tensor) -> Tensor:
        return x.view(alone.shape[:3]).permute(1, 2, 0)

    return back(ids[..., 0]), back(values[..., 0]), back(targets)
