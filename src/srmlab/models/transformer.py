"""A transformer as one would build it today, for comparison: pre-norm, RMSNorm, rotary positions, no biases,
and initial weights scaled to the width. Norms have no weights, as in SRM and HRM.

    h = Embedding(tokens)
    h = h + Attention(RMSNorm(h));  h = h + MLP(RMSNorm(h))     for every block
    logits = Unembedding(RMSNorm(h))

Sites: input.embedding   blocks.{b}.attn|mlp|out   output.embedding   logits
and inside a block: attention.q|k|v|weights|z   neurons.pre|post
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srmlab.models.attention import Rotary, causal_attention
from srmlab.models.config import NANO, SUDOKU_NANO, ModelConfig
from srmlab.models.contract import Flops
from srmlab.models.forward import Pass
from srmlab.models.registry import register
from srmlab.models.residual import BlockSizes, ResidualModel
from srmlab.models.streams import RMSNorm, init_linear_


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(BlockSizes, ModelConfig):
    """The defaults have GPT-2's sizes."""

    architecture: ClassVar[str] = "transformer"

    dim: int = 768
    blocks: int = 12
    heads: int = 12
    head_dim: int = 64
    mlp_dim: int = 3072
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("dim", "blocks", "heads", "head_dim", "mlp_dim")
        self.require_attention(self.head_dim, self.rope_theta, self.norm_eps)

    @property
    def drawing(self) -> str:
        return "\n".join(
            [
                f"h    tokens → embedding {self.dim}",
                f"{self.blocks} blocks, each with its own weights",
                f"     h = h + attention(RMSNorm(h))   {self.heads} heads of {self.head_dim}, rotary",
                f"     h = h + MLP(RMSNorm(h))         {self.mlp_dim}, GELU",
                f"out  RMSNorm(h) → logits {self.vocab_size}" + (" (tied)" if self.tied else ""),
            ]
        )


def transformer() -> TransformerConfig:
    """GPT-2's sizes with rotary positions, RMSNorm and no biases."""
    return TransformerConfig()


def transformer_nano() -> TransformerConfig:
    """The same at nano size."""
    return TransformerConfig(**NANO, dim=128, blocks=6, heads=4, head_dim=32, mlp_dim=512)


def loop_sudoku_nano() -> TransformerConfig:
    """Two blocks, for every segment again, with the parameters of srm-sudoku-nano."""
    return TransformerConfig(**SUDOKU_NANO, dim=64, blocks=2, heads=4, head_dim=16, mlp_dim=128)


class Block(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        inner = config.heads * config.head_dim
        self.heads = config.heads
        self.norm = RMSNorm(config.norm_eps)
        self.qkv = nn.Linear(config.dim, 3 * inner, bias=False)
        self.attn_out = nn.Linear(inner, config.dim, bias=False)
        self.mlp_up = nn.Linear(config.dim, config.mlp_dim, bias=False)
        self.mlp_down = nn.Linear(config.mlp_dim, config.dim, bias=False)

    def forward(self, h: Tensor, here: Pass) -> Tensor:
        attended = causal_attention(self.qkv(self.norm(h)), self.heads, here)
        h = h + here("attn", self.attn_out(attended))
        hidden = here("neurons.post", F.gelu(here("neurons.pre", self.mlp_up(self.norm(h)))))
        h = h + here("mlp", self.mlp_down(hidden))
        return here("out", h)


@register
class Transformer(ResidualModel[TransformerConfig]):
    presets: ClassVar = {
        "transformer": transformer,
        "transformer-nano": transformer_nano,
        "loop-sudoku-nano": loop_sudoku_nano,
    }
    units = (Block,)

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.norm = RMSNorm(config.norm_eps)
        self.head = None if config.tied else nn.Linear(config.dim, config.vocab_size, bias=False)
        turns = not config.learned_positions
        self.rotary = Rotary(config.head_dim, config.context, config.rope_theta, turns=turns)
        self.ready()

    def hidden(self, tokens: Tensor, here: Pass) -> Tensor:
        x = here("input.embedding", here.embed(self.embedding, tokens) * math.sqrt(self.config.dim))
        here.rotary = self.rotary(here.start, x.shape[1], like=x)
        read = self.read(x if here.state is None else x + here.state[0], here)
        if not self.config.causal:
            here.state = read[None]
        return read

    @property
    def initial_state(self) -> Tensor:
        """Nothing: the first segment of a puzzle is the transformer, each later one the same again on what it
        left (after the norm) + x.
        """
        return self.embedding.weight.new_zeros(1, self.config.dim)

    def flops_per_token(self, context: int) -> Flops:
        c = self.config
        inner = c.heads * c.head_dim
        block = 4 * c.dim * inner + 2 * c.dim * c.mlp_dim + 2 * inner * c.attended(context)
        forward = c.blocks * block + c.dim * c.vocab_size
        return Flops(round(2 * forward), round(6 * forward))

    @torch.no_grad()
    def initialize(self) -> None:
        """Std 1/sqrt(fan in); what is added to the residual stream, divided by the root of how often."""
        config = self.config
        generator = torch.Generator(device=self.device).manual_seed(config.init_seed)
        init_linear_(self.embedding.weight, config.dim, generator)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                init_linear_(module.weight, module.in_features, generator)
                if name.endswith(("attn_out", "mlp_down")):
                    module.weight.div_(math.sqrt(2 * config.blocks))
