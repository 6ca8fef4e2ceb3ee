"""The step function: every stream has its own transformer block, and all are applied at once.

    out = RMSNorm(u + Attention(u) + MLP(u))

Attention over tokens and MLP run in parallel on the same input u, and one norm comes after (post-norm, as
in HRM). Streams do not interact here: only the connection function carries information between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from srmlab.models.attention import causal_attention
from srmlab.models.forward import Pass
from srmlab.models.streams import RMSNorm, StreamLinear

if TYPE_CHECKING:
    from srmlab.models.srm_config import SRMConfig


class Step(nn.Module):
    def __init__(self, config: SRMConfig) -> None:
        super().__init__()
        S, D, inner = config.streams, config.stream_dim, config.token_heads * config.head_dim
        self.heads = config.token_heads
        self.qkv = StreamLinear(S, D, 3 * inner)
        self.attn_out = StreamLinear(S, inner, D)
        self.mlp_up = StreamLinear(S, D, config.mlp_dim)
        self.mlp_down = StreamLinear(S, config.mlp_dim, D)
        self.norm = RMSNorm(config.norm_eps, (S, D) if config.norm_affine else None)

    def forward(self, z: Tensor, update: Tensor | None, here: Pass) -> Tensor:
        """z [S, B, T, D], and the layer's update y to be added to it first → the next state [S, B, T, D]."""
        u = here.streams("in", z if update is None else z + update)
        S, B, T, _ = u.shape
        heads = causal_attention(self.qkv(u).flatten(0, 1), self.heads, here).view(S, B, T, -1)
        hidden = here.streams("neurons.post", F.gelu(here.streams("neurons.pre", self.mlp_up(u))))
        if here.wants("attn", "mlp"):
            attended = here.streams("attn", self.attn_out(heads))
            total = u + attended + here.streams("mlp", self.mlp_down(hidden))
        else:
            total = self.mlp_down(hidden, add_to=self.attn_out(heads, add_to=u))
        return here.streams("out", self.norm(total))
