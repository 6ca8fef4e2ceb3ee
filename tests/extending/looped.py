"""A looped transformer: one pre-norm block, applied `loops` times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from srmlab.models import (
    Call,
    Flops,
    LanguageModel,
    ModelConfig,
    Pass,
    Point,
    RMSNorm,
    Rotary,
    Sizes,
    causal_attention,
    register,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LoopedConfig(ModelConfig):
    architecture: ClassVar[str] = "looped"

    dim: int = 64
    heads: int = 2
    mlp_dim: int = 128
    loops: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("dim", "heads", "mlp_dim", "loops")

    @property
    def sizes(self) -> Sizes:
        return Sizes(
            width=self.dim, heads=self.heads, layers=self.loops, mlp=self.mlp_dim, depth=f"{self.loops}"
        )

    @property
    def drawing(self) -> str:
        return (
            f"h    tokens → embedding {self.dim}\n"
            f"{self.loops} times one block\n"
            "     h = h + attention(RMSNorm(h))\n"
            "     h = h + MLP(RMSNorm(h))\n"
            f"out  RMSNorm(h) → logits {self.vocab_size}"
        )

    def at_depth(self, depth: int, gradient_depth: int | None = None) -> LoopedConfig:
        self.check_gradient_depth(gradient_depth, depth)  # through all loops: refuses any other
        return self.replace(loops=depth)


def looped_nano() -> LoopedConfig:
    return LoopedConfig(vocab_size=512, context=256)


class Block(nn.Module):
    def __init__(self, config: LoopedConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm = RMSNorm(1e-5)
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=False)
        self.out = nn.Linear(config.dim, config.dim, bias=False)
        self.up = nn.Linear(config.dim, config.mlp_dim, bias=False)
        self.down = nn.Linear(config.mlp_dim, config.dim, bias=False)

    def forward(self, h: Tensor, here: Pass) -> Tensor:
        h = h + here("attn", self.out(causal_attention(self.qkv(self.norm(h)), self.heads, here)))
        h = h + here("mlp", self.down(F.gelu(self.up(self.norm(h)))))
        return here("out", h)


@register
class Looped(LanguageModel[LoopedConfig]):
    presets: ClassVar = {"looped-nano": looped_nano}
    units = (Block,)  # what is compiled, recomputed and sharded as one
    level_name = "loops"
    recurrent = True

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.block = Block(config)
        self.norm = RMSNorm(1e-5)
        self.rotary = Rotary(config.dim // config.heads, config.context, 10_000.0)
        self.head = None if config.tied else nn.Linear(config.dim, config.vocab_size, bias=False)
        self.ready()  # finds the sites, fills the weights

    def hidden(self, tokens: Tensor, here: Pass) -> Tensor:
        h = here("input.embedding", self.embedding(tokens))
        here.rotary = self.rotary(here.start, tokens.shape[1], like=h)
        for i in range(self.config.loops):
            h = here.call(f"loops.{i}", self.block, h)
        return here("output.embedding", self.norm(h))

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(Point(f"loops.{i}.out", (f"loops.{i}.out",)) for i in range(self.config.loops))

    def read_stream(self, state: Tensor, stream: int) -> Tensor:  # noqa: ARG002
        return self.norm(state)

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(
            Call(f"loops.{i}.{part}", None, part, i)
            for i in range(self.config.loops)
            for part in ("attn", "mlp")
        )

    def flops_per_token(self, context: int) -> Flops:
        c = self.config
        block = 4 * c.dim**2 + 2 * c.dim * c.mlp_dim + c.dim * (context + 1)
        return Flops.of(c.loops * block + c.dim * c.vocab_size)
