"""Attention over tokens with rotary positions, causal unless the pass says otherwise; used by every block of
every stream.

q, k and v are [N, H, T, K], with N = streams × batch folded together: `scaled_dot_product_attention` takes
the fast path on four axes only.

Sites, computed only if they are hooked: attention.q|k|v (of these tokens, after rotation),
attention.weights (the softmax, which the fast path never materialises) and attention.z (each head's output).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from srmlab.models import kernels
from srmlab.models.forward import Pass, causal_mask
from srmlab.models.kernels import rotate


class Rotary:
    """RoPE in the rotate-half form: position p turns the pair (j, j + K/2) of a head by the angle
    p·theta^(-2j/K); or nothing, where positions are learned.

    Not a module: a table that `model.to(bfloat16)` rounded, or `to_empty` emptied, would silently spoil
    every position.
    """

    def __init__(self, head_dim: int, context: int, theta: float, *, turns: bool = True) -> None:
        self.turns = turns
        pair = torch.arange(0, head_dim, 2, device="cpu", dtype=torch.float64)
        position = torch.arange(context, device="cpu", dtype=torch.float64)
        angle = torch.outer(position, theta ** (-pair / head_dim))  # [context, K/2]
        self.table = torch.stack((angle.cos(), angle.sin()))
        # The usual one is there from the start: a table first made inside a compiled call has it compiled
        # twice.
        self.ready = {(self.table.device, torch.float32): self.table.float()}

    def __call__(self, start: int, length: int, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """cos and sin [T, K/2] for the positions start … start + length − 1, in fp32 or wider, on `like`'s
        device; None where nothing is turned.
        """
        if not self.turns:
            return None
        key = like.device, torch.promote_types(like.dtype, torch.float32)
        if key not in self.ready:
            with torch.inference_mode(False):  # a table first needed for generating serves training too
                self.ready[key] = self.table.to(*key)
        cos, sin = self.ready[key][:, start : start + length]
        return cos, sin


SITES = tuple(f"attention.{name}" for name in ("q", "k", "v", "weights", "z"))


def token_pattern(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(q·kᵀ/√K) over the tokens that may be seen, [N, H, T, keys]."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    wide = torch.promote_types(q.dtype, torch.float32)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1, dtype=wide).to(q.dtype)


def causal_attention(qkv: Tensor, heads: int, here: Pass, dropout: float = 0.0) -> Tensor:
    """Attend: qkv [N, T, 3·H·K] → [N, T, H·K]. Cached tokens come before these. In a pass that is not causal
    tokens also attend to later ones.

    `here.rotary` turns queries and keys by their positions; `here.mask` [N, 1, T, keys], True where a token
    may look, replaces the causal mask (to keep documents apart, and to leave padding out).
    """
    N, T, _ = qkv.shape
    past, watched = here.past(), here.wants(*SITES)
    plain = past is None and here.mask is None and here.causal and not dropout and not watched
    if plain and kernels.tokens_by_hand(qkv, here.rotary):
        assert here.rotary is not None
        return kernels.causal_attention(qkv, heads, here.rotary)
    q, k, v = qkv.view(N, T, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)  # each [N, H, T, K]
    if here.rotary is not None:
        q, k = rotate(q, *here.rotary), rotate(k, *here.rotary)
    if watched:
        q, k, v = (here.heads(f"attention.{name}", x) for name, x in zip("qkv", (q, k, v), strict=True))
    if past is not None:
        k, v = past.append(k, v)
    return attend(q, k, v, here, dropout)


def attend(q: Tensor, k: Tensor, v: Tensor, here: Pass, dropout: float = 0.0) -> Tensor:
    """q [N, H, T, K], k and v [N, H, keys, K] → [N, T, H·K]. Without a mask a causal pass looks back only."""
    T, keys, mask, watched = q.shape[2], k.shape[2], here.mask, here.wants("attention.weights")
    causal = mask is None and here.causal and T > 1
    if causal and (keys > T or watched):  # torch's own causal mask begins at the first key
        mask, causal = causal_mask(T, keys, q.device), False
    if watched:
        pattern = here.pattern("attention.weights", token_pattern(q, k, mask))
        out = F.dropout(pattern, dropout) @ v
    else:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal)
    if here.wants("attention.z"):
        out = here.heads("attention.z", out)
    return out.transpose(1, 2).flatten(2)
