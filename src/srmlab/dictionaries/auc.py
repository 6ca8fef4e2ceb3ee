"""AUC: how well a score separates two kinds of tokens. It is the area under the ROC curve, the probability
that a token of one kind scores higher than one of the other (ties count half); 0.5 is chance.

    >>> import torch
    >>> auc(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([False, False, True, True]))
    0.75
"""

from __future__ import annotations

import torch
from torch import Tensor

from srmlab.analysis.bootstrap import ranks

BINS = 512  # of ranks, for resampling


def auc(score: Tensor, positive: Tensor) -> float:
    n, m = int(positive.sum()), int((~positive).sum())
    if n == 0 or m == 0:
        return 0.5
    return (float(ranks(score)[positive].sum()) - n * (n + 1) / 2) / (n * m)


def auc_draws(score: Tensor, positive: Tensor, windows: Tensor, times: Tensor) -> Tensor:
    """[draw] The same if each window had come so many times [draw, window]; `windows` [N] has every token's.
    Ranks are taken in 512 bins."""
    bins = ((ranks(score) - 0.5) / len(score) * BINS).long().clamp(max=BINS - 1)
    place = windows * BINS + bins
    counts = [
        torch.bincount(place[kind], minlength=times.shape[1] * BINS).double().view(-1, BINS)
        for kind in (positive, ~positive)
    ]
    hits, misses = (times.double() @ count for count in counts)  # [draw, bin]
    below = misses.cumsum(1) - misses / 2
    total = hits.sum(1) * misses.sum(1)
    found = (hits * below).sum(1) / total.clamp(min=1)
    return torch.where(total > 0, found, torch.full_like(found, 0.5))
