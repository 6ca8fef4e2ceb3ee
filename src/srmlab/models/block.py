"""The block of modern transformers, which the looped models apply repeatedly: attention, then an MLP, gated
or plain, each added to the residual stream and each reading it through an RMSNorm without weights.

    h = h + Attention(RMSNorm(h));  h = h + MLP(RMSNorm(h))

With norms = "around" what is added is normalised too: h + RMSNorm(Attention(RMSNorm(h))). With norms = "sum"
the stream itself is, after every addition: RMSNorm(h + Attention(RMSNorm(h))).

Sites: attn|mlp|out, and inside attention.q|k|v|weights|z   neurons.pre|post
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srmlab.models.attention import Rotary, causal_attention
from srmlab.models.config import ModelConfig, Sizes
from srmlab.models.contract import Config
from srmlab.models.fields import require
from srmlab.models.forward import Pass
from srmlab.models.model import LanguageModel
from srmlab.models.streams import RMSNorm

Norms = Literal["before", "around", "sum"]


class BlockShape:
    """What follows from the sizes of a block, for a config that has them."""

    dim: int
    heads: int
    head_dim: int
    mlp_dim: int
    kv_heads: int
    gated: bool
    norms: Norms
    norm_eps: float
    attended: Callable[[float], float]  # of any config

    @property
    def keys_width(self) -> int:
        """Of the keys of a token, and of its values."""
        return (self.kv_heads or self.heads) * self.head_dim

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    def block_cost(self, context: float) -> float:
        """Multiply-adds of one block for one token."""
        mlp = (3 if self.gated else 2) * self.dim * self.mlp_dim
        projected = 2 * self.dim * (self.inner + self.keys_width)
        return projected + mlp + 2 * self.inner * self.attended(context)

    def block_sizes(self, layers: int, depth: object, order: object) -> Sizes:
        """Of a model made of such blocks."""
        sizes = {"width": self.dim, "heads": self.heads, "mlp": self.mlp_dim}
        return Sizes(**sizes, layers=layers, order=str(order), depth=str(depth))

    @property
    def block_lines(self) -> list[str]:
        """A block, for a drawing."""

        def line(what: str, sizes: str) -> str:
            added = f"RMSNorm({what}(RMSNorm(h)))" if self.norms == "around" else f"{what}(RMSNorm(h))"
            new = f"RMSNorm(h + {added})" if self.norms == "sum" else f"h + {added}"
            return f"     {f'h = {new}':<42}{sizes}"

        return [
            line("attention", f"{self.heads} heads of {self.head_dim}, rotary"),
            line("MLP", f"{self.mlp_dim}, {'SwiGLU' if self.gated else 'GELU'}"),
        ]


@dataclass(frozen=True, kw_only=True)
class BlockConfig(BlockShape, ModelConfig):
    """The sizes of a block."""

    dim: int = 768  # width of the residual stream
    heads: int = 12  # attention heads
    head_dim: int = 64  # width of an attention head
    mlp_dim: int = 2048  # hidden width of an MLP
    kv_heads: int = 0  # key-value heads, for grouped-query attention; 0: as many as heads
    gated: bool = True  # SwiGLU; if not, a plain MLP with GELU
    norms: Norms = "before"  # RMSNorm before attention and MLP, around them, or after the sum
    rope_theta: float = 10_000.0  # base of the rotary positions
    norm_eps: float = 1e-5  # epsilon of RMSNorm

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("dim", "heads", "head_dim", "mlp_dim")
        self.require_attention(self.head_dim, self.rope_theta, self.norm_eps)
        even = self.kv_heads == 0 or (self.kv_heads > 0 and self.heads % self.kv_heads == 0)
        require(self, "kv_heads", even, f"must divide heads = {self.heads}, or be 0 for as many")


class Block(nn.Module):
    def __init__(self, config: BlockShape) -> None:
        super().__init__()
        self.heads, self.gated, self.norms = config.heads, config.gated, config.norms
        self.norm = RMSNorm(config.norm_eps)
        self.widths = [config.inner, config.keys_width, config.keys_width]
        self.qkv = nn.Linear(config.dim, sum(self.widths), bias=False)
        self.attn_out = nn.Linear(config.inner, config.dim, bias=False)
        self.mlp_up = nn.Linear(config.dim, (1 + config.gated) * config.mlp_dim, bias=False)
        self.mlp_down = nn.Linear(config.mlp_dim, config.dim, bias=False)

    def forward(self, h: Tensor, here: Pass) -> Tensor:
        h = self.together(h + here("attn", self.from_attention(h, here)))
        return here("out", self.together(h + here("mlp", self.from_mlp(h, here))))

    def together(self, h: Tensor) -> Tensor:
        return self.norm(h) if self.norms == "sum" else h

    def from_attention(self, h: Tensor, here: Pass) -> Tensor:
        """What attention adds to the stream [B, T, D]."""
        added = self.attn_out(self.attended(self.norm(h), here))
        return self.norm(added) if self.norms == "around" else added

    def attended(self, h: Tensor, here: Pass) -> Tensor:
        """The outputs of all heads [B, T, H·K], from the stream as attention reads it."""
        qkv = self.qkv(h)
        if self.widths[1] < self.widths[0]:
            qkv = self.repeated(qkv)
        return causal_attention(qkv, self.heads, here)

    def repeated(self, qkv: Tensor) -> Tensor:
        """Every head of keys and values as often as heads of queries read it: [B, T, 3·H·K]."""
        q, *kv = qkv.split(self.widths, dim=-1)
        K = self.widths[0] // self.heads
        times = self.widths[0] // self.widths[1]
        return torch.cat(
            (q, *(x.unflatten(-1, (-1, K)).repeat_interleave(times, -2).flatten(-2) for x in kv)), -1
        )

    def from_mlp(self, h: Tensor, here: Pass) -> Tensor:
        """What the MLP adds to the stream [B, T, D]."""
        up = self.mlp_up(self.norm(h))
        if self.gated:
            gate, up = up.chunk(2, dim=-1)
            hidden = here("neurons.post", F.silu(here("neurons.pre", gate)) * up)
        else:
            hidden = here("neurons.post", F.gelu(here("neurons.pre", up)))
        added = self.mlp_down(hidden)
        return self.norm(added) if self.norms == "around" else added


class BlockModel(LanguageModel[Config]):
    """What models made of these blocks have in common: embedding, positions, unembedding, first weights."""

    norm: RMSNorm
    rotary: Rotary
    parts: ClassVar = {"head": "unembedding"}

    def make_ends(self, config: BlockConfig) -> None:
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.norm = RMSNorm(config.norm_eps)
        self.head = None if config.tied else nn.Linear(config.dim, config.vocab_size, bias=False)
        self.rotary = Rotary(config.head_dim, config.context, config.rope_theta)

    def embed(self, tokens: Tensor, here: Pass) -> Tensor:
        """The input's embeddings [B, T, D], with unit variance at the start; and their positions."""
        embedded = here.embed(self.embedding, tokens)
        h = here("input.embedding", embedded * math.sqrt(self.embedding.embedding_dim))
        here.rotary = self.rotary(here.start, h.shape[1], like=h)
        return h

    def read_stream(self, state: Tensor, stream: int) -> Tensor:  # noqa: ARG002
        return self.norm(state)

    @torch.no_grad()
    def initialize(self) -> None:
        """As usual; what is added to a residual stream without norms, divided by the root of how often: twice
        a layer.
        """
        self.draw_weights()
        for block in self.modules():
            if isinstance(block, Block) and block.norms == "before":
                for linear in (block.attn_out, block.mlp_down):
                    linear.weight.div_(math.sqrt(2 * self.config.sizes.layers))
