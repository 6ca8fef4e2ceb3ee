"""The likeliest tokens of many states: what the trace keeps of every lens.

Axes:  L layer   N tick   T token   S stream   E embedding   V vocabulary   K rank
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from srmlab.models import LanguageModel
from srmlab.models.puzzle import log_softmax


@dataclass(frozen=True)
class Reading:
    """How logits are read as a prediction: as in its training, so that all views of it agree.

    >>> Reading(values=[1, 2]).likeliest(torch.tensor([9.0, 1.0, 3.0]), ranks=2)
    tensor([2, 1])
    """

    log_probs: Callable[[Tensor], Tensor] = log_softmax  # logits [..., V] → log-probabilities, in nats
    values: Sequence[int] | None = None  # of a board: what a cell can hold; None: the whole vocabulary

    def likeliest(self, scores: Tensor, ranks: int) -> Tensor:
        """The ids [..., K] of the largest scores [..., V]."""
        if self.values is None:
            return scores.topk(min(ranks, scores.shape[-1]), dim=-1).indices
        ids = torch.tensor(self.values, device=scores.device)
        return ids[scores[..., ids].topk(min(ranks, len(ids)), dim=-1).indices]


def top_lens(
    model: LanguageModel, embedding: Tensor, target: Tensor, ranks: int, reading: Reading
) -> tuple[Tensor, Tensor, Tensor]:
    """embedding [N, T, E], target [T] → ids [N, T, K], their log-probs, and the target's [N, T].

    One row of N at a time: at 50,257 words a full table of log-probabilities is too large to hold.
    """
    ids, values, targets = [], [], []
    for row in embedding:
        scores = reading.log_probs(row @ model.unembedding.T.to(row))  # [T, V]
        best = reading.likeliest(scores, ranks)
        ids.append(best)
        values.append(scores.gather(-1, best))
        targets.append(scores.gather(-1, target[:, None]).squeeze(-1))
    return torch.stack(ids), torch.stack(values), torch.stack(targets)


def stream_lens(
    model: LanguageModel, alone: Tensor, target: Tensor, reading: Reading
) -> tuple[Tensor, Tensor, Tensor]:
    """The embeddings of each stream alone [S, L, T, E] → id, log-prob, target's; [L, T, S]."""
    ids, values, targets = top_lens(model, alone.flatten(0, 1), target, 1, reading)

    def back(x: Tensor) -> Tensor:
        return x.view(alone.shape[:3]).permute(1, 2, 0)

    return back(ids[..., 0]), back(values[..., 0]), back(targets)
