"""The Hierarchical Reasoning Model for language, and the Tiny Recursive Model as a setting of the same code.

    for every high cycle:
        z_L = L(z_L + z_H + x)      low_cycles times
        z_H = H(z_H + z_L)          with x_enters = "both": H(z_H + z_L + x)
    logits = Unembedding(z_H)

L and H are stacks of post-norm blocks. Only the last call of L and the last of H have a gradient; in TRM one
net plays both parts and the whole last high cycle is differentiated. For language there is one segment, no
adaptive halting, and a fresh state for every batch (puzzle models, with `causal = False`, differ in all:
see `puzzle`). Without x in H the states of all tokens become alike, and training can stall there.
With high_blocks = 0 there is no H: z_L = L(z_L + x), read by the unembedding; SR2 is that with one block,
differentiated through all of its calls.

The nets as published for puzzles have SwiGLU in place of GELU, and TRM's for sudoku an MLP over the positions
(`token_mlp`) in place of attention.

Sites (h and l count cycles, b blocks):

    input.embedding   cycles.{h}.low.{l}.in|out   cycles.{h}.low.{l}.blocks.{b}.attn|mlp|out
    cycles.{h}.high.in|out   cycles.{h}.high.blocks.{b}.attn|mlp|out   output.embedding   logits

and inside a block: attention.q|k|v|weights|z   neurons.pre|post
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srmlab.errors import UserError
from srmlab.models.attention import Rotary, causal_attention
from srmlab.models.config import LATER, NANO, SUDOKU, SUDOKU_NANO, ModelConfig, Sizes
from srmlab.models.contract import Call, Flops, Point
from srmlab.models.exit import State, recurse
from srmlab.models.fields import require
from srmlab.models.forward import Pass
from srmlab.models.model import LanguageModel
from srmlab.models.registry import register
from srmlab.models.streams import RMSNorm


@dataclass(frozen=True, kw_only=True)
class HRMConfig(ModelConfig):
    """The defaults are the paper's HRM for language. In TRM one net plays both parts (`shared_net`), and the
    whole last high cycle is differentiated (`gradient = "last-cycle"`).
    """

    architecture: ClassVar[str] = "hrm"

    dim: int = 768  # width of a stream
    heads: int = 12  # attention heads
    head_dim: int = 64  # width of an attention head
    mlp_dim: int = 3072  # hidden width of an MLP
    low_blocks: int = 6  # blocks of the low-level net L
    high_blocks: int = 4  # blocks of the high-level net H; 0: no H, a single stream
    low_cycles: int = 4  # calls of L per high cycle
    high_cycles: int = 3  # calls of H
    shared_net: bool = False  # one net plays both parts, as in TRM
    gradient: Literal["last-call", "last-cycle", "all"] = "last-call"
    """Through the last call of each net (HRM), the whole last high cycle (TRM), or everything (SR2)."""
    embedding_scale: bool = True  # embeddings times √dim
    rope_theta: float = 10_000.0  # base of the rotary positions
    norm_eps: float = 1e-5  # epsilon of RMSNorm
    x_enters: Literal["low", "both", "first"] = field(default="low", metadata=LATER)
    """The calls that see the tokens: L's, all, or L's in the first segment of a puzzle only."""
    mlp: Literal["gelu", "swiglu"] = field(default="gelu", metadata=LATER)  # swiglu: silu(W x) · V x
    token_mlp: int = field(default=0, metadata=LATER)  # width of a SwiGLU over positions; 0: attention

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.token_mlp == 0 or (self.token_mlp > 0 and not self.causal)
        fix = "must be 0 in a causal model: an MLP over positions sees them all"
        require(self, "token_mlp", fits, fix)
        self.require_positive("dim", "heads", "head_dim", "mlp_dim")
        self.require_positive("low_blocks", "low_cycles", "high_cycles")
        require(self, "high_blocks", self.high_blocks >= 0, "must be 0 (a single stream) or more")
        self.require_attention(self.head_dim, self.rope_theta, self.norm_eps)
        equal, given = self.low_blocks == self.high_blocks, f"{self.low_blocks} and {self.high_blocks}"
        fix = f"one net has one depth; set low_blocks = high_blocks (they are {given})"
        require(self, "shared_net", not self.shared_net or equal, fix)

    @property
    def single(self) -> bool:
        """Whether there is one stream, without H."""
        return self.high_blocks == 0

    @property
    def nets(self) -> str:
        if self.single:
            return f"L{self.low_blocks}"
        return f"LH{self.low_blocks}" if self.shared_net else f"L{self.low_blocks} H{self.high_blocks}"

    @property
    def sizes(self) -> Sizes:
        return Sizes(
            width=self.dim,
            heads=self.heads,
            layers=self.high_cycles * (self.low_cycles * self.low_blocks + self.high_blocks),
            streams=1 if self.single else 2,
            mlp=self.mlp_dim,
            order=self.nets,
            depth=f"{self.high_cycles}×{self.low_cycles}",
        )

    @property
    def shape(self) -> str:
        nets = f"L {self.low_blocks} + H {self.high_blocks}"
        if self.single or self.shared_net:
            nets = f"one net of {self.low_blocks}"
        return f"{nets} blocks × {self.dim}, {self.high_cycles} × {self.low_cycles} cycles"

    @property
    def drawing(self) -> str:
        low, high = ("net", "net") if self.shared_net else ("L", "H")
        last = "the last call of L" if self.single else "the last call of L and the last of H"
        gradient = {"last-call": last, "last-cycle": "the whole last high cycle", "all": "all of them"}
        x = " + x" if self.x_enters == "both" else ""
        mixing = f"attention(h))   over tokens, {self.heads} heads of {self.head_dim}"
        if self.token_mlp:
            mixing = f"MLP(hᵀ)ᵀ)       over positions, {self.token_mlp}, SwiGLU"
        often = "once" if self.low_cycles == 1 else f"{self.low_cycles} times"
        calls = [f"{f'{low}(z_L + z_H + x)':<22}{often}; {blocks(self.low_blocks)}"]
        if self.single:
            calls = [f"{f'{low}(z_L + x)':<22}{often}; {blocks(self.low_blocks)}"]
        else:
            calls.append(f"{f'{high}(z_H + z_L{x})':<22}once; {blocks(self.high_blocks)}")
        return "\n".join(
            [
                f"x    tokens → embedding {self.dim}",
                f"{'z_L' if self.single else 'z_L, z_H'}   fixed random, the same for every token",
                f"{self.high_cycles} high cycles; gradient through {gradient[self.gradient]}",
                *(f"     {name} = {call}" for name, call in zip(("z_L", "z_H"), calls, strict=False)),
                f"out  {'z_L' if self.single else 'z_H'} → {self.output_line}",
                "",
                f"{'One net plays both parts. ' if self.shared_net else ''}A block, post-norm:",
                f"     h = RMSNorm(h + {mixing}",
                f"     h = RMSNorm(h + MLP(h))         {self.mlp_dim}, {MLPS[self.mlp]}",
            ]
        )

    def at_depth(self, depth: int, gradient_depth: int | None = None) -> HRMConfig:
        self.check_gradient_depth(gradient_depth, depth, depth if self.gradient == "all" else 1)
        return self.replace(high_cycles=depth)


def blocks(number: int) -> str:
    return f"{number} block{'' if number == 1 else 's'}"


def hrm() -> HRMConfig:
    """The paper's HRM for language, 109M."""
    return HRMConfig()


# TRM's net
ONE_NET: dict[str, Any] = {"low_blocks": 2, "high_blocks": 2, "shared_net": True, "gradient": "last-cycle"}


def trm() -> HRMConfig:
    """The Tiny Recursive Model at the same width: one net of two blocks plays both parts."""
    return HRMConfig(**ONE_NET, low_cycles=6)


def hrm_single() -> HRMConfig:
    """HRM without its high net: eight blocks, as many calls."""
    return HRMConfig(low_blocks=8, high_blocks=0)


def sr2() -> HRMConfig:
    """SR2 for language: one post-norm block, one stream, 16 applications, gradient through all of them."""
    return HRMConfig(low_blocks=1, high_blocks=0, low_cycles=1, high_cycles=16, gradient="all")


SMALL: dict[str, Any] = NANO | {"dim": 128, "heads": 4, "head_dim": 32, "mlp_dim": 512}


def hrm_nano() -> HRMConfig:
    """HRM at nano size."""
    return HRMConfig(**SMALL, low_blocks=3, high_blocks=2)


def hrm_single_nano() -> HRMConfig:
    """HRM without its high net at nano size."""
    return hrm_nano().replace(low_blocks=5, high_blocks=0)


def trm_nano() -> HRMConfig:
    """TRM at nano size."""
    return trm().replace(**SMALL)


def sr2_nano() -> HRMConfig:
    """SR2 at nano size."""
    return sr2().replace(**SMALL)


def hrm_sudoku() -> HRMConfig:
    """HRM as published for sudokus, 27M: two nets of four blocks."""
    net: dict[str, Any] = {"low_blocks": 4, "high_blocks": 4, "low_cycles": 2, "high_cycles": 2}
    return HRMConfig(**SUDOKU, **net, dim=512, heads=8, mlp="swiglu", mlp_dim=1536)  # 8/3 · 512, rounded up


def hrm_maze() -> HRMConfig:
    """HRM as published for mazes of 30 × 30 cells."""
    return hrm_sudoku().replace(vocab_size=6, context=901)


def hrm_arc() -> HRMConfig:
    """HRM as published for ARC, on boards of 30 × 30 cells; set `puzzle_ids` to the data's."""
    return hrm_maze().replace(vocab_size=12)


def trm_maze() -> HRMConfig:
    """TRM as published for mazes, 7M: one net of two blocks, with attention."""
    board = {"vocab_size": 6, "context": 916, "puzzle_positions": 16}
    return hrm_sudoku().replace(**ONE_NET, **board, low_cycles=4, high_cycles=3)


def trm_arc() -> HRMConfig:
    """TRM as published for ARC, on boards of 30 × 30 cells; set `puzzle_ids` to the data's."""
    return trm_maze().replace(vocab_size=12)


def trm_sudoku() -> HRMConfig:
    """TRM as published for sudoku, 5M: an MLP over the 97 positions in place of attention."""
    return trm_maze().replace(vocab_size=11, context=97, low_cycles=6, token_mlp=512)


def hrm_sudoku_nano() -> HRMConfig:
    """HRM with the parameters of srm-sudoku-nano."""
    net: dict[str, Any] = {"low_blocks": 1, "high_blocks": 1, "low_cycles": 2, "high_cycles": 2}
    return HRMConfig(**SUDOKU_NANO, **net, dim=64, heads=4, head_dim=16, mlp_dim=128)


def trm_sudoku_nano() -> HRMConfig:
    """TRM with the parameters of srm-sudoku-nano."""
    return hrm_sudoku_nano().replace(**ONE_NET)


def hrm1_sudoku_nano() -> HRMConfig:
    """HRM without its high net, with the parameters of srm-sudoku-nano."""
    return hrm_sudoku_nano().replace(low_blocks=2, high_blocks=0)


def sr2_sudoku_nano() -> HRMConfig:
    """SR2 with the parameters of srm-sudoku-nano: one block, 16 times, all in the gradient; the board is
    read in the first segment.
    """
    net = {"low_blocks": 1, "high_blocks": 0, "gradient": "last-cycle", "x_enters": "first"}
    return hrm_sudoku_nano().replace(**net, mlp_dim=384, low_cycles=16, high_cycles=1)


MLPS = {"gelu": "GELU", "swiglu": "SwiGLU"}


class Block(nn.Module):
    """Post-norm: h = RMSNorm(h + Attention(h)), then h = RMSNorm(h + MLP(h))."""

    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        inner = config.heads * config.head_dim
        self.heads, self.over_positions = config.heads, config.token_mlp > 0
        if self.over_positions:
            self.token_up = nn.Linear(config.context, 2 * config.token_mlp, bias=False)
            self.token_down = nn.Linear(config.token_mlp, config.context, bias=False)
        else:
            self.qkv = nn.Linear(config.dim, 3 * inner, bias=False)
            self.attn_out = nn.Linear(inner, config.dim, bias=False)
        self.act, halves = (F.gelu, 1) if config.mlp == "gelu" else (swiglu, 2)
        self.mlp_up = nn.Linear(config.dim, halves * config.mlp_dim, bias=False)
        self.mlp_down = nn.Linear(config.mlp_dim, config.dim, bias=False)
        self.norm = RMSNorm(config.norm_eps)

    def forward(self, h: Tensor, here: Pass) -> Tensor:
        if self.over_positions:  # and so is its norm
            mixed = self.token_down(swiglu(self.token_up(h.mT))).mT  # [B, D, T] → [B, T, D]
            h = self.norm((h + here("attn", mixed)).mT).mT
        else:
            mixed = self.attn_out(causal_attention(self.qkv(h), self.heads, here))
            h = self.norm(h + here("attn", mixed))
        hidden = here("neurons.post", self.act(here("neurons.pre", self.mlp_up(h))))
        h = self.norm(h + here("mlp", self.mlp_down(hidden)))
        return here("out", h)


def swiglu(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


@register
class HRM(LanguageModel[HRMConfig]):
    """A low-level and a high-level net that take turns; TRM and a single net are settings of it."""

    low0: Tensor
    high0: Tensor

    presets: ClassVar = {
        "hrm": hrm,
        "trm": trm,
        "hrm-single": hrm_single,
        "sr2": sr2,
        "hrm-nano": hrm_nano,
        "trm-nano": trm_nano,
        "hrm-single-nano": hrm_single_nano,
        "sr2-nano": sr2_nano,
        "hrm-sudoku": hrm_sudoku,
        "hrm-maze": hrm_maze,
        "hrm-arc": hrm_arc,
        "trm-sudoku": trm_sudoku,
        "trm-maze": trm_maze,
        "trm-arc": trm_arc,
        "hrm-sudoku-nano": hrm_sudoku_nano,
        "trm-sudoku-nano": trm_sudoku_nano,
        "hrm1-sudoku-nano": hrm1_sudoku_nano,
        "sr2-sudoku-nano": sr2_sudoku_nano,
    }
    units = (Block,)
    level_name = "high cycles"
    parts: ClassVar = {"low.*": "L block {i}", "high.*": "H block {i}", "head": "unembedding"}

    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.low = nn.ModuleList(Block(config) for _ in range(config.low_blocks))
        self.high = (
            self.low if config.shared_net else nn.ModuleList(Block(config) for _ in range(config.high_blocks))
        )
        self.head = None if config.tied else nn.Linear(config.dim, config.vocab_size, bias=False)
        turns = not config.learned_positions
        self.rotary = Rotary(config.head_dim, config.context, config.rope_theta, turns=turns)
        self.register_buffer("low0", torch.zeros(config.dim))
        self.register_buffer("high0", torch.zeros(config.dim))
        self.ready()

    def hidden(self, tokens: Tensor, here: Pass) -> Tensor:
        config = self.config
        x = here.embed(self.embedding, tokens) * (math.sqrt(config.dim) if config.embedding_scale else 1.0)
        x = here("input.embedding", x)
        here.rotary = self.rotary(here.start, x.shape[1], like=x)
        if config.token_mlp and x.shape[1] != config.context:
            raise UserError(
                f"token_mlp: an MLP over {config.context} positions reads no board of {x.shape[1]}; "
                f"set --model.context {x.shape[1]}"
            )
        if config.token_mlp and here.mask is not None:
            raise UserError("token_mlp: an MLP over positions sees padding too; leave attention_mask out")
        if config.x_enters == "first" and here.fresh is not None:
            x = x * here.fresh[:, None, None]

        def cycle(h: int, state: State, x: Tensor) -> State:
            return self.cycle(h, state[0], state[-1], x, here)[: len(state)]

        def settled(before: State, after: State, together: bool) -> Tensor:
            assert here.exit is not None
            return here.exit.settled(torch.stack(before), torch.stack(after), together)

        fresh = [z.expand_as(x) for z in self.initial_state]
        state = tuple(fresh if here.state is None else here.state)  # z_L and, unless single, z_H
        state = recurse(cycle, state, x, config.high_cycles, here, settled)
        if not config.causal:
            here.state = torch.stack(state)
        return here("output.embedding", state[-1])

    def cycle(self, h: int, z_low: Tensor, z_high: Tensor, x: Tensor, here: Pass) -> tuple[Tensor, Tensor]:
        """One high cycle: the low net several times, then the high net."""
        config = self.config
        last_cycle, everything = h == config.high_cycles - 1, config.gradient == "all"
        for l in range(config.low_cycles):
            last_call = l == config.low_cycles - 1
            with here.gradient(everything or (last_cycle and (last_call or config.gradient == "last-cycle"))):
                given = z_low + x if config.single else z_low + z_high + x
                z_low = run(self.low, given, here.at(f"cycles.{h}.low.{l}"))
        if not config.single:
            with here.gradient(everything or last_cycle):
                given = z_high + z_low + x if config.x_enters == "both" else z_high + z_low
                z_high = run(self.high, given, here.at(f"cycles.{h}.high"))
        return z_low, z_high

    @property
    def initial_state(self) -> Tensor:
        return self.low0[None] if self.config.single else torch.stack((self.low0, self.high0))

    # --- how it describes itself ----------------------------------------------------------------------------

    @property
    def streams(self) -> tuple[str, ...]:
        return ("L",) if self.config.single else ("L", "H")  # the output reads the last

    @property
    def points(self) -> tuple[Point, ...]:
        """After every high cycle."""
        last = self.config.low_cycles - 1
        nets = (f"low.{last}",) if self.config.single else (f"low.{last}", "high")
        return tuple(
            Point(f"cycles.{h}", tuple(f"cycles.{h}.{net}.out" for net in nets))
            for h in range(self.config.high_cycles)
        )

    @property
    def gradient_from(self) -> int | None:
        return None if self.config.gradient == "all" else self.config.high_cycles - 1 or None

    recurrent = True

    def check_exit(self) -> None:
        """Every high cycle makes the same calls."""

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every call of L moves z_L, every call of H moves z_H."""
        found: list[Call] = []
        low: str | Tensor = self.low0
        high: str | Tensor = self.high0
        for h in range(self.config.high_cycles):
            for l in range(self.config.low_cycles):
                site = f"cycles.{h}.low.{l}.out"
                found.append(Call(site, low, "low", h))
                low = site
            if not self.config.single:
                site = f"cycles.{h}.high.out"
                found.append(Call(site, high, "high", h))
                high = site
        return tuple(found)

    @property
    def weights_with_two_names(self) -> dict[str, str]:
        return {r"high\.": r"low\."} if self.config.shared_net else {}

    def flops_per_token(self, context: int) -> Flops:
        c = self.config
        inner = c.heads * c.head_dim
        mixing = 4 * c.dim * inner + 2 * inner * c.attended(context)
        if c.token_mlp:
            mixing = 3 * c.dim * c.token_mlp
        block = mixing + (2 if c.mlp == "gelu" else 3) * c.dim * c.mlp_dim
        unembed = c.dim * c.vocab_size
        low_calls = 1 if c.gradient == "last-call" else c.low_cycles
        cycles = c.high_cycles if c.gradient == "all" else 1
        in_gradient = cycles * (low_calls * c.low_blocks + c.high_blocks)
        return Flops.of(unembed + c.sizes.layers * block, unembed + in_gradient * block)

    @torch.no_grad()
    def initialize(self) -> None:
        generator = self.draw_weights()
        for state in (self.low0, self.high0):
            nn.init.trunc_normal_(state, std=1.0, a=-2.0, b=2.0, generator=generator)


def run(net: nn.ModuleList, h: Tensor, here: Pass) -> Tensor:
    """The blocks of a net one after the other."""
    h = here("in", h)
    for b, block in enumerate(net):
        h = here.call(f"blocks.{b}", block, h)
    return here("out", h)
