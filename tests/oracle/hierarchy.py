"""HRM and TRM the long way: the oracle for `srmlab.models.HRM`. Loops over cycles, blocks and heads."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from oracle.pseudocode import Values, gelu, linear, rope, softmax
from srmlab.models import HRM, HRMConfig


def rms_norm(x: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps)


class Block(nn.Module):
    """Sequential and post-norm: first attention, then the MLP."""

    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        D, H, K = config.dim, config.heads, config.head_dim
        self.config = config
        self.q = nn.ModuleList(linear(D, K) for _ in range(H))
        self.k = nn.ModuleList(linear(D, K) for _ in range(H))
        self.v = nn.ModuleList(linear(D, K) for _ in range(H))
        self.o = nn.ModuleList(linear(K, D) for _ in range(H))
        self.up = linear(D, config.mlp_dim)
        self.down = linear(config.mlp_dim, D)

    def attention(self, h: Tensor) -> Tensor:
        T, theta = h.shape[1], self.config.rope_theta
        later = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
        heads = []
        for to_q, to_k, to_v, to_out in zip(self.q, self.k, self.v, self.o, strict=True):
            q, k, v = rope(to_q(h), theta), rope(to_k(h), theta), to_v(h)
            scores = (q @ k.transpose(1, 2) / math.sqrt(self.config.head_dim)).masked_fill(later, -math.inf)
            heads.append(to_out(softmax(scores) @ v))
        return torch.stack(heads).sum(dim=0)

    def forward(self, h: Tensor, values: Values, name: str) -> Tensor:
        attn = self.attention(h)
        h = rms_norm(h + attn, self.config.norm_eps)
        mlp = self.down(gelu(self.up(h)))
        h = rms_norm(h + mlp, self.config.norm_eps)
        values |= {f"{name}.attn": attn, f"{name}.mlp": mlp, f"{name}.out": h}
        return h


class Hierarchy(nn.Module):
    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.low = self.high = nn.ModuleList(Block(config) for _ in range(config.low_blocks))
        if not config.shared_net:
            self.high = nn.ModuleList(Block(config) for _ in range(config.high_blocks))
        self.head = None if config.tied else linear(config.dim, config.vocab_size)
        self.register_buffer("low0", torch.zeros(config.dim))
        self.register_buffer("high0", torch.zeros(config.dim))

    def net(self, blocks: nn.ModuleList, h: Tensor, values: Values, name: str) -> Tensor:
        values[f"{name}.in"] = h
        for b, block in enumerate(blocks):
            h = block(h, values, f"{name}.blocks.{b}")
        values[f"{name}.out"] = h
        return h

    def forward(self, tokens: Tensor) -> tuple[Tensor, Values]:
        config, values = self.config, Values()
        x = self.embedding(tokens)
        if config.embedding_scale:
            x = x * math.sqrt(config.dim)
        values["input.embedding"] = x
        z_low, z_high = self.low0.expand_as(x), self.high0.expand_as(x)
        last = (config.high_cycles - 1, config.low_cycles - 1)
        for h in range(config.high_cycles):
            for l in range(config.low_cycles):
                with_gradient = (h, l) == last or (config.gradient == "last-cycle" and h == last[0])
                with_gradient = with_gradient or config.gradient == "all"
                with torch.set_grad_enabled(with_gradient):
                    into_low = z_low + x if config.high_blocks == 0 else z_low + z_high + x
                    z_low = self.net(self.low, into_low, values, f"cycles.{h}.low.{l}")
            if config.high_blocks == 0:
                z_high = z_low
                continue
            with torch.set_grad_enabled(h == last[0] or config.gradient == "all"):
                into_high = z_high + z_low + x if config.x_enters == "both" else z_high + z_low
                z_high = self.net(self.high, into_high, values, f"cycles.{h}.high")
        values["output.embedding"] = z_high
        unembedding = self.embedding.weight if self.head is None else self.head.weight
        values["logits"] = z_high @ unembedding.T
        return values["logits"], values


def copy_weights(fast: HRM, oracle: Hierarchy) -> None:
    oracle.load_state_dict(as_oracle(dict(fast.state_dict()), oracle.config))


def as_oracle(fast: Mapping[str, Tensor], config: HRMConfig) -> dict[str, Tensor]:
    """Tensors of the fast model (weights, or their gradients) under the oracle's names and in its shapes."""
    out: dict[str, Tensor] = {}
    H, K = config.heads, config.head_dim
    for name, value in fast.items():
        owner, _, leaf = name.removesuffix(".weight").rpartition(".")
        if leaf == "qkv":
            for i, part in enumerate("qkv"):
                for h in range(H):
                    out[f"{owner}.{part}.{h}.weight"] = value.unflatten(0, (3, H, K))[i, h]
        elif leaf == "attn_out":
            for h in range(H):
                out[f"{owner}.o.{h}.weight"] = value.unflatten(1, (H, K))[:, h]
        else:
            out[name.replace("mlp_up", "up").replace("mlp_down", "down")] = value
    return out
