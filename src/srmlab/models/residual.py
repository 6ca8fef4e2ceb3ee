"""What models with one residual stream share: blocks that add to it, a final norm, a tied or separate
unembedding. GPT-2 and the modern transformer are two of them.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from srmlab.models.config import Sizes
from srmlab.models.contract import Call, Config, Point
from srmlab.models.forward import Pass
from srmlab.models.model import LanguageModel


class BlockSizes:
    """For a config with these fields."""

    dim: int
    blocks: int
    heads: int
    mlp_dim: int

    @property
    def sizes(self) -> Sizes:
        return Sizes(
            width=self.dim, heads=self.heads, layers=self.blocks, mlp=self.mlp_dim, depth=str(self.blocks)
        )

    @property
    def shape(self) -> str:
        return f"{self.blocks} blocks × {self.dim}"


class ResidualModel(LanguageModel[Config]):
    blocks: nn.ModuleList
    norm: nn.Module

    level_name = "blocks"
    parts: ClassVar = {"blocks.*": "block {i}", "norm": "final norm", "head": "unembedding"}

    def read(self, h: Tensor, here: Pass) -> Tensor:
        """The stream [B, T, D] through all blocks and the norm: the last lines of `hidden`."""
        for b, block in enumerate(self.blocks):
            h = here.call(f"blocks.{b}", block, h)
        return here("output.embedding", self.norm(h))

    @property
    def points(self) -> tuple[Point, ...]:
        """The residual stream after every block."""
        return tuple(Point(f"blocks.{b}.out") for b in range(len(self.blocks)))

    def read_stream(self, state: Tensor, stream: int) -> Tensor:  # noqa: ARG002
        return self.norm(state)

    @property
    def calls(self) -> tuple[Call, ...]:
        """What attention and MLP add to the residual stream."""
        return tuple(
            Call(f"blocks.{b}.{part}", None, part, b)
            for b in range(len(self.blocks))
            for part in ("attn", "mlp")
        )
