"""Huginn: a core of a few blocks, repeated any number of times, between a prelude and a coda.

    e   = Prelude(Embedding(tokens))
    s_0 ~ a random state
    s_t = Core(Adapter([s_{t−1}; e]))    t = 1 … n      gradient through the last `gradient_depth` only
    logits = Unembedding(RMSNorm(Coda(RMSNorm(s_n))))

In training s_0 is drawn for every token, from a generator that is part of the training state, and n for every
step (depth_schedule = "poisson", see `training.depth`). In evaluation s_0 is one fixed draw for all tokens,
so that a pass is deterministic, cached or not.

Exit: "change" (the state moves by less than the tolerance), "kl" (the next token's distribution changes by
fewer nats) and "entropy" (its entropy does). The last two read the state through the coda after every step.

Sites: input.embedding   prelude.{b}.attn|mlp|out   steps.{t}.in|out   steps.{t}.blocks.{b}.attn|mlp|out
coda.{b}.attn|mlp|out   output.embedding   logits     and inside a block: attention.q|k|v|weights|z
neurons.pre|post
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from srmlab.models.block import Block, BlockConfig, BlockModel, Norms
from srmlab.models.cache import Borrowed
from srmlab.models.config import NANO, Sizes
from srmlab.models.contract import Call, Flops, Point
from srmlab.models.exit import State, moved, recurse
from srmlab.models.fields import require
from srmlab.models.forward import Pass
from srmlab.models.registry import register

START = math.sqrt(2 / 5)  # the standard deviation of s_0, and of the embeddings as they are read


@dataclass(frozen=True, kw_only=True)
class HuginnConfig(BlockConfig):
    """The defaults are Huginn-3.5B's."""

    architecture: ClassVar[str] = "huginn"

    vocab_size: int = 65536  # number of token ids
    context: int = 4096  # longest sequence, in tokens
    dim: int = 5280  # width of the residual stream
    heads: int = 55  # attention heads
    head_dim: int = 96  # width of an attention head
    mlp_dim: int = 17920  # hidden width of an MLP
    norms: Norms = "sum"  # RMSNorm before attention and MLP, around them, or after the sum
    norm_eps: float = 1e-6  # epsilon of RMSNorm
    rope_theta: float = 50_000.0  # base of the rotary positions
    prelude: int = 2  # blocks before the core
    core: int = 4  # blocks that are applied repeatedly
    coda: int = 2  # blocks after the core
    steps: int = 32  # how many times the core is applied
    gradient_depth: int = 8  # gradient flows through this many of the last steps
    start_seed: int = 0  # seed of the random initial states in training

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("prelude", "core", "coda", "steps")
        self.require_seed("start_seed")
        fits = 1 <= self.gradient_depth <= self.steps
        require(self, "gradient_depth", fits, f"must be between 1 and steps = {self.steps}")

    @property
    def sizes(self) -> Sizes:
        layers, order = (
            self.prelude + self.steps * self.core + self.coda,
            (self.prelude, self.core, self.coda),
        )
        return self.block_sizes(layers, f"{self.steps}/{self.gradient_depth}", "+".join(map(str, order)))

    @property
    def shape(self) -> str:
        return (
            f"{self.prelude} + {self.core} + {self.coda} blocks × {self.dim}, {self.steps} steps "
            f"({self.gradient_depth} in the gradient)"
        )

    @property
    def drawing(self) -> str:
        gradient = "all" if self.gradient_depth == self.steps else f"the last {self.gradient_depth}"
        return "\n".join(
            [
                f"e    tokens → embedding {self.dim} → {self.prelude} blocks, the prelude",
                "s    a random state",
                f"{self.steps} steps; gradient through {gradient}",
                f"     h = adapter([s; e])                       {2 * self.dim} → {self.dim}",
                f"     s = core(h)                               {self.core} blocks",
                f"out  RMSNorm(s) → {self.coda} blocks, the coda → RMSNorm → {self.output_line}",
                "",
                "A block:",
                *self.block_lines,
            ]
        )

    def at_depth(self, depth: int, gradient_depth: int | None = None) -> HuginnConfig:
        usual = min(self.gradient_depth, depth) if gradient_depth is None else gradient_depth
        return self.replace(steps=depth, gradient_depth=usual)

    def seeded(self, seed: int) -> HuginnConfig:
        return self.replace(init_seed=seed, start_seed=seed)


def huginn() -> HuginnConfig:
    """Huginn-3.5B."""
    return HuginnConfig()


def huginn_nano() -> HuginnConfig:
    """Huginn at nano size."""
    return HuginnConfig(
        **NANO,
        dim=128,
        heads=4,
        head_dim=32,
        mlp_dim=352,
        prelude=1,
        core=2,
        coda=1,
        steps=8,
        gradient_depth=4,
    )


@register
class Huginn(BlockModel[HuginnConfig]):
    """A prelude, a core that is repeated from a random state, and a coda."""

    start: Tensor

    presets: ClassVar = {"huginn": huginn, "huginn-nano": huginn_nano}
    units = (Block,)
    level_name = "steps"
    recurrent = True
    exit_rules = ("change", "kl", "entropy")
    parts: ClassVar = {
        "prelude_blocks.*": "prelude block {i}",
        "adapter": "adapter",
        "core_blocks.*": "core block {i}",
        "coda_blocks.*": "coda block {i}",
        "head": "unembedding",
    }

    def __init__(self, config: HuginnConfig) -> None:
        super().__init__()
        self.config = config
        self.make_ends(config)
        self.prelude_blocks = nn.ModuleList(Block(config) for _ in range(config.prelude))
        self.adapter = nn.Linear(2 * config.dim, config.dim, bias=False)
        self.core_blocks = nn.ModuleList(Block(config) for _ in range(config.core))
        self.coda_blocks = nn.ModuleList(Block(config) for _ in range(config.coda))
        self.register_buffer("start", torch.zeros(config.dim))
        self.start_generator = torch.Generator(device="cpu").manual_seed(config.start_seed)
        self.ready()

    def hidden(self, tokens: Tensor, here: Pass) -> Tensor:
        e = self.embed(tokens, here)
        for b, block in enumerate(self.prelude_blocks):
            e = here.call(f"prelude.{b}", block, e)
        return here("output.embedding", self.norm(self.through_coda(self.last_state(e, here), here)))

    def first_state(self, e: Tensor) -> Tensor:
        """s_0 [B, T, D]: in training another draw for every token, in evaluation one for all."""
        if not self.training:
            return self.start.expand_as(e)
        seed = int(torch.randint(2**62, (), generator=self.start_generator))
        if e.is_meta:
            return torch.empty_like(e)
        drawn = torch.empty_like(e, requires_grad=False)
        generator = torch.Generator(device=e.device).manual_seed(seed)
        return nn.init.trunc_normal_(drawn, std=START, a=-3 * START, b=3 * START, generator=generator)

    def step(self, t: int, s: Tensor, e: Tensor, here: Pass) -> Tensor:
        """The core once: [B, T, D] → [B, T, D]."""
        inside = here.at(f"steps.{t}")
        h = inside("in", self.adapter(torch.cat((s, e), dim=-1)))
        for b, block in enumerate(self.core_blocks):
            h = inside.call(f"blocks.{b}", block, h)
        return inside("out", h)

    def through_coda(self, s: Tensor, here: Pass) -> Tensor:
        """A state through the coda: what the output reads through its norm."""
        h = self.norm(s)
        for b, block in enumerate(self.coda_blocks):
            h = here.call(f"coda.{b}", block, h)
        return h

    def last_state(self, e: Tensor, here: Pass) -> Tensor:
        """s_n; with early exit, for every row the first that has settled by the rule that was asked for."""
        config, exit = self.config, here.exit
        reads = exit is not None and exit.by not in (None, "change")  # a rule about the next token

        def step(t: int, state: State, e: Tensor) -> State:
            with here.gradient(t >= config.steps - config.gradient_depth):
                s = self.step(t, state[0], e, here)
            return (s, self.peek(s, state[2].flatten(), here), state[2]) if reads else (s,)

        def settled(before: State, after: State, together: bool) -> Tensor:
            assert exit is not None
            calm = moved(exit.by or "", before[1], after[1]) < exit.tolerance  # [B, T]
            return calm.all().reshape(1) if together else calm.all(1)

        state: State = (self.first_state(e),)
        if reads:
            flat = e.new_full((*e.shape[:2], config.vocab_size), -math.log(config.vocab_size))
            state = *state, flat, torch.arange(len(e), device=e.device).view(-1, 1, 1)
        return recurse(step, state, e, config.steps, here, settled if reads else None)[0]

    def peek(self, s: Tensor, rows: Tensor, here: Pass) -> Tensor:
        """Log-probabilities [B, T, V] of the next token if these rows stopped here; nothing is remembered."""
        aside = Pass()
        aside.rotary, aside.mask = here.rotary, here.mask
        if here.cache is not None:
            all = here.cache.calls()
            kept = [next(all) for _ in range(self.config.prelude + self.config.coda)][self.config.prelude :]
            aside.slots = iter([Borrowed(slot, rows) for slot in kept])
        return torch.log_softmax(self.norm(self.through_coda(s, aside)) @ self.unembedding.T, dim=-1)

    def check_exit(self) -> None:
        """Every step makes the same calls."""

    # --- how it describes itself ----------------------------------------------------------------------------

    @property
    def points(self) -> tuple[Point, ...]:
        """After every step of the core, and after every block of the coda."""
        steps = [Point(f"steps.{t}.out") for t in range(self.config.steps)]
        coda = [Point(f"coda.{b}.out") for b in range(self.config.coda)]
        return (*steps, *coda)

    @property
    def depth(self) -> int:
        return self.config.steps

    @property
    def gradient_from(self) -> int | None:
        return self.config.steps - self.config.gradient_depth or None

    def finish(self, point: Point, values: Mapping[str, Tensor], documents: Tensor | None = None) -> Tensor:
        """Through the coda."""
        s = values[point.sites[0]]
        here = Pass(documents=documents)
        here.rotary = self.rotary(0, s.shape[1], like=s)
        return self.through_coda(s, here)[:, :, None]

    @property
    def input_site(self) -> str:
        return f"prelude.{self.config.prelude - 1}.out"

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every step moves the state."""
        sites = [f"steps.{t}.out" for t in range(self.config.steps)]
        before: list[str | Tensor] = [self.start, *sites[:-1]]
        return tuple(Call(site, before[t], "core", t) for t, site in enumerate(sites))

    @property
    def generators(self) -> dict[str, torch.Generator]:
        return {"start_generator": self.start_generator}

    def flops_per_token(self, context: int) -> Flops:
        c = self.config
        block = c.block_cost(context)
        outside = (c.prelude + c.coda) * block + c.dim * c.vocab_size
        step = c.core * block + 2 * c.dim**2
        return Flops.of(outside + c.steps * step, outside + c.gradient_depth * step)

    @torch.no_grad()
    def initialize(self) -> None:
        """Std sqrt(2 / 5·dim) whatever is read, and of what is added, divided by the root of how often."""
        super().initialize()
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.weight.mul_(math.sqrt(module.in_features / self.config.dim))
        for block in self.modules():
            if isinstance(block, Block):
                for linear in (block.attn_out, block.mlp_down):
                    linear.weight.div_(math.sqrt(2 * self.config.sizes.layers))
        for parameter in self.parameters():
            parameter.mul_(START)
        self.start_generator.manual_seed(self.config.start_seed)
        generator = torch.Generator(device=self.start.device).manual_seed(self.config.init_seed + 1)
        nn.init.trunc_normal_(self.start, std=START, a=-3 * START, b=3 * START, generator=generator)
