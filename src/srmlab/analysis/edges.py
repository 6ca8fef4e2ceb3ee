"""Edges: which connections between streams the prediction needs, and how few of them are enough.

An edge (layer, head, target, source) is one weight of the connection's pattern. Every edge gets a gate g, 1
in the model as it is, and carries g · weight + (1 − g) · level. The level is 0 (`by="zero"`: a closed edge
carries nothing), or the edge's mean weight (`by="mean"`: it still contributes, but no longer depends on the
token). The patterns of later layers react to what a closed gate changes.

    exact         the change in loss when this one gate is closed: one pass per edge
    attribution   −∂loss/∂g at g = 1: one backward pass for all edges
    integrated    the mean of −∂loss/∂g as all gates go from 0 to 1 (integrated gradients, by Gauss–Legendre
                  quadrature). Over all edges it sums to the loss with all gates closed minus the loss

A circuit is a set of edges whose gates stay open while all others are closed: those with the largest
integrated gradients. The smallest that keeps the loss within a margin on one half of the text is tested on
the other half, next to as many edges chosen by attribution, by mean weight, and at random. Sizes fall by a
quarter; between the last within the margin and the first beyond it, the smallest is found to 4 edges.

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano", streams=4, depth=3, gradient_depth=1))
    >>> text = [torch.arange(64).view(2, 32), torch.arange(64, 128).view(2, 32)]
    >>> found = srmlab.analysis.edges(model, text, exact=4, draws=1)
    >>> found.attribution.shape                                 # layer, head, target, source
    (3, 2, 4, 4)
    >>> gap = found.integrated.sum() - found.chosen[-1]         # chosen: loss over edges kept, here none
    >>> bool(abs(gap) < 1e-3)
    True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.bootstrap import correlation
from srmlab.analysis.capture import (
    Accumulator,
    Batches,
    Done,
    Mean,
    Placed,
    counting,
    evidence_of,
    finished,
    placed,
)
from srmlab.analysis.interventions import Hook
from srmlab.analysis.readout import sequence_losses
from srmlab.analysis.registry import pattern_sites
from srmlab.analysis.result import Array, Coordinate, Evidence, Measured, Result, derived
from srmlab.analysis.routing import EDGES as AXES
from srmlab.errors import UserError, check_choice
from srmlab.models import HookPoint, LanguageModel, gradient_everywhere

Level = Literal["zero", "mean"]
MARGIN = 0.05  # nats
NODES = 8  # gates' values at which the integrated gradient is taken
TOGETHER = 4096  # tokens of a pass in which edges are closed one by one
CLOSED = 0.25  # of the edges, from one size of a circuit to the next
FINE = 4  # edges: how exactly the smallest size is found between two of these
STRONGEST = 5  # edges that the summary names
Say = Callable[[str, int], Done]  # what, and how much of it


@dataclass(frozen=True, kw_only=True, eq=False)
class Edges(Result):
    """Which edges between streams the prediction needs; made by `edges`."""

    kind: ClassVar[str] = "edges"
    columns: ClassVar[tuple[str, ...]] = ("weight", "exact", "attribution", "integrated")

    by: str  # what a closed edge carries: zero, or its mean weight
    margin: float  # nats of loss that a circuit may cost
    circuit: tuple[tuple[int, int, int, int], ...]  # the edges (layer, head, target, source) of the smallest
    named: tuple[int, ...] = ()  # numbers of the strongest edges, if closed besides those drawn at random
    weight: Annotated[Array, Measured(AXES, "mean over tokens")]
    exact: Annotated[Array, Measured(AXES, "nats, loss with the edge closed − loss; NaN if not tried")]
    attribution: Annotated[Array, Measured(AXES, "nats, −∂loss/∂gate")]
    integrated: Annotated[Array, Measured(AXES, "nats, −∂loss/∂gate, mean over gates from 0 to 1")]
    sizes: Annotated[Array, Coordinate("size", "edges kept")]
    chosen: Annotated[Array, Measured("size", "nats, loss of the circuit − loss, where it was chosen")]
    by_integrated: Annotated[Array, Measured("size", "nats, loss of the circuit − loss, on other text")]
    by_attribution: Annotated[Array, Measured("size", "nats, the same of the edges with most attribution")]
    by_weight: Annotated[Array, Measured("size", "nats, the same of the edges with most mean weight")]
    random: Annotated[Array, Measured("draw size", "nats, the same of edges drawn at random")]

    @derived("", "edges")
    def smallest(self) -> float:
        """The size of the smallest circuit within the margin, where it was chosen."""
        return float(self.sizes[smallest_within(self.chosen, self.margin)])

    @derived("", "edges")
    def smallest_random(self) -> float:
        """How many edges at random it takes to be within the margin on other text, in the mean of draws."""
        return float(self.sizes[smallest_within(self.random.mean(0), self.margin)])

    @derived("", "nats")
    def cost(self) -> float:
        """What the smallest circuit costs on other text."""
        return float(self.by_integrated[smallest_within(self.chosen, self.margin)])

    @derived("", "nats")
    def cost_random(self) -> float:
        """What as many edges at random cost; mean over draws."""
        return float(self.random[:, smallest_within(self.chosen, self.margin)].mean())

    @derived("", "nats")
    def cost_of_none(self) -> float:
        """What it costs to close every edge."""
        return float(self.by_integrated[-1])

    @derived(AXES, "nats")
    def sample(self) -> Array:
        """The exact effects of the edges drawn at random; NaN of all others."""
        found = self.exact.copy()
        found.flat[list(self.named)] = np.nan
        return found

    @derived("", "correlation")
    def agreement(self) -> float:
        """Of attribution with the exact effect, over the edges drawn at random."""
        return correlation(self.attribution, self.sample)

    @derived("", "correlation")
    def integrated_agreement(self) -> float:
        return correlation(self.integrated, self.sample)

    @derived("", "correlation")
    def weight_agreement(self) -> float:
        """Of the mean weight, which takes no gradient, with the exact effect."""
        return correlation(self.weight, self.sample)

    def headline(self) -> str:
        return (
            f"{self.smallest:.0f} of {self.weight.size:,} edges keep the loss within {self.margin:g} nats: "
            f"{self.cost:+.3f} on other text, as many random edges {self.cost_random:+.3f}"
        )

    def summary(self) -> str:
        tried = int(np.isfinite(self.sample).sum())
        closed = "carries nothing" if self.by == "zero" else "has its mean weight"
        at = smallest_within(self.chosen, self.margin)
        lines = [
            f"Edges ({self.evidence})",
            f"  a closed edge {closed}; all closed, the loss rises by {self.text('cost_of_none')} nats",
            f"  {self.headline()}",
            f"    as many by attribution {self.text('by_attribution', '+.3f', (at,))}, "
            f"by mean weight {self.text('by_weight', '+.3f', (at,))}",
            f"    at random it takes {self.smallest_random:.0f} edges (sizes are exact to {FINE})",
            f"  correlation with the exact effect of {tried:,} random edges: "
            f"attribution {self.text('agreement')}, "
            f"integrated gradients {self.text('integrated_agreement')}, "
            f"mean weight {self.text('weight_agreement')}",
        ]
        order = np.argsort(-self.integrated, axis=None)[:STRONGEST]
        for edge in zip(*np.unravel_index(order, self.integrated.shape), strict=True):
            at = tuple(int(i) for i in edge)
            lines.append(
                f"  {named(at)}: integrated {self.text('integrated', '+.4f', at)}, "
                f"exact {self.text('exact', '+.4f', at)} nats, mean weight {self.weight[at]:.2f}"
            )
        return "\n".join(lines)


def named(edge: Sequence[int]) -> str:
    layer, head, target, source = edge
    return f"layer {layer}, head {head}, S{target} ← S{source}"


def gate_edges(model: LanguageModel, gates: Tensor, levels: Tensor | None = None) -> list[Hook]:
    """Hooks that let every edge carry gate · weight + (1 − gate) · level.

    Gates [L, H, target, source] or, some for each sequence, [B, L, H, target, source]; levels [L, H, target,
    source], by default 0.
    """

    def gated(layer: int) -> Callable[[Tensor, HookPoint], Tensor]:
        def hook(pattern: Tensor, _: HookPoint) -> Tensor:  # [B, T, H, target, source]
            gate = gates[layer] if gates.ndim == 4 else gates[:, None, layer]
            gate = gate.to(pattern.dtype)
            open_part = pattern * gate
            return open_part if levels is None else open_part + (1 - gate) * levels[layer].to(pattern.dtype)

        return hook

    return [(site, gated(layer)) for layer, site in enumerate(pattern_sites(model, "gate_edges"))]


class Circuits:
    """Losses and gradients of one model on one text under gates, a row for each sequence. Sequences do not
    meet, so a gate of its own for each gives each its own gradient in one pass."""

    def __init__(self, model: LanguageModel, batches: Sequence[Placed]) -> None:
        self.model, self.batches = model, batches
        S = len(model.streams)
        self.shape = (len(model.exchanges), model.exchanges[0].heads, S, S)
        self.levels: Tensor | None = None
        self.unembedding = self.model.unembedding.detach().float()

    @property
    def open(self) -> Tensor:
        """The gates of the model as it is."""
        return torch.ones(self.shape, device=self.model.device)

    def mean(self, rows: Tensor, over: Literal["tokens", "targets"] = "targets") -> Mean:
        """The mean of per-sequence sums [N, …]."""
        found = Mean(*rows.shape[1:], over=over)
        for batch, part in zip(self.batches, rows.split([len(b.tokens) for b in self.batches]), strict=True):
            found.add(batch, part)
        return found

    def weights(self) -> Tensor:
        """[N, L, H, target, source] The sum over tokens of every edge's weight."""
        sites, rows = pattern_sites(self.model, "edges"), []
        for batch in self.batches:
            with torch.inference_mode():
                _, cache = self.model.run_with_cache(batch.tokens, sites, documents=batch.documents)
            patterns = [self.model.at_tokens(cache[site]) for site in sites]
            rows.append(torch.stack([pattern.float().sum(1).cpu() for pattern in patterns], 1))
        return torch.cat(rows)

    def losses(self, batch: Placed, gates: Tensor) -> Tensor:
        """[B] The sum of each sequence's losses."""
        with self.model.hooks(gate_edges(self.model, gates, self.levels)):
            hidden = self.model.output_embedding(batch.tokens, documents=batch.documents)
        return sequence_losses(hidden, self.unembedding, batch.targets)

    def loss(self, gates: Tensor) -> Tensor:
        """[N] The sum of each sequence's losses."""
        with torch.inference_mode():
            return torch.cat([self.losses(batch, gates).cpu() for batch in self.batches])

    def attribution(self, gates: Tensor) -> tuple[Tensor, Tensor]:
        """−∂loss/∂gate of every edge under these gates [N, L, H, target, source], and the loss [N]."""
        rows, losses = [], []
        for batch in self.batches:
            own = gates.expand(len(batch.tokens), *self.shape).clone().requires_grad_()
            with torch.enable_grad(), gradient_everywhere():
                loss = self.losses(batch, own)
                (gradient,) = torch.autograd.grad(loss.sum(), own)
            rows.append(-gradient.cpu())
            losses.append(loss.detach().cpu())
        return torch.cat(rows), torch.cat(losses)

    def integrated(self, done: Done) -> Tensor:
        """[N, L, H, target, source] The mean of −∂loss/∂gate while all gates open together."""
        total = torch.zeros(())
        for place, share in zip(*np.polynomial.legendre.leggauss(NODES), strict=True):
            total = total + share / 2 * self.attribution(self.open * (1 + place) / 2)[0]
            done()
        return total

    def exact(self, edges: Sequence[int], done: Done) -> Tensor:
        """[N, L, H, target, source] The change of the loss with one edge closed, for some edges (by their
        number); NaN for the rest."""
        before, rows = self.loss(self.open), []
        for batch in self.batches:
            B, T = batch.tokens.shape
            change = torch.full((B, self.open.numel()), torch.nan)
            for together in torch.tensor(edges).split(max(1, TOGETHER // (B * T))):
                n = len(together)
                gates = self.open.expand(n, *self.shape).clone()
                gates.view(n, -1)[torch.arange(n), together] = 0
                with torch.inference_mode():
                    losses = self.losses(repeated(batch, n), gates.repeat_interleave(B, 0))
                change[:, together] = losses.cpu().view(n, B).T
                done(n)
            rows.append(change)
        return (torch.cat(rows) - before[:, None]).view(-1, *self.shape)

    @cached_property
    def full(self) -> Tensor:
        """[N] The loss of the model as it is."""
        return self.loss(self.open)

    def costs(self, orders: Sequence[Tensor], sizes: Sequence[int], say: Say) -> Tensor:
        """[N, order, size] What it costs to keep only the first edges of each order."""
        done = say(f"circuits in {len(orders)} orders", len(sizes))
        rows = []
        for size in sizes:
            rows.append(self.cost(orders, size))
            done()
        return torch.stack(rows, -1)

    def cost(self, orders: Sequence[Tensor], size: int) -> Tensor:
        """[N, order] The same for one size."""
        distinct = orders if 0 < size < self.open.numel() else orders[:1]  # all, or none, are one set
        costs = [self.loss(first(order, size, self.open)) - self.full for order in distinct]
        return torch.stack(costs, 1).expand(-1, len(orders))

    def smallest(self, orders: Sequence[Tensor], margin: float) -> list[int]:
        """Sizes between which the mean cost of some orders crosses the margin, closer and closer."""
        sizes, tried = shrinking(self.open.numel()), []

        def within(size: int) -> bool:
            return float(self.mean(self.cost(orders, size)).mean.mean()) <= margin

        good = next((a for a, b in pairwise(sizes) if not within(b)), 0)
        bad = int(good * (1 - CLOSED))
        while good - bad > FINE:
            tried.append((good + bad) // 2)
            good, bad = (tried[-1], bad) if within(tried[-1]) else (good, tried[-1])
        return tried


def repeated(batch: Placed, times: int) -> Placed:
    """The sequences of a batch again and again."""
    documents = None if batch.documents is None else batch.documents.repeat(times, 1)
    return Placed(batch.tokens.repeat(times, 1), batch.targets.repeat(times, 1), documents)


class EdgeSums(Accumulator):
    """All that was measured, for a result and the standard errors of what it derives."""

    def __init__(
        self, by: Level, margin: float, sizes: list[int], means: dict[str, Mean], named: Sequence[int] = ()
    ) -> None:
        self.by, self.margin, self.sizes, self.means, self.named = by, margin, sizes, means, tuple(named)

    def result(self, evidence: Evidence) -> Edges:
        size = self.sizes[smallest_within(self.means["chosen"].mean, self.margin)]
        integrated = self.means["integrated"].mean
        kept = np.unravel_index(
            np.sort(np.argsort(-integrated, axis=None, kind="stable")[:size]), integrated.shape
        )
        return Edges(
            evidence=evidence,
            by=self.by,
            margin=self.margin,
            circuit=tuple((int(l), int(h), int(t), int(r)) for l, h, t, r in zip(*kept, strict=True)),
            named=self.named,
            sizes=np.array(self.sizes),
            **self.numbers(),
        )


def edges(
    model: LanguageModel,
    batches: Batches,
    *,
    margin: float = MARGIN,
    by: Level = "zero",
    exact: int | None = None,
    draws: int = 3,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> Edges:
    """The worth of every edge, and the smallest circuit within a margin of the loss.

    The first half of the batches is what edges are chosen on, the second what circuits are tested on. `exact`
    is how many edges, drawn at random, are closed one by one besides the strongest; by default all.
    `progress` is called with a name, how much is done, and of how much.
    """
    pattern_sites(model, "edges")
    check(margin, by, draws)
    given = list(placed(batches, model.device))
    if len(given) < 2:
        raise UserError("edges are chosen on one half of the text and tested on the other: give two batches")
    for batch in given:
        model.check_tokens(batch.tokens, documents=batch.documents, targets=batch.targets)
    halves = given[: len(given) // 2], given[len(given) // 2 :]
    if not all(any(bool(batch.counted.any()) for batch in half) for half in halves):
        raise UserError("half of the text has no next token: give windows of at least two tokens, or targets")

    def say(name: str, total: int) -> Done:
        return counting(progress, total, name)

    with model.evaluating():
        here, there = (Circuits(model, half) for half in halves)
        draw = torch.Generator().manual_seed(seed)
        weight = here.mean(here.weights(), "tokens")
        if by == "mean":
            here.levels = there.levels = torch.from_numpy(weight.mean).float().to(model.device)
        tried = torch.randperm(here.open.numel(), generator=draw)[:exact].tolist()
        means = {"weight": weight}
        means["integrated"] = here.mean(here.integrated(say("integrated gradients", NODES)))
        named = sorted({*ranking(means["integrated"])[:STRONGEST].tolist()} - {*tried})
        closed = [*tried, *named]
        means["exact"] = here.mean(here.exact(closed, say("exact effects", len(closed) * len(here.batches))))
        means["attribution"] = here.mean(here.attribution(here.open)[0])
        orders = {
            "by_integrated": ranking(means["integrated"]),
            "by_attribution": ranking(means["attribution"]),
            "by_weight": ranking(weight),
        }
        random = [torch.randperm(here.open.numel(), generator=draw) for _ in range(draws)]
        sizes = {*shrinking(here.open.numel()), *here.smallest([orders["by_integrated"]], margin)}
        sizes = sorted(sizes | {*there.smallest(random, margin)}, reverse=True)
        means["chosen"] = here.mean(here.costs([orders["by_integrated"]], sizes, say)[:, 0])
        costs = there.costs([*orders.values(), *random], sizes, say)  # [N, order, size]
        means |= {name: there.mean(costs[:, i]) for i, name in enumerate(orders)}
        means["random"] = there.mean(costs[:, len(orders) :])
    return finished(EdgeSums(by, margin, sizes, means, named), evidence_of(given))


def check(margin: float, by: str, draws: int) -> None:
    if not 0 < margin < float("inf"):
        raise UserError(f"margin = {margin}: give nats above 0")
    check_choice("by", by, get_args(Level))
    if draws < 1:
        raise UserError(f"draws = {draws}: give 1 or more")


def shrinking(count: int) -> list[int]:
    """The sizes of the circuits: count, three quarters of it, … 1, 0."""
    sizes = [count]
    while sizes[-1]:
        sizes.append(int(sizes[-1] * (1 - CLOSED)))
    return sizes


def smallest_within(costs: Array, margin: float) -> int:
    """The last place of a curve up to which all of it is within the margin."""
    over = np.flatnonzero(~(costs <= margin))
    return int(over[0]) - 1 if len(over) else len(costs) - 1


def first(order: Tensor, size: int, like: Tensor) -> Tensor:
    """Gates that are open for the first edges of an order."""
    gates = torch.zeros(like.numel())
    gates[order[:size]] = 1
    return gates.view(like.shape).to(like.device)


def ranking(mean: Mean) -> Tensor:
    """The numbers of the edges, the largest first."""
    return torch.from_numpy(mean.mean).flatten().argsort(descending=True, stable=True)
