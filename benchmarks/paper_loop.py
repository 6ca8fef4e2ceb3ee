"""SRM as the paper's pseudocode has it: an einsum for the connection, a Python loop over the streams for
the step.

The yardstick for "how much faster than the pseudocode". It is written as a competent reader of the paper
would write it in plain PyTorch (a block of `nn.Linear`s per stream, SDPA for all attention), and a test
holds it to the same logits as the model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srmlab.models import SRM, SRMConfig


def rms_norm(x: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], eps=eps)


def rope(x: Tensor, theta: float) -> Tensor:
    K = x.shape[-1]
    angle = torch.outer(torch.arange(x.shape[-2]), theta ** (-torch.arange(0, K, 2) / K))
    cos, sin = torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()
    rotated = torch.cat((-x[..., K // 2 :], x[..., : K // 2]), -1)
    return x * cos + rotated * sin


class StreamBlock(nn.Module):
    def __init__(self, c: SRMConfig) -> None:
        super().__init__()
        inner = c.token_heads * c.head_dim
        self.c = c
        self.qkv = nn.Linear(c.stream_dim, 3 * inner, bias=False)
        self.attn_out = nn.Linear(inner, c.stream_dim, bias=False)
        self.mlp_up = nn.Linear(c.stream_dim, c.mlp_dim, bias=False)
        self.mlp_down = nn.Linear(c.mlp_dim, c.stream_dim, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        B, T, _ = u.shape
        q, k, v = (p.view(B, T, self.c.token_heads, -1).transpose(1, 2) for p in self.qkv(u).chunk(3, dim=-1))
        q, k = rope(q, self.c.rope_theta), rope(k, self.c.rope_theta)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        attn = self.attn_out(y.transpose(1, 2).reshape(B, T, -1))
        return rms_norm(u + self.mlp_down(F.gelu(self.mlp_up(u))) + attn, self.c.norm_eps)


class PaperLoop(nn.Module):
    def __init__(self, c: SRMConfig) -> None:
        super().__init__()
        self.c = c
        S, D, HK = c.streams, c.stream_dim, c.stream_heads * c.head_dim
        self.embedding = nn.Embedding(c.vocab_size, c.embedding_dim)
        self.linear_up = nn.Linear(c.embedding_dim, S * D, bias=False)
        self.linear_down = nn.Linear(S * D, c.embedding_dim, bias=False)
        self.qkv = nn.Parameter(torch.empty(S, 3 * HK, D))
        self.out = nn.Parameter(torch.empty(S * c.stream_heads, D, c.head_dim))
        self.steps = nn.ModuleList(self.new_step() for _ in range(c.step_functions))
        self.post = nn.ModuleList(self.new_step() for _ in range(c.post_steps))
        self.register_buffer("z0", torch.zeros(S, D))

    def new_step(self) -> nn.ModuleList:
        return nn.ModuleList(StreamBlock(self.c) for _ in range(self.c.streams))

    def connection(self, z: Tensor) -> Tensor:
        (B, T, S, D), H, K = z.shape, self.c.stream_heads, self.c.head_dim
        qkv = torch.einsum("btse,soe->btso", z, self.qkv)
        q, k, v = qkv.view(B, T, S, 3, H, K).permute(3, 0, 1, 4, 2, 5)
        y = F.scaled_dot_product_attention(q, k, v)
        y = y.transpose(3, 2).reshape(B, T, S * H, K)
        return torch.einsum("btse,soe->btso", y, self.out).view(B, T, S, H, D).sum(dim=-2)

    @staticmethod
    def run_step(step: nn.ModuleList, z: Tensor) -> Tensor:
        return torch.stack([block(z[:, :, i]) for i, block in enumerate(step)], dim=2)

    def layer(self, z: Tensor, x: Tensor) -> Tensor:
        y = rms_norm(self.connection(z) + x, self.c.norm_eps)
        calls = self.c.step_order.calls
        assert calls is not None
        for i in calls:
            z = self.run_step(self.steps[i], z + y)
        return z

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        (B, T), c = tokens.shape, self.c
        x = self.linear_up(self.embedding(tokens) * c.embedding_dim**0.5).view(B, T, c.streams, c.stream_dim)
        z = self.z0.expand(B, T, -1, -1)
        for _ in range(c.depth - c.gradient_depth):
            with torch.no_grad():
                z = self.layer(z, x)
        for _ in range(c.gradient_depth):
            z = self.layer(z, x)
        for step in self.post:
            z = self.run_step(step, z)
        logits = self.linear_down(z.reshape(B, T, -1)) @ self.embedding.weight.T
        return logits if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    @classmethod
    @torch.no_grad()
    def like(cls, model: SRM) -> PaperLoop:
        """The same weights in the loop's own layout."""
        loop, c = cls(model.config), model.config
        loop.embedding.weight.copy_(model.input_function.embedding.weight)
        loop.linear_up.weight.copy_(model.input_function.to_streams.weight)
        loop.linear_down.weight.copy_(model.output_function.from_streams.weight)
        loop.z0.copy_(model.z0)
        loop.qkv.copy_(model.layer.connection.qkv.weight.transpose(1, 2))
        out = model.layer.connection.out.weight.unflatten(1, (c.stream_heads, c.head_dim))  # [S, H, K, D]
        loop.out.copy_(out.flatten(0, 1).transpose(1, 2))
        for theirs, ours in zip([*loop.steps, *loop.post], [*model.layer.steps, *model.post], strict=True):
            for s, block in enumerate(theirs):
                for name in ("qkv", "attn_out", "mlp_up", "mlp_down"):
                    getattr(block, name).weight.copy_(getattr(ours, name).weight[s].T)
        return loop
