"""GPT-2 as Hugging Face's `GPT2LMHeadModel` has it by default, with the sites and the outer interface of
the other models.

    h = Embedding(tokens) + PositionEmbedding
    h = h + Attention(LayerNorm(h));  h = h + MLP(LayerNorm(h))     for every block
    logits = Unembedding(LayerNorm(h))

Sites: input.embedding   blocks.{b}.attn|mlp|out   output.embedding   logits

`load_huggingface` takes the state dict of a `GPT2LMHeadModel` and gives the same logits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srmlab.errors import UserError
from srmlab.models.attention import causal_attention
from srmlab.models.config import GPT2Config
from srmlab.models.decoding import DecodingCache, KeyValues
from srmlab.models.model import Flops, LanguageModel, document_mask, expect_recompiles
from srmlab.models.sites import SILENT, Tap, callable_of


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

    def forward(
        self, h: Tensor, past: KeyValues | None = None, mask: Tensor | None = None, tap: Tap = SILENT
    ) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        heads = causal_attention(self.qkv(self.norm_1(h)), self.heads, None, past, mask, dropout)
        h = h + tap("attn", F.dropout(self.attn_out(heads), dropout))
        hidden = F.gelu(self.mlp_up(self.norm_2(h)), approximate="tanh")
        h = h + tap("mlp", F.dropout(self.mlp_down(hidden), dropout))
        return tap("out", h)


class GPT2(LanguageModel[GPT2Config]):
    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.positions = nn.Embedding(config.context, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.norm = nn.LayerNorm(config.dim, config.norm_eps)
        self.head = None if config.tied else nn.Linear(config.dim, config.vocab_size, bias=False)
        self._add_sites()
        self.initialize()

    def hidden(
        self,
        tokens: Tensor,
        *,
        cache: DecodingCache | None = None,
        documents: Tensor | None = None,
        tap: Tap | None = None,
    ) -> Tensor:
        tap = self.tap() if tap is None else tap
        slots = iter(cache) if cache else None
        mask = None if documents is None else document_mask(documents)
        start = cache.length if cache else 0
        positions = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        h = self.embedding(tokens) + self.positions(positions)
        h = tap("input.embedding", F.dropout(h, self.config.dropout, self.training))
        for b, block in enumerate(self.blocks):
            call = callable_of(block, tap, compiled=cache is None)
            h = call(h, next(slots) if slots else None, mask, tap.at(f"blocks.{b}"))
        return tap("output.embedding", self.norm(h))

    @property
    def unembedding(self) -> Tensor:
        return self.embedding.weight if self.head is None else self.head.weight

    @property
    def attention_calls(self) -> int:
        return self.config.blocks

    def compile(self, **options) -> None:
        expect_recompiles()
        for block in self.blocks:
            block.compile(**options)

    def flops_per_token(self, context: int) -> Flops:
        c = self.config
        block = 4 * c.dim**2 + 2 * c.dim * c.mlp_dim + 2 * c.dim * (context + 1) / 2
        forward = c.blocks * block + c.dim * c.vocab_size
        return Flops(round(2 * forward), round(6 * forward))

    @torch.no_grad()
    def initialize(self) -> None:
        if self.embedding.weight.is_meta:
            return
        generator = torch.Generator(device=self.embedding.weight.device).manual_seed(self.config.init_seed)
        for name, parameter in self.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            elif name.endswith("bias"):
                parameter.zero_()
            else:  # the residual projections are scaled down by the number of residual additions
                residual = "attn_out" in name or "mlp_down" in name
                std = 0.02 / math.sqrt(2 * self.config.blocks) if residual else 0.02
                parameter.normal_(std=std, generator=generator)

    def load_huggingface(self, state: Mapping[str, Tensor]) -> None:
        """Take the weights of a `GPT2LMHeadModel` (or of its `transformer`) with the same sizes."""
        self.load_state_dict(_from_huggingface(state, tied=self.config.tied))

    def _add_sites(self) -> None:
        self.add_site("input.embedding")
        for b in range(self.config.blocks):
            for kind in ("attn", "mlp", "out"):
                self.add_site(f"blocks.{b}.{kind}")
        self.add_site("output.embedding")
        self.add_site("logits")


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
