"""Hyper-connections: a transformer whose residual stream is n streams, mixed around every attention and MLP
by small matrices. With loops, one stack of such blocks is applied repeatedly: SRM's nearest relative.

    H_0 = Embedding(tokens), n times                            [S, B, T, D]
    h   = Σ_s read_s · H_s                                      what attention or MLP reads
    H_r = Σ_s mix_sr · H_s + write_r · Attention(RMSNorm(h))    for every stream r; then the same with the MLP
    logits = Unembedding(RMSNorm(Σ_s H_s))

Static connections are learned numbers. Dynamic ones depend on the token: to each number is added a learned
scale times tanh(RMSNorm(H_s)·W), with W zero at the start. Either starts as an ordinary residual stream:
mix = identity, write = 1, and read takes one stream, another for every connection.

Sites: input.embedding   [loops.{t}.]blocks.{b}.connections.{i}.pattern|in|out|update
[loops.{t}.]blocks.{b}.attn|mlp|out   output.embedding   logits    (i: 0 before attention, 1 before the MLP)
and inside a block: attention.q|k|v|weights|z   neurons.pre|post
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from srmlab.errors import UserError
from srmlab.models.block import Block, BlockConfig, BlockModel
from srmlab.models.config import NANO, Sizes
from srmlab.models.contract import Call, Exchange, Flops, Point
from srmlab.models.exit import State, recurse
from srmlab.models.fields import require
from srmlab.models.forward import Pass
from srmlab.models.registry import register
from srmlab.models.streams import RMSNorm


@dataclass(frozen=True, kw_only=True)
class HyperConfig(BlockConfig):
    """The defaults are those of OLMo-1B with four dynamic streams."""

    architecture: ClassVar[str] = "hyper"

    vocab_size: int = 50304  # number of token ids
    context: int = 2048  # longest sequence, in tokens
    dim: int = 2048  # width of a stream
    heads: int = 16  # attention heads
    head_dim: int = 128  # width of an attention head
    mlp_dim: int = 8192  # hidden width of an MLP
    blocks: int = 16  # number of blocks
    loops: int = 0  # how many times the blocks are applied with the same weights; 0: no loop
    streams: int = 4  # number of residual streams
    connection: Literal["static", "dynamic"] = "dynamic"  # dynamic: mixing depends on the state too

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("blocks", "streams")
        fix = 'must be "before" or "around": streams are not normed'
        require(self, "norms", self.norms != "sum", fix)
        require(self, "loops", self.loops >= 0, "must be 0 (every block once) or more")

    @property
    def sizes(self) -> Sizes:
        return Sizes(
            width=self.streams * self.dim,
            heads=self.heads,
            layers=self.blocks * max(self.loops, 1),
            streams=self.streams,
            stream_width=self.dim,
            mlp=self.mlp_dim,
            order=str(self.blocks) if self.loops else "–",
            depth=str(self.loops or self.blocks),
        )

    @property
    def shape(self) -> str:
        loops = f", {self.loops} loops" if self.loops else ""
        return f"{self.streams} {self.connection} streams, {self.blocks} blocks × {self.dim}{loops}"

    @property
    def drawing(self) -> str:
        times = f"{self.loops} loops of {self.blocks} blocks" if self.loops else f"{self.blocks} blocks"
        mlp = f"{self.mlp_dim}, {'SwiGLU' if self.gated else 'GELU'}"
        numbers = "learned numbers" if self.connection == "static" else "numbers that depend on the token"
        return "\n".join(
            [
                f"H    tokens → embedding {self.dim}, {self.streams} times",
                f"{times}; read, mix and write are {numbers}",
                "     h = Σ read_s · H_s",
                "     H = mix·H + write·attention(RMSNorm(h))"
                f"   {self.heads} heads of {self.head_dim}, rotary",
                "     h = Σ read_s · H_s",
                f"     H = mix·H + write·MLP(RMSNorm(h))         {mlp}",
                f"out  RMSNorm(Σ H_s) → {self.output_line}",
            ]
        )

    def at_depth(self, depth: int, gradient_depth: int | None = None) -> HyperConfig:
        if not self.loops:
            return super().at_depth(depth, gradient_depth)
        self.check_gradient_depth(gradient_depth, depth)
        if depth < 1:  # as a config, no loop
            raise UserError(f"depth = {depth}: must be at least 1")
        return self.replace(loops=depth)


def hyper() -> HyperConfig:
    """OLMo-1B with hyper-connections: four dynamic streams (DHC×4)."""
    return HyperConfig()


def hyper_static() -> HyperConfig:
    """OLMo-1B with four static streams (SHC×4)."""
    return HyperConfig(connection="static")


def hyper_nano() -> HyperConfig:
    """Hyper-connections at nano size."""
    return HyperConfig(**NANO, dim=128, heads=4, head_dim=32, mlp_dim=352, blocks=6)


def hyper_loop_nano() -> HyperConfig:
    """One block of four mixed streams, applied eight times."""
    return hyper_nano().replace(blocks=1, loops=8)


class HyperConnection(nn.Module):
    """What goes into a part of the model, and how the streams go around it."""

    def __init__(self, config: HyperConfig, number: int) -> None:
        super().__init__()
        S = config.streams
        self.first = number % S  # the stream that is read at the start
        self.norm = RMSNorm(config.norm_eps)
        self.read = nn.Parameter(torch.empty(S))
        self.mix = nn.Parameter(torch.empty(S, S))  # [source, target]
        self.write = nn.Parameter(torch.empty(S))
        self.dynamic: nn.Linear | None = None
        if config.connection == "dynamic":
            self.dynamic = nn.Linear(config.dim, 2 + S, bias=False)  # read, write, and mix into each stream
            self.scales = nn.Parameter(torch.empty(2))  # of read and mix, and of write

    def forward(self, H: Tensor, here: Pass) -> tuple[Tensor, Tensor, Tensor]:
        """H [S, B, T, D] → the part's input [B, T, D], the mixed streams, and `write`, a number a stream."""
        S, B, T, _ = H.shape
        read = self.read.view(S, 1, 1, 1)
        write = self.write.view(S, 1, 1, 1).clone()  # torch's hooks refuse a weight as a module's output
        mix = self.mix.view(S, 1, 1, S).expand(S, B, T, S)
        if self.dynamic is not None:
            moved = torch.tanh(self.dynamic(self.norm(H)))  # [S, B, T, 2 + S]
            read = read + self.scales[0] * moved[..., :1]
            write = write + self.scales[1] * moved[..., 1:2]
            mix = mix + self.scales[0] * moved[..., 2:]
        pattern = mix.permute(1, 2, 3, 0)[:, :, None]  # [B, T, 1, target, source]
        pattern = here("pattern", pattern)[:, :, 0]
        mixed = (pattern @ H.permute(1, 2, 0, 3)).permute(2, 0, 1, 3)  # [S, B, T, D]
        return here("in", (read * H).sum(0)), here.streams("out", mixed), write

    @torch.no_grad()
    def initialize(self) -> None:
        self.read.zero_()
        self.read[self.first] = 1
        self.mix.copy_(torch.eye(len(self.mix)))
        self.write.fill_(1)
        if self.dynamic is not None:
            self.dynamic.weight.zero_()
            self.scales.fill_(0.01)


class HyperBlock(Block):
    def __init__(self, config: HyperConfig, number: int) -> None:
        super().__init__(config)
        self.links = nn.ModuleList(HyperConnection(config, 2 * number + i) for i in range(2))

    def forward(self, H: Tensor, here: Pass) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        for i, (name, part) in enumerate((("attn", self.from_attention), ("mlp", self.from_mlp))):
            inside = here.at(f"connections.{i}")
            h, mixed, write = self.links[i](H, inside)
            H = mixed + inside.streams("update", write * here(name, part(h, here)))
        return here.streams("out", H)


@register
class Hyper(BlockModel[HyperConfig]):
    """A transformer of several residual streams, mixed around every attention and MLP; also looped."""

    presets: ClassVar = {
        "hyper": hyper,
        "hyper-static": hyper_static,
        "hyper-nano": hyper_nano,
        "hyper-loop-nano": hyper_loop_nano,
    }
    units = (HyperBlock,)
    parts: ClassVar = {"stack.*": "block {i}", "head": "unembedding"}

    def __init__(self, config: HyperConfig) -> None:
        super().__init__()
        self.config = config
        self.make_ends(config)
        self.stack = nn.ModuleList(HyperBlock(config, b) for b in range(config.blocks))
        self.ready()

    def hidden(self, tokens: Tensor, here: Pass) -> Tensor:
        config, x = self.config, self.embed(tokens, here)

        def loop(t: int, state: State, _: Tensor) -> State:
            return (self.loop(t, state[0], here),)

        (H,) = recurse(loop, (x.expand(config.streams, *x.shape),), x, max(config.loops, 1), here)
        return here("output.embedding", self.norm(H.sum(0)))

    def loop(self, t: int, H: Tensor, here: Pass) -> Tensor:
        """All blocks, one after the other: [S, B, T, D] → [S, B, T, D]."""
        inside = here.at(f"loops.{t}") if self.config.loops else here
        for b, block in enumerate(self.stack):
            H = inside.call(f"blocks.{b}", block, H)
        return H

    def decays(self, name: str) -> bool:
        """Not what a connection is without the token: it starts as the residual stream, not at zero."""
        return name.rpartition(".")[2] not in ("read", "mix", "write")

    # --- how it describes itself ----------------------------------------------------------------------------

    @property
    def recurrent(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.config.loops > 0

    @property
    def level_name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "loops" if self.config.loops else "blocks"

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(f"S{s}" for s in range(self.config.streams))

    @property
    def prefixes(self) -> list[list[str]]:
        """The beginnings of the names of every level's blocks."""
        c = self.config
        if c.loops:
            return [[f"loops.{t}.blocks.{b}" for b in range(c.blocks)] for t in range(c.loops)]
        return [[f"blocks.{b}"] for b in range(c.blocks)]

    @property
    def points(self) -> tuple[Point, ...]:
        """After every loop, or after every block."""
        return tuple(Point(f"{level[-1]}.out") for level in self.prefixes)

    def check_exit(self) -> None:
        if not self.config.loops:
            raise UserError("hyper without loops has no early exit; leave exit out")

    def read_out(self, state: Tensor) -> Tensor:
        return self.norm(state.sum(-2))

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The mixing around the first attention of every level; those around the others are sites too."""
        return tuple(
            Exchange(
                pattern=f"{level[0]}.connections.0.pattern",
                heads=1,
                message=f"{level[0]}.connections.0.out",
                update=f"{level[0]}.connections.0.update",
                shares=False,
            )
            for level in self.prefixes
        )

    @property
    def token_independent(self) -> tuple[int, ...]:
        return tuple(range(self.depth)) if self.config.connection == "static" else ()

    @property
    def calls(self) -> tuple[Call, ...]:
        """What attention and MLP write into the streams."""
        return tuple(
            Call(f"{block}.connections.{i}.update", None, part, level)
            for level, blocks in enumerate(self.prefixes)
            for block in blocks
            for i, part in enumerate(("attn", "mlp"))
        )

    def flops_per_token(self, context: int) -> Flops:
        c = self.config
        link = c.streams**2 * c.dim
        if c.connection == "dynamic":
            link += c.streams * c.dim * (2 + c.streams)
        blocks = c.blocks * max(c.loops, 1) * (c.block_cost(context) + 2 * link)
        return Flops.of(blocks + c.dim * c.vocab_size)

    @torch.no_grad()
    def initialize(self) -> None:
        super().initialize()
        for module in self.modules():
            if isinstance(module, HyperConnection):
                module.initialize()
