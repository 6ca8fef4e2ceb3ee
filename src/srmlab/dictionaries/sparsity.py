"""How a dictionary selects its active features in training.

`chosen(dictionary, activations, width)` returns the codes, and their penalty in addition to the
reconstruction error:

    topk        the k largest of each state
    batchtopk   the k·N largest of the N states of a batch, stream by stream; the smallest of them moves the
                threshold that is used afterwards
    jumprelu    those above the thresholds, and (L0 / k − 1)², which brings the L0 to k. A jump has no
                gradient; the thresholds get that of a jump of width `width` (Rajamanoharan et al., 2024)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from srmlab.dictionaries.dictionary import Dictionary, largest

FOLLOW = 0.1  # how much of a batch's threshold is taken over


def chosen(dictionary: Dictionary, activations: Tensor, width: Tensor) -> tuple[Tensor, Tensor | None]:
    """Activations [S, N, F] → codes [S, N, F], and a loss [S]; `width` [S, 1, 1] is that of a jump."""
    k, threshold = dictionary.config.k, dictionary.threshold
    if dictionary.config.activation == "topk" or threshold is None:
        return largest(activations, k), None
    if dictionary.config.activation == "batchtopk":
        with torch.no_grad():
            least = kept(activations, k)  # [S, 1, 1]
            threshold.copy_(torch.lerp(threshold, least[:, 0].expand_as(threshold), FOLLOW))
        return activations * (activations >= least), None
    above = threshold.clamp(min=0)[:, None]
    in_use = Jump.apply(activations, above, width).sum(-1).mean(1)  # [S]
    codes = activations * Jump.apply(activations.detach(), above, width)
    return codes, (in_use / k - 1).square()


@torch.no_grad()
def first_threshold(dictionary: Dictionary, states: Tensor) -> None:
    """Thresholds, if it has any, at which k features are in use, on average over these states [S, N, D]."""
    if dictionary.threshold is not None:
        least = kept(dictionary._activations(states), dictionary.config.k)
        dictionary.threshold.copy_(least[:, 0].expand_as(dictionary.threshold))


def kept(activations: Tensor, k: int) -> Tensor:
    """[S, 1, 1] The k·N-th largest of N states' activations [S, N, F], above 0. It is looked for among the
    4·k largest of each state: choosing from all of them at once takes far longer.
    """
    few = activations.topk(min(activations.shape[-1], 4 * k)).values.flatten(1)
    return few.topk(k * activations.shape[1]).values[:, -1, None, None].clamp(min=1e-12)


class Jump(torch.autograd.Function):
    """1 above the threshold, else 0; backwards, a slope of 1 / width within half a width of it."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, threshold: Tensor, width: Tensor) -> Tensor:
        ctx.save_for_backward(values, threshold, width)
        return (values > threshold).to(values.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None]:
        values, threshold, width = ctx.saved_tensors
        near = (values - threshold).abs() < width / 2
        slope = gradients[0] * near / width
        return slope if ctx.needs_input_grad[0] else None, -slope.sum(1, keepdim=True), None
