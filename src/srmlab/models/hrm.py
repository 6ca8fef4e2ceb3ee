"""The Hierarchical Reasoning Model for language, and the Tiny Recursive Model as a setting of the same code.

    for every high cycle:
        z_L = L(z_L + z_H + x)      low_cycles times
        z_H = H(z_H + z_L)
    logits = Unembedding(z_H)

L and H are stacks of post-norm blocks. Everything runs without gradient but the last call of L and the last
of H; in TRM one net plays both parts and the whole last high cycle is differentiated. One segment, no
adaptive halting, and fresh states for every batch.

Sites (h and l count cycles, b blocks):

    input.embedding   cycles.{h}.low.{l}.in|out   cycles.{h}.low.{l}.blocks.{b}.attn|mlp|out
    cycles.{h}.high.in|out   cycles.{h}.high.blocks.{b}.attn|mlp|out   output.embedding   logits
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srmlab.models.attention import Rotary, causal_attention
from srmlab.models.config import HRMConfig
from srmlab.models.decoding import DecodingCache, KeyValues
from srmlab.models.model import Flops, LanguageModel, document_mask, expect_recompiles
from srmlab.models.sites import SILENT, Tap, callable_of
from srmlab.models.streams import RMSNorm, init_linear_


class Block(nn.Module):
    """Post-norm: h = RMSNorm(h + Attention(h)), then h = RMSNorm(h + MLP(h))."""

    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        inner = config.heads * config.head_dim
        self.heads = config.heads
        self.qkv = nn.Linear(config.dim, 3 * inner, bias=False)
        self.attn_out = nn.Linear(inner, config.dim, bias=False)
        self.mlp_up = nn.Linear(config.dim, config.mlp_dim, bias=False)
        self.mlp_down = nn.Linear(config.mlp_dim, config.dim, bias=False)
        self.norm = RMSNorm(config.norm_eps)

    def forward(
        self,
        h: Tensor,
        rotary: tuple[Tensor, Tensor],
        past: KeyValues | None = None,
        mask: Tensor | None = None,
        tap: Tap = SILENT,
    ) -> Tensor:
        attended = causal_attention(self.qkv(h), self.heads, rotary, past, mask)
        h = self.norm(h + tap("attn", self.attn_out(attended)))
        h = self.norm(h + tap("mlp", self.mlp_down(F.gelu(self.mlp_up(h)))))
        return tap("out", h)


class HRM(LanguageModel[HRMConfig]):
    low0: Tensor
    high0: Tensor

    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.low = nn.ModuleList(Block(config) for _ in range(config.low_blocks))
        self.high = (
            self.low if config.shared_net else nn.ModuleList(Block(config) for _ in range(config.high_blocks))
        )
        self.head = None if config.tied else nn.Linear(config.dim, config.vocab_size, bias=False)
        self.rotary = Rotary(config.head_dim, config.context, config.rope_theta)
        self.register_buffer("low0", torch.zeros(config.dim))
        self.register_buffer("high0", torch.zeros(config.dim))
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
        config = self.config
        tap = self.tap() if tap is None else tap
        slots = iter(cache) if cache else None
        mask = None if documents is None else document_mask(documents)

        def run(net: nn.ModuleList, h: Tensor, name: str) -> Tensor:
            h = tap(f"{name}.in", h)
            for b, block in enumerate(net):
                call = callable_of(block, tap, compiled=cache is None)
                h = call(h, rotary, next(slots) if slots else None, mask, tap.at(f"{name}.blocks.{b}"))
            return tap(f"{name}.out", h)

        def in_gradient(cycle: int, last_call: bool) -> bool:
            last_cycle = cycle == config.high_cycles - 1
            return torch.is_grad_enabled() and last_cycle and (last_call or config.gradient == "last-cycle")

        x = self.embedding(tokens) * (math.sqrt(config.dim) if config.embedding_scale else 1.0)
        x = tap("input.embedding", x)
        rotary = self.rotary(cache.length if cache else 0, tokens.shape[1], like=x)
        z_low, z_high = self.low0.expand_as(x), self.high0.expand_as(x)
        for h in range(config.high_cycles):
            for l in range(config.low_cycles):
                with torch.set_grad_enabled(in_gradient(h, l == config.low_cycles - 1)):
                    z_low = run(self.low, z_low + z_high + x, f"cycles.{h}.low.{l}")
            with torch.set_grad_enabled(in_gradient(h, True)):
                z_high = run(self.high, z_high + z_low, f"cycles.{h}.high")
        return tap("output.embedding", z_high)

    @property
    def unembedding(self) -> Tensor:
        return self.embedding.weight if self.head is None else self.head.weight

    @property
    def attention_calls(self) -> int:
        c = self.config
        return c.high_cycles * (c.low_cycles * c.low_blocks + c.high_blocks)

    def compile(self, **options) -> None:
        """Compile the blocks, each once for all cycles."""
        expect_recompiles()
        for module in self.modules():
            if isinstance(module, Block):
                module.compile(**options)

    def flops_per_token(self, context: int) -> Flops:
        c = self.config
        inner = c.heads * c.head_dim
        block = 4 * c.dim * inner + 2 * c.dim * c.mlp_dim + 2 * inner * (context + 1) / 2
        unembed = c.dim * c.vocab_size
        forward = unembed + self.attention_calls * block
        low_calls = c.low_cycles if c.gradient == "last-cycle" else 1
        backward = 2 * (unembed + (low_calls * c.low_blocks + c.high_blocks) * block)
        return Flops(round(2 * forward), round(2 * (forward + backward)))

    @torch.no_grad()
    def initialize(self) -> None:
        if self.low0.is_meta:
            return
        generator = torch.Generator(device=self.low0.device).manual_seed(self.config.init_seed)
        init_linear_(self.embedding.weight, self.config.dim, generator)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                init_linear_(module.weight, module.in_features, generator)
        for state in (self.low0, self.high0):
            nn.init.trunc_normal_(state, std=1.0, a=-2.0, b=2.0, generator=generator)

    def _add_sites(self) -> None:
        def add_net(name: str, blocks: int) -> None:
            self.add_site(f"{name}.in")
            for b in range(blocks):
                for kind in ("attn", "mlp", "out"):
                    self.add_site(f"{name}.blocks.{b}.{kind}")
            self.add_site(f"{name}.out")

        config = self.config
        self.add_site("input.embedding")
        for h in range(config.high_cycles):
            for l in range(config.low_cycles):
                add_net(f"cycles.{h}.low.{l}", config.low_blocks)
            add_net(f"cycles.{h}.high", config.high_blocks)
        self.add_site("output.embedding")
        self.add_site("logits")
