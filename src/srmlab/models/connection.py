"""The connection function: attention across the streams of one token (the paper's stream-wise attention).

Every stream has its own query, key, value and output matrices. What stream s takes from stream r at a token
is pattern[s, r] times r's value, translated by s's output matrix: the pattern is the learned wiring between
streams. There is no mask and no position: any stream may read any other, and tokens never meet here.

Two that learn nothing stand beside it, to compare with: `Addition`, HRM's way, and `NoConnection`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srmlab.models import kernels
from srmlab.models.config import SRMConfig
from srmlab.models.sites import SILENT, Tap
from srmlab.models.streams import StreamLinear


class Connection(nn.Module):
    def __init__(self, streams: int, stream_dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.qkv = StreamLinear(streams, stream_dim, 3 * heads * head_dim)
        self.out = StreamLinear(streams, heads * head_dim, stream_dim)  # the sum over heads is in here

    def forward(self, z: Tensor, tap: Tap = SILENT) -> Tensor:
        """z [S, B, T, D] → c [S, B, T, D]."""
        S, B, T, _ = z.shape
        H, K = self.heads, self.head_dim
        qkv = self.qkv(z).view(S, B * T, -1)
        if not tap.wants("pattern") and kernels.streams_by_hand(qkv):
            return tap("out", self.out(kernels.stream_attention(qkv, H).view(S, B, T, H * K)))
        q, k, v = qkv.view(S, B * T, 3, H, K).permute(2, 1, 3, 0, 4).unbind(0)  # each [B·T, H, S, K]
        if tap.wants("pattern"):
            pattern = torch.softmax(q @ k.transpose(-1, -2) * K**-0.5, dim=-1)  # [B·T, H, target, source]
            pattern = tap("pattern", pattern.view(B, T, H, S, S)).view(B * T, H, S, S)
            mixed = pattern @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v)
        mixed = mixed.permute(2, 0, 1, 3).reshape(S, B, T, H * K)  # [B·T, H, S, K] → [S, B, T, H·K]
        return tap("out", self.out(mixed))


class Addition(nn.Module):
    """HRM's connection for any number of streams: each is given the sum of the others, untranslated.

    Divided by sqrt(S − 1), the sum has the size of one state, and with two streams it is HRM's own.
    """

    def forward(self, z: Tensor, tap: Tap = SILENT) -> Tensor:
        others = z.sum(0, keepdim=True) - z
        return tap("out", others / math.sqrt(max(1, z.shape[0] - 1)))


class NoConnection(nn.Module):
    """Streams that never meet before the output function."""

    def forward(self, z: Tensor, tap: Tap = SILENT) -> Tensor:
        return tap("out", torch.zeros_like(z))


def build_connection(config: SRMConfig) -> nn.Module:
    if config.connection == "attention":
        return Connection(config.streams, config.stream_dim, config.stream_heads, config.head_dim)
    return Addition() if config.connection == "addition" else NoConnection()
