"""A modern transformer, as a baseline: pre-norm, RMSNorm, rotary positions, no biases, and initial weights
scaled to the width. Norms have no weights, as in SRM and HRM.

    h = Embedding(tokens)
    h = h + Attention(RMSNorm(h));  h = h + MLP(RMSNorm(h))     for every block
    logits = Unembedding(RMSNorm(h))

Sites: input.embedding   blocks.{b}.attn|mlp|out   output.embedding   logits
and inside a block: attention.q|k|v|weights|z   neurons.pre|post
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from srmlab.models.attention import Rotary
from srmlab.models.block import Block, BlockModel, BlockShape
from srmlab.models.config import NANO, SUDOKU_NANO, ModelConfig
from srmlab.models.contract import Flops
from srmlab.models.forward import Pass
from srmlab.models.registry import register
from srmlab.models.residual import BlockSizes, ResidualModel
from srmlab.models.streams import RMSNorm


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(BlockSizes, BlockShape, ModelConfig):
    """The defaults have GPT-2's sizes."""

    architecture: ClassVar[str] = "transformer"
    kv_heads, gated, norms = 0, False, "before"  # not fields: a block of this model has no others

    dim: int = 768  # width of the residual stream
    blocks: int = 12  # number of blocks
    heads: int = 12  # attention heads
    head_dim: int = 64  # width of an attention head
    mlp_dim: int = 3072  # hidden width of an MLP
    rope_theta: float = 10_000.0  # base of the rotary positions
    norm_eps: float = 1e-5  # epsilon of RMSNorm

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
                *self.block_lines,
                f"out  RMSNorm(h) → {self.output_line}",
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


@register
class Transformer(ResidualModel[TransformerConfig], BlockModel[TransformerConfig]):
    """A modern transformer: pre-norm, RMSNorm, rotary positions, no biases; also looped."""

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
        x = self.embed(tokens, here)
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
        return Flops.of(c.blocks * c.block_cost(context) + c.dim * c.vocab_size)
