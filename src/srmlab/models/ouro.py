"""The looped language model (Ouro): a stack of blocks applied repeatedly, and a gate that decides after every
loop whether to continue.

    h_0 = Embedding(tokens)
    h_t = RMSNorm(Stack(h_{t−1}))                 t = 1 … T; logits are Unembedding(h_T)
    λ_t = σ(w·h_t + b)                            the gate, for every token
    p_t = λ_t · Π_{j<t} (1 − λ_j)                 chance of stopping after loop t; the last takes the rest

Training minimises the expected loss over loops minus β times the entropy of where to stop,

    Σ_t p_t·L_t − β·H(p)                          β is `beta` for the first stage of training, then `beta_end`

A second stage (trains = "gate", from the weights of the first) trains the gate alone: to continue where a
loop lowered the loss by more than `gain`. Evaluation uses the cross-entropy of the last loop.

Exit: "gate" stops a token once the cumulative p reaches the threshold, "change" once its state settles. In
decoding every loop has its own keys and values; `new_cache(reuse=True)` keeps only the last loop's.

Sites: input.embedding   loops.{t}.blocks.{b}.attn|mlp|out   loops.{t}.out|gate   output.embedding   logits
and inside a block: attention.q|k|v|weights|z   neurons.pre|post
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srmlab.models.block import Block, BlockConfig, BlockModel, Norms
from srmlab.models.config import NANO, Sizes
from srmlab.models.contract import Call, Flops, Point
from srmlab.models.exit import State, recurse
from srmlab.models.forward import Pass
from srmlab.models.loss import IGNORE, shared_cross_entropy, token_losses
from srmlab.models.registry import register

SHARPNESS = 50.0  # of the second stage's target: how quickly a gain above `gain` turns into "go on"
FIRST = 3.0 / 7.7  # the share of Ouro's tokens that were trained with the first β


@dataclass(frozen=True, kw_only=True)
class OuroConfig(BlockConfig):
    """The defaults are Ouro-1.4B's."""

    architecture: ClassVar[str] = "ouro"

    vocab_size: int = 49152  # number of token ids
    context: int = 4096  # longest sequence, in tokens
    tied: bool = False  # the unembedding shares the embedding's weights
    dim: int = 2048  # width of the residual stream
    heads: int = 16  # attention heads
    head_dim: int = 128  # width of an attention head
    mlp_dim: int = 5632  # hidden width of an MLP
    norms: Norms = "around"  # RMSNorm before attention and MLP, around them, or after the sum
    norm_eps: float = 1e-6  # epsilon of RMSNorm
    blocks: int = 24  # blocks of the stack
    loops: int = 4  # times the blocks are applied
    beta: float = 0.1  # weight of the entropy in the first stage of training
    beta_end: float = 0.05  # weight of the entropy after the first stage
    trains: Literal["all", "gate"] = "all"  # gate: the second stage, which trains the exit gate alone
    gain: float = 0.005  # second stage: nats by which one more loop must lower the loss

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("blocks", "loops")
        self.require_not_negative("beta", "beta_end", "gain")

    @property
    def sizes(self) -> Sizes:
        return self.block_sizes(self.loops * self.blocks, self.loops, self.blocks)

    @property
    def shape(self) -> str:
        return f"{self.blocks} blocks × {self.dim}, {self.loops} loops"

    @property
    def drawing(self) -> str:
        if self.trains == "gate":
            loss = f"loss the gate alone: go on where a loop gains more than {self.gain} nats"
        else:
            loss = f"loss Σ p_t·L_t − β·H(p)                     β {self.beta}, then {self.beta_end}"
        return "\n".join(
            [
                f"h    tokens → embedding {self.dim}",
                f"{self.loops} loops of {self.blocks} blocks",
                *self.block_lines,
                "   after every loop",
                "     h = RMSNorm(h)",
                "     λ = σ(w·h + b)                            the gate: stop here?",
                f"out  h → {self.output_line}",
                loss,
            ]
        )

    def at_depth(self, depth: int, gradient_depth: int | None = None) -> OuroConfig:
        self.check_gradient_depth(gradient_depth, depth)
        return self.replace(loops=depth)


def ouro() -> OuroConfig:
    """Ouro-1.4B: 24 blocks, four loops."""
    return OuroConfig()


def ouro_2_6b() -> OuroConfig:
    """Ouro-2.6B: 48 blocks, four loops."""
    return OuroConfig(blocks=48)


def ouro_nano() -> OuroConfig:
    """The looped language model at nano size."""
    return OuroConfig(**NANO, tied=True, dim=128, heads=4, head_dim=32, mlp_dim=352, blocks=3, loops=4)


@register
class Ouro(BlockModel[OuroConfig]):
    """A looped stack of blocks, with a gate that decides after every loop whether to go on."""

    presets: ClassVar = {"ouro": ouro, "ouro-2.6b": ouro_2_6b, "ouro-nano": ouro_nano}
    units = (Block,)
    level_name = "loops"
    recurrent = True
    parts: ClassVar = {"blocks.*": "block {i}", "gate": "exit gate", "head": "unembedding"}
    exit_rules = ("gate", "change")
    reuses_cache = True

    def __init__(self, config: OuroConfig) -> None:
        super().__init__()
        self.config = config
        self.make_ends(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.gate = nn.Linear(config.dim, 1)
        if config.trains == "gate":
            self.requires_grad_(False)
            self.gate.requires_grad_(True)
        self.ready()

    def hidden(self, tokens: Tensor, here: Pass) -> Tensor:
        h, exit = self.embed(tokens, here), here.exit

        def loop(t: int, state: State, _: Tensor) -> State:
            h = self.loop(t, state[0], here)
            return (h,) if exit is None else (h, state[1] * (1 - self.stop(h)))

        def stopped(_: State, after: State, together: bool) -> Tensor:
            assert exit is not None
            reached = 1 - after[1] >= exit.tolerance  # [B, T, 1]
            return reached.all().reshape(1) if together else reached.flatten(1).all(1)

        by_gate = exit is not None and exit.by in (None, "gate")
        state = (h, torch.ones_like(h[..., :1]))  # and the probability of going on
        h, *_ = recurse(loop, state, h, self.config.loops, here, stopped if by_gate else None)
        return here("output.embedding", h)

    def loop(self, t: int, h: Tensor, here: Pass) -> Tensor:
        """The stack once: [B, T, D] → [B, T, D]."""
        if here.cache is not None and here.cache.reuse and here.exit is None:
            here.slots = here.cache.calls_of_level(last=t == self.config.loops - 1)
        inside = here.at(f"loops.{t}")
        for b, block in enumerate(self.blocks):
            h = inside.call(f"blocks.{b}", block, h)
        h = inside("out", self.norm(h))
        if inside.wants("gate"):
            inside("gate", self.stop(h))
        return h

    def stop(self, h: Tensor) -> Tensor:
        """λ [B, T, 1]: the probability of stopping here, given that nothing has stopped before."""
        return torch.sigmoid(self.gate(h))

    # --- training ------------------------------------------------------------------------------------------

    def training_loss(
        self, tokens: Tensor, targets: Tensor, here: Pass, progress: float
    ) -> dict[str, Tensor]:
        config = self.config
        if config.trains == "gate":
            return self.gate_loss(tokens, targets, here)
        h, after = self.embed(tokens, here), []
        for t in range(config.loops):
            h = self.loop(t, h, here)
            after.append(h)
        p = exit_probabilities(torch.stack([self.stop(h).squeeze(-1) for h in after]))  # [loops, B, T]
        counted = targets != IGNORE
        found = [
            shared_cross_entropy(h, self.unembedding, targets, share)
            for h, share in zip(after, p, strict=True)
        ]
        expected = torch.stack([loss for loss, _ in found]).sum()
        entropy = mean(-(p * p.clamp_min(1e-12).log()).sum(0), counted)
        loops = torch.arange(1, config.loops + 1, device=p.device, dtype=p.dtype)
        beta = config.beta if progress < FIRST else config.beta_end
        return {
            "loss": expected - beta * entropy,
            "expected": expected.detach(),
            "entropy": entropy.detach(),
            "exit_loop": mean(torch.einsum("lbt,l->bt", p, loops), counted).detach(),
            "cross_entropy": mean(found[-1][1], counted),
        }

    def gate_loss(self, tokens: Tensor, targets: Tensor, here: Pass) -> dict[str, Tensor]:
        """The second stage: the gate of a loop learns whether that loop was worth it."""
        config = self.config
        losses, logits = [], []
        h = self.embed(tokens, here)
        for t in range(config.loops):
            with torch.no_grad():
                h = self.loop(t, h, here)
                losses.append(token_losses(h, self.unembedding, targets))
            logits.append(self.gate(h).squeeze(-1))
        counted = targets != IGNORE
        gains = [(before - after).clamp_min(0) for before, after in pairwise(losses)]
        total = torch.zeros((), device=h.device, dtype=logits[0].dtype)
        for gain, logit in zip(gains, logits[1:], strict=True):
            go_on = torch.sigmoid(SHARPNESS * (gain - config.gain)).to(logit.dtype)
            wrong = F.binary_cross_entropy_with_logits(-logit, go_on, reduction="none")
            total = total + mean(wrong, counted) / config.loops
        # the first gate has no target of its own; it stays in the graph
        return {"loss": total + 0 * logits[0].sum(), "cross_entropy": mean(losses[-1], counted)}

    @property
    def uses_all_weights(self) -> bool:
        return self.config.trains == "all"

    # --- how it describes itself ----------------------------------------------------------------------------

    @property
    def points(self) -> tuple[Point, ...]:
        """After every loop."""
        return tuple(Point(f"loops.{t}.out") for t in range(self.config.loops))

    def read_stream(self, state: Tensor, stream: int) -> Tensor:  # noqa: ARG002
        return state  # normed after every loop

    def check_exit(self) -> None:
        """Every loop makes the same calls."""

    @property
    def exit_sites(self) -> tuple[str, ...]:
        return tuple(f"loops.{t}.gate" for t in range(self.config.loops))

    @property
    def calls(self) -> tuple[Call, ...]:
        """What attention and MLP of every block add in every loop."""
        return tuple(
            Call(f"loops.{t}.blocks.{b}.{part}", None, part, t)
            for t in range(self.config.loops)
            for b in range(self.config.blocks)
            for part in ("attn", "mlp")
        )

    def flops_per_token(self, context: int) -> Flops:
        c = self.config
        loops, unembed = c.loops * c.blocks * c.block_cost(context), c.dim * c.vocab_size
        heads = c.loops * (unembed + c.dim)  # training reads every loop and its gate
        training = loops + heads + 2 * c.loops * c.dim if c.trains == "gate" else 3 * (loops + heads)
        return Flops(round(2 * (loops + unembed)), round(2 * training))

    @torch.no_grad()
    def initialize(self) -> None:
        super().initialize()
        self.gate.weight.zero_()  # every loop is stopped at half the time
        assert self.gate.bias is not None
        self.gate.bias.zero_()


def exit_probabilities(stop: Tensor) -> Tensor:
    """λ [loops, …] → p [loops, …]: of stopping after each loop; they add up to 1.

    >>> exit_probabilities(torch.tensor([0.5, 0.5, 0.5]))
    tensor([0.5000, 0.2500, 0.2500])
    """
    going = torch.cumprod(1 - stop[:-1], dim=0)  # after each loop but the last
    before = torch.cat((torch.ones_like(stop[:1]), going))
    return torch.cat((stop[:-1] * before[:-1], before[-1:]))


def mean(values: Tensor, counted: Tensor) -> Tensor:
    """Over the tokens that count."""
    return (values * counted).sum() / counted.sum().clamp(min=1)
