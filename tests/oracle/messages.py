"""What every stream is given by every other, one message at a time: pattern × value × output, by loops."""

from __future__ import annotations

import torch
from torch import Tensor

import srmlab
from srmlab.models.connection import StreamAttention


def messages(model: srmlab.SRM, z: Tensor, pattern: Tensor) -> Tensor:
    """State z [S, D] and pattern [H, target, source] of one token → [H, target, source, D]."""
    connection, config = model.layer.connection, model.config
    assert isinstance(connection, StreamAttention)
    H, K, S = config.stream_heads, config.head_dim, config.streams
    out = torch.zeros(H, S, S, config.stream_dim, dtype=z.dtype)
    for source in range(S):
        value = (z[source] @ connection.qkv.weight[source])[2 * H * K :].view(H, K)
        for head in range(H):
            for target in range(S):
                rows = connection.out.weight[target, head * K : (head + 1) * K]  # [K, D]
                out[head, target, source] = pattern[head, target, source] * (value[head] @ rows)
    return out
