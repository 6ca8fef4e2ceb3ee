"""GPT-2, equal to Hugging Face's default `GPT2LMHeadModel`, with the sites and the interface of the other
models.

    h = Embedding(tokens) + PositionEmbedding
    h = h + Attention(LayerNorm(h));  h = h + MLP(LayerNorm(h))     for every block
    logits = Unembedding(LayerNorm(h))

Sites: input.embedding   blocks.{b}.attn|mlp|out   output.embedding   logits
and inside a block: attention.q|k|v|weights|z   neurons.pre|post

`load_huggingface` takes the state dict of a `GPT2LMHeadModel` and gives the same logits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srmlab.errors import UserError
from srmlab.models.attention import causal_attention
from srmlab.models.config import LATER, NANO, ModelConfig
from srmlab.models.contract import Flops
from srmlab.models.fields import require
from srmlab.models.forward import Pass
from srmlab.models.registry import register
from srmlab.models.residual import BlockSizes, ResidualModel


@dataclass(frozen=True, kw_only=True)
class GPT2Config(BlockSizes, ModelConfig):
    """GPT-2, with Hugging Face's default sizes."""

    architecture: ClassVar[str] = "gpt2"

    dim: int = 768  # width of the residual stream
    blocks: int = 12  # number of blocks
    heads: int = 12  # attention heads
    mlp_dim: int = 3072  # hidden width of an MLP
    dropout: float = 0.1  # embedding, attention and residual dropout, in training only
    norm_eps: float = 1e-5  # epsilon of LayerNorm
    init: Literal["0.02", "width"] = field(default="0.02", metadata=LATER)  # 0.02 is meant for dim = 768

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("dim", "blocks", "heads", "mlp_dim")
        require(self, "heads", self.dim % self.heads == 0, f"must divide dim = {self.dim}")
        require(self, "dropout", 0.0 <= self.dropout < 1.0, "must be in [0, 1)")
        require(self, "norm_eps", self.norm_eps > 0, "must be positive")

    @property
    def drawing(self) -> str:
        return "\n".join(
            [
                f"h    tokens → embedding {self.dim}, plus {self.context} learned positions",
                f"{self.blocks} blocks, each with its own weights",
                f"     h = h + attention(LayerNorm(h))   {self.heads} heads of {self.dim // self.heads}",
                f"     h = h + MLP(LayerNorm(h))         {self.mlp_dim}, GELU",
                f"out  LayerNorm(h) → {self.output_line}",
            ]
        )


def gpt2() -> GPT2Config:
    """Hugging Face's default GPT2LMHeadModel, 124M."""
    return GPT2Config()


def gpt2_nano() -> GPT2Config:
    """GPT-2 at nano size, without dropout."""
    return GPT2Config(**NANO, dim=128, blocks=6, heads=4, mlp_dim=512, dropout=0.0)


class Block(nn.Module):
    """Pre-norm, sequential, with biases."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.norm_1 = nn.LayerNorm(config.dim, config.norm_eps)
        self.qkv = nn.Linear(config.dim, 3 * config.dim)
        self.attn_out = nn.Linear(config.dim, config.dim)
        self.norm_2 = nn.LayerNorm(config.dim, config.norm_eps)
        self.mlp_up = nn.Linear(config.dim, config.mlp_dim)
        self.mlp_down = nn.Linear(config.mlp_dim, config.dim)

    def forward(self, h: Tensor, here: Pass) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        heads = causal_attention(self.qkv(self.norm_1(h)), self.heads, here, dropout)
        h = h + here("attn", F.dropout(self.attn_out(heads), dropout))
        hidden = here("neurons.pre", self.mlp_up(self.norm_2(h)))
        hidden = here("neurons.post", F.gelu(hidden, approximate="tanh"))
        h = h + here("mlp", F.dropout(self.mlp_down(hidden), dropout))
        return here("out", h)


@register
class GPT2(ResidualModel[GPT2Config]):
    """GPT-2 as in Hugging Face, whose weights it loads (`load_huggingface`)."""

    presets: ClassVar = {"gpt2": gpt2, "gpt2-nano": gpt2_nano}
    units = (Block,)

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.positions = nn.Embedding(config.context, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.norm = nn.LayerNorm(config.dim, config.norm_eps)
        self.head = None if config.tied else nn.Linear(config.dim, config.vocab_size, bias=False)
        self.ready()

    def hidden(self, tokens: Tensor, here: Pass) -> Tensor:
        h = self.embedding(tokens) + self.positions(here.positions(tokens))
        h = here("input.embedding", F.dropout(h, self.config.dropout, self.training))
        return self.read(h, here)

    def flops_per_token(self, context: int) -> Flops:
        c = self.config
        block = 4 * c.dim**2 + 2 * c.dim * c.mlp_dim + 2 * c.dim * (context + 1) / 2
        return Flops.of(c.blocks * block + c.dim * c.vocab_size)

    @torch.no_grad()
    def initialize(self) -> None:
        config = self.config
        generator = torch.Generator(device=self.embedding.weight.device).manual_seed(config.init_seed)
        usual = 0.02 if config.init == "0.02" else 0.02 * math.sqrt(768 / config.dim)
        for name, parameter in self.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            elif name.endswith("bias"):
                parameter.zero_()
            else:  # the residual projections are scaled down by the number of residual additions
                residual = "attn_out" in name or "mlp_down" in name
                std = usual / math.sqrt(2 * config.blocks) if residual else usual
                parameter.normal_(std=std, generator=generator)

    def load_huggingface(self, state: Mapping[str, Tensor]) -> None:
        """Take the weights of a `GPT2LMHeadModel` (or of its `transformer`) with the same sizes."""
        self.load_state_dict(_from_huggingface(state, tied=self.config.tied))


_HUGGINGFACE = {
    "wte": "embedding",
    "wpe": "positions",
    "ln_f": "norm",
    "lm_head": "head",
    "ln_1": "norm_1",
    "attn.c_attn": "qkv",
    "attn.c_proj": "attn_out",
    "ln_2": "norm_2",
    "mlp.c_fc": "mlp_up",
    "mlp.c_proj": "mlp_down",
}


def _from_huggingface(state: Mapping[str, Tensor], tied: bool) -> dict[str, Tensor]:
    ours = {}
    for name, value in state.items():
        name = name.removeprefix("transformer.")
        if name.endswith((".attn.bias", ".attn.masked_bias")):  # mask buffers of old releases
            continue
        match = re.fullmatch(r"(h\.\d+\.)?(.+)\.(weight|bias)", name)
        if match is None or match[2] not in _HUGGINGFACE:
            raise UserError(f"{name!r} is not a weight of GPT2LMHeadModel; pass its state_dict()")
        block, part, kind = match.groups()
        if part == "lm_head" and tied:
            continue
        # Conv1D keeps [inputs, outputs]
        transposed = kind == "weight" and part.split(".")[-1].startswith("c_")
        key = f"{block.replace('h.', 'blocks.') if block else ''}{_HUGGINGFACE[part]}.{kind}"
        ours[key] = value.T if transposed else value
    return ours
