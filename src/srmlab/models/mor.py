"""Mixture-of-Recursions: one stack of blocks shared by several recursions, and a router that decides which
tokens continue. A token that exits costs nothing more: nothing is computed for it.

    h = First(Embedding(tokens))                             a block of its own
    for every recursion r = 0 … R − 1, over the tokens that are still there:
        h = h + gate_r · Core(h)                             attention among them alone
    logits = Unembedding(RMSNorm(Last(h)))                   a block of its own

choice = "expert": one router per recursion, gate = 0.1·σ(w_r·h). In training the top (R − r)/R of all tokens
continue, chosen among those still there; since that looks at later tokens, the router also learns to predict
it (binary cross-entropy), and outside training a token continues if σ > 1/2: causal. choice = "token": one
router picks a number of recursions for every token by softmax; the output of its last recursion is weighted
by that probability and added to the first block's. A balance loss and a z-loss keep all choices in use.

keys = "own": a recursion attends to the keys and values of the tokens in it. keys = "shared": to those that
the first recursion computed for all tokens, and computes none of its own.

Sites: input.embedding   first.attn|mlp|out   [router]   recursions.{r}.[router]   recursions.{r}.blocks.{b}.…
recursions.{r}.gate|out   last.attn|mlp|out   output.embedding   logits
If a site is hooked, all tokens are computed and the results of those that exited are not used: sites have
every token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import repeat
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srmlab.models.attention import SITES, attend
from srmlab.models.block import Block, BlockConfig, BlockModel
from srmlab.models.cache import Kept, Past, SomeRows
from srmlab.models.config import NANO, Sizes
from srmlab.models.contract import Call, Flops, Losses, Point
from srmlab.models.fields import require
from srmlab.models.forward import Pass, causal_mask, padding_mask
from srmlab.models.kernels import rotate
from srmlab.models.loss import chunked_cross_entropy
from srmlab.models.registry import register

GATE = 0.1  # the most that an expert-choice recursion adds


@dataclass(frozen=True, kw_only=True)
class MoRConfig(BlockConfig):
    """The defaults are those of the 360M model with three recursions: 118M without its embedding."""

    architecture: ClassVar[str] = "mor"

    vocab_size: int = 49152  # number of token ids
    context: int = 2048  # longest sequence, in tokens
    dim: int = 960  # width of the residual stream
    heads: int = 15  # attention heads
    kv_heads: int = 5  # key-value heads, for grouped-query attention; 0: as many as heads
    head_dim: int = 64  # width of an attention head
    mlp_dim: int = 2560  # hidden width of an MLP
    core: int = 10  # shared blocks
    recursions: int = 3  # times the shared blocks are applied, at most
    choice: Literal["expert", "token"] = "expert"  # recursions choose tokens, or tokens their depth
    keys: Literal["own", "shared"] = "own"  # keys and values of each recursion, or the first one's
    router_loss: float = 1e-3  # expert-choice: weight of the loss for predicting the choice
    balance_loss: float = 0.1  # token-choice: weight of the balance loss
    z_loss: float = 1e-5  # token-choice: weight of the z-loss

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("core", "recursions")
        self.require_not_negative("router_loss", "balance_loss", "z_loss")
        require(self, "norms", self.norms != "sum", 'must be "before" or "around"')

    @property
    def shares(self) -> list[float]:
        """Of the tokens, those in each recursion: in training with expert-choice, or in balance."""
        return [(self.recursions - r) / self.recursions for r in range(self.recursions)]

    def capacity(self, r: int, tokens: int) -> int:
        """How many of a row's tokens training keeps in recursion r."""
        return max(1, tokens * (self.recursions - r) // self.recursions)

    @property
    def sizes(self) -> Sizes:
        return self.block_sizes(2 + self.recursions * self.core, self.recursions, f"1+{self.core}+1")

    @property
    def shape(self) -> str:
        return (
            f"1 + {self.core} + 1 blocks × {self.dim}, {self.recursions} recursions, {self.choice}-choice, "
            f"{self.keys} keys"
        )

    @property
    def drawing(self) -> str:
        if self.choice == "expert":
            rule = [f"     gate = {GATE}·σ(w_r·h)                       the best (R − r)/R go on"]
        else:
            rule = ["     a softmax router has picked each token's number of recursions"]
        keys = "of the tokens in it" if self.keys == "own" else "of all tokens, from the first recursion"
        return "\n".join(
            [
                f"h    tokens → embedding {self.dim} → a first block",
                f"{self.recursions} recursions of {self.core} blocks, for the tokens that go on",
                *rule,
                f"     h = h + gate·core(h)                      keys {keys}",
                f"out  a last block → RMSNorm → {self.output_line}",
                "",
                "A block:",
                *self.block_lines,
            ]
        )


def mor() -> MoRConfig:
    """The 360M model of the paper with three recursions, expert-choice: 118M without its embedding."""
    return MoRConfig()


def mor_nano() -> MoRConfig:
    """Mixture-of-Recursions at nano size, expert-choice."""
    return MoRConfig(**NANO, dim=128, heads=4, kv_heads=4, head_dim=32, mlp_dim=352, core=2, recursions=3)


def mor_token_nano() -> MoRConfig:
    """The same with token-choice."""
    return mor_nano().replace(choice="token")


class RecursionBlock(Block):
    """A block that can look at keys and values made before."""

    def attended(self, h: Tensor, here: Pass) -> Tensor:
        if here.lent is None:
            return super().attended(h, here)
        q = self.queries(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        assert here.rotary is not None
        q, (k, v) = rotate(q, *here.rotary), here.lent
        if here.wants(*SITES):
            q, k, v = (here.heads(f"attention.{name}", x) for name, x in zip("qkv", (q, k, v), strict=True))
        return attend(q, k, v, here)

    def queries(self, h: Tensor) -> Tensor:
        """Those rows of `qkv` alone; what another tool has put in its place (an adapter) is called whole."""
        if type(self.qkv) is nn.Linear:
            return F.linear(h, self.qkv.weight[: self.widths[0]])
        return self.qkv(h)[..., : self.widths[0]]


@dataclass
class Routing:
    """What a pass decided, by recursion."""

    kept: list[Tensor]  # [B, T] which tokens were in it
    logits: list[Tensor]  # expert-choice: [B, T] by recursion; token-choice: one [B, T, R]


@register
class MoR(BlockModel[MoRConfig]):
    """Mixture-of-Recursions: shared blocks, and a router that decides which tokens go on."""

    presets: ClassVar = {"mor": mor, "mor-nano": mor_nano, "mor-token-nano": mor_token_nano}
    units = (Block,)
    level_name = "recursions"
    parts: ClassVar = {
        "first_block": "first block",
        "routers.*": "router {i}",
        "core_blocks.*": "core block {i}",
        "last_block": "last block",
        "head": "unembedding",
    }

    def __init__(self, config: MoRConfig) -> None:
        super().__init__()
        self.config = config
        self.make_ends(config)
        self.first_block = Block(config)
        outputs = [1] * config.recursions if config.choice == "expert" else [config.recursions]
        self.routers = nn.ModuleList(nn.Linear(config.dim, n, bias=False) for n in outputs)
        self.core_blocks = nn.ModuleList(RecursionBlock(config) for _ in range(config.core))
        self.last_block = Block(config)
        self.ready()

    def hidden(self, tokens: Tensor, here: Pass) -> Tensor:
        return self.routed(tokens, here, best=False)[0]

    def routed(self, tokens: Tensor, here: Pass, best: bool) -> tuple[Tensor, Routing]:
        """The embedding [B, T, E] that is read out, and the routing; `best`: by rank, as in training."""
        h = here.call("first", self.first_block, self.embed(tokens, here))
        routing = Routing([], [])
        h = (
            self.by_expert(h, here, routing, best)
            if self.config.choice == "expert"
            else self.by_token(h, here, routing)
        )
        h = here.call("last", self.last_block, h)
        return here("output.embedding", self.norm(h)), routing

    def by_expert(self, h: Tensor, here: Pass, routing: Routing, best: bool) -> Tensor:
        there = torch.ones(h.shape[:2], dtype=torch.bool, device=h.device)
        lent: list[Kept] = []
        for r in range(self.config.recursions):
            inside = here.at(f"recursions.{r}")
            logits = inside("router", self.routers[r](h))
            scores = logits.squeeze(-1)
            keep = top(scores, there, self.config.capacity(r, h.shape[1])) if best else there & (scores > 0)
            gate = inside("gate", GATE * torch.sigmoid(logits) * keep[..., None])
            h = inside("out", h + gate * self.core(r, h, keep, here, lent))
            routing.kept.append(keep)
            routing.logits.append(scores)
            there = keep
        return h

    def by_token(self, h: Tensor, here: Pass, routing: Routing) -> Tensor:
        logits = here("router", self.routers[0](h))
        chosen, last = logits.softmax(-1).max(-1, keepdim=True)  # [B, T, 1]: probability, and last recursion
        first = h
        lent: list[Kept] = []
        for r in range(self.config.recursions):
            inside = here.at(f"recursions.{r}")
            gate = inside("gate", torch.where(last == r, chosen, (last > r).to(h.dtype)))
            base = torch.where(last == r, first, h * (last < r))
            h = inside("out", base + gate * self.core(r, h, last.squeeze(-1) >= r, here, lent))
            routing.kept.append(last.squeeze(-1) >= r)
        routing.logits.append(logits)
        return h

    # --- the shared blocks, for the tokens that are kept ---------------------------------------------------

    def core(self, r: int, h: Tensor, keep: Tensor, here: Pass, lent: list[Kept]) -> Tensor:
        """Core(h) [B, T, D] of the tokens kept; what it says of others is not to be taken. `lent` is filled
        by the first recursion where keys are shared, and read by the others.
        """
        share = self.config.keys == "shared"
        if here.silent and here.cache is None and not torch.compiler.is_compiling():
            return self.gathered(r, h, keep, here, lent)
        inside = copy(here.at(f"recursions.{r}"))
        looks = keep
        if here.cache is not None and not share:
            before = here.cache.kept.get(r, keep[:, :0])
            looks = here.cache.kept[r] = torch.cat((before, keep), dim=1)
        if not share:
            # who has left is not looked at, like padding
            inside.mask = padding_mask(looks, looks.shape[1] - h.shape[1], here.mask)
        if here.silent and here.cache is not None:
            return self.rows(r, h, keep, inside, lent)
        slots = self.keeping(r, here.slots, lent)
        return self.blocks(h, inside, slots, None if r == 0 or not share else lent)

    def blocks(
        self, h: Tensor, inside: Pass, slots: Iterator[Past] | None, lent: Sequence[Kept] | None
    ) -> Tensor:
        for b, block in enumerate(self.core_blocks):
            own = copy(inside)  # a block that is computed again in the backward pass finds what it found
            own.lent = None if lent is None else lent[b].values
            own.slots = None if slots is None else repeat(next(slots)) if lent is None else slots
            h = own.call(f"blocks.{b}", block, h)
        return h

    def keeping(self, r: int, slots: Iterator[Past] | None, lent: list[Kept]) -> Iterator[Past] | None:
        """Where the blocks of a recursion put their keys and values."""
        if self.config.keys == "own":
            return slots
        if r == 0:
            lent[:] = [Kept(None if slots is None else next(slots)) for _ in self.core_blocks]
            return iter(lent)
        return slots

    def rows(self, r: int, h: Tensor, keep: Tensor, inside: Pass, lent: list[Kept]) -> Tensor:
        """While decoding: only the rows that go on are computed."""
        B, T, _ = h.shape
        share, slots = self.config.keys == "shared", inside.slots
        assert slots is not None
        everyone = share and r == 0  # all make the keys that are shared
        on = torch.arange(B, device=h.device) if everyone else keep.any(1).nonzero().flatten()
        if everyone or len(on) == B:
            return self.blocks(h, inside, self.keeping(r, slots, lent), lent if share and r else None)
        if share:
            some = [Kept(None, tuple(part[on] for part in one.values)) for one in lent]
            passed: Iterator[Past] = slots
        else:
            some = None
            passed = iter([SomeRows(next(slots), on, B) for _ in self.core_blocks])
        if len(on) == 0:
            for slot in passed if not share else ():
                empty = h.new_zeros(0, self.config.heads, T, self.config.head_dim)
                slot.append(empty, empty)
            return torch.zeros_like(h)
        inside.mask = None if inside.mask is None else inside.mask[on]
        return torch.zeros_like(h).index_copy(0, on, self.blocks(h[on], inside, passed, some))

    def gathered(self, r: int, h: Tensor, keep: Tensor, here: Pass, lent: list[Kept]) -> Tensor:
        """Without a cache: the kept tokens of every row, moved together, and nothing else."""
        B, T, D = h.shape
        share, inside = self.config.keys == "shared", copy(here)
        if share and r == 0:  # all make the keys that are shared
            return self.blocks(h, inside, self.keeping(r, None, lent), None)
        most = round(T * self.config.shares[r]) if h.is_meta else int(keep.sum(1).max())
        if most == T and (share or h.is_meta or bool(keep.all())):
            return self.blocks(h, inside, None, lent if share else None)
        if most == 0:
            return torch.zeros_like(h)
        places = torch.argsort((~keep).int(), dim=1, stable=True)[:, :most]  # [B, most], the kept ones first
        assert here.rotary is not None
        cos, sin = (table[places][:, None] for table in here.rotary)  # [B, 1, most, K/2]
        inside.rotary = cos, sin
        inside.mask = here.mask
        if share:
            mask = here.mask
            if mask is None:
                mask = causal_mask(T, T, h.device).expand(B, 1, T, T)
            inside.mask = mask[:, 0].gather(1, places[..., None].expand(-1, -1, mask.shape[-1]))[:, None]
        elif here.mask is not None:  # documents: of the kept tokens, causal in their own order
            mask = here.mask[:, 0].gather(1, places[..., None].expand(-1, -1, T))
            mask = mask.gather(2, places[:, None].expand(-1, most, -1)).tril()
            inside.mask = (mask | torch.eye(most, dtype=torch.bool, device=h.device))[:, None]
        index = places[..., None].expand(-1, -1, D)
        out = self.blocks(h.gather(1, index), inside, None, lent if share else None)
        valid = keep.gather(1, places)[..., None]
        return torch.zeros_like(h).scatter(1, index, out * valid)

    # --- training ------------------------------------------------------------------------------------------

    def training_loss(self, tokens: Tensor, targets: Tensor, here: Pass, progress: float) -> Losses:  # noqa: ARG002
        c = self.config
        hidden, routing = self.routed(tokens, here, best=True)
        loss = chunked_cross_entropy(hidden, self.unembedding, targets)
        found = {"loss": loss, "cross_entropy": loss.detach()}
        if c.choice == "expert":
            there = [torch.ones_like(routing.kept[0]), *routing.kept[:-1]]
            wrong = [
                (F.binary_cross_entropy_with_logits(x, kept.to(x.dtype), reduction="none") * among).sum()
                / among.sum()
                for x, kept, among in zip(routing.logits, routing.kept, there, strict=True)
            ]
            router = torch.stack(wrong).sum()
            found |= {"loss": loss + c.router_loss * router, "router": router.detach()}
        else:
            (logits,) = routing.logits
            p = logits.softmax(-1).flatten(0, 1)
            chosen = F.one_hot(p.argmax(-1), c.recursions).to(p.dtype)
            balance = c.recursions * (chosen.mean(0) * p.mean(0)).sum()
            z = logits.logsumexp(-1).square().mean()
            total = loss + c.balance_loss * balance + c.z_loss * z
            found |= {"loss": total, "balance": balance.detach(), "z": z.detach()}
        computed = torch.stack([kept.to(loss.dtype).mean() for kept in routing.kept]).sum()
        return found | {"recursions": computed.detach()}

    # --- how it describes itself ----------------------------------------------------------------------------

    @property
    def points(self) -> tuple[Point, ...]:
        """After every recursion, and after the last block."""
        levels = [Point(f"recursions.{r}.out") for r in range(self.config.recursions)]
        return (*levels, Point("last.out"))

    @property
    def depth(self) -> int:
        return self.config.recursions

    def finish(self, point: Point, values: Mapping[str, Tensor], documents: Tensor | None = None) -> Tensor:
        """Through the last block."""
        h = values[point.sites[0]]
        here = Pass(documents=documents)
        here.rotary = self.rotary(0, h.shape[1], like=h)
        return self.last_block(h, here)[:, :, None]

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every recursion moves the state of the tokens in it."""
        sites = ["first.out", *(f"recursions.{r}.out" for r in range(self.config.recursions))]
        return tuple(Call(sites[r + 1], sites[r], "core", r) for r in range(self.config.recursions))

    @property
    def route_sites(self) -> tuple[str, ...]:
        return tuple(f"recursions.{r}.gate" for r in range(self.config.recursions))

    def routed_flops(self, context: int, shares: Sequence[float]) -> float:
        c = self.config
        total = 2 * c.block_cost(context) + c.dim * c.vocab_size + c.recursions * c.dim
        for r, share in enumerate(shares):
            if c.keys == "own":
                total += share * c.core * c.block_cost(share * context)
            elif r == 0:
                total += c.core * c.block_cost(context)
            else:
                total += share * c.core * (c.block_cost(context) - 2 * c.dim * c.keys_width)
        return 2 * total

    def flops_per_token(self, context: int) -> Flops:
        """With the shares of training; what a pass really ran is `routed_flops` of its own shares."""
        forward = round(self.routed_flops(context, self.config.shares))
        return Flops(forward, 3 * forward)


def top(scores: Tensor, there: Tensor, k: int) -> Tensor:
    """[B, T] Which k tokens have the best scores, of those that are there."""
    best = scores.masked_fill(~there, -math.inf).topk(k, dim=1).indices
    return torch.zeros_like(there).scatter(1, best, True) & there
