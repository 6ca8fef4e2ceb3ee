"""Linear maps of streams: every stream has its own weights, and all are applied in one grouped matmul.

Inside the models the streams come first, [S, B, T, D]: each stream's tokens then lie together in memory,
and S linear maps over them are one batched matrix product. The paper's order [B, T, S, D] is what the sites
show.

Axes:  S stream   B batch   T token   D stream dim   H head   K head dim   E embedding   V vocabulary
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from srmlab.models import kernels


class StreamLinear(nn.Module):
    """A linear map of its own for every stream, no bias: [S, B, T, I] → [S, B, T, O]."""

    def __init__(self, streams: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(streams, inputs, outputs))
        self.fan_in = inputs

    def forward(self, x: Tensor, add_to: Tensor | None = None) -> Tensor:
        """x·W for every stream; with `add_to`, the sum of both, accumulated inside the matmul."""
        S, B, T, _ = x.shape
        x = x.reshape(S, B * T, -1)
        if add_to is None:
            return torch.bmm(x, self.weight).view(S, B, T, -1)
        return torch.baddbmm(add_to.reshape(S, B * T, -1), x, self.weight).view(S, B, T, -1)

    def extra_repr(self) -> str:
        streams, inputs, outputs = self.weight.shape
        return f"streams={streams}, inputs={inputs}, outputs={outputs}"


class RMSNorm(nn.Module):
    """x / rms(x) over the last axis, computed in fp32 or wider; optionally a learned weight per stream and
    dimension.
    """

    def __init__(self, eps: float, affine_shape: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.eps = eps
        self.held = False  # whether the scale has no gradient, so that backwards the norm is linear
        self.weight = None
        if affine_shape is not None:
            streams, dim = affine_shape
            self.weight = nn.Parameter(torch.ones(streams, 1, 1, dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        if self.held:
            normed = wide * torch.rsqrt(wide.detach().square().mean(-1, keepdim=True) + self.eps)
        elif kernels.by_hand(wide):
            normed = kernels.rms_norm(wide, self.eps)
        else:
            normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        if self.weight is not None:
            normed = normed * self.weight
        return normed.to(x.dtype)


def init_linear_(weight: Tensor, fan_in: int, generator: torch.Generator) -> None:
    """Truncated normal (at two standard deviations) with std 1/sqrt(fan_in)."""
    std = 1.0 / math.sqrt(fan_in)
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=generator)
