"""What an attribution graph is worth: made small, and held against what interventions really do.

    kept = prune(graph)                                     # the nodes and edges that carry the influence
    found = check_circuit(model, transcoders, graph, kept)  # predicted and real changes; nodes at random

A feature is cut by taking what it writes out of its MLP's contribution at one (layer, step, stream, token);
all that comes after is computed anew: patterns, norms and MLPs. The graph predicts the change of the target
with those held (`Graph.effect`). The null is the same for features drawn at random from all active ones, one
by one and in sets of the graph's size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.bootstrap import correlation
from srmlab.dictionaries.circuit import ROWS, Graph, Linear
from srmlab.dictionaries.transcoder import Transcoders
from srmlab.models import HookPoint, LanguageModel

NODE_SHARE, EDGE_SHARE = 0.8, 0.98
TARGET = -1  # the target among the nodes


@dataclass(frozen=True)
class Pruned:
    nodes: np.ndarray  # of the graph, by influence
    source: np.ndarray  # of each edge: a node
    target: np.ndarray  # of each edge: a node, or TARGET
    weight: np.ndarray

    def features(self, graph: Graph) -> np.ndarray:
        return self.nodes[self.nodes < len(graph.active)]


def prune(graph: Graph, node_share: float = NODE_SHARE, edge_share: float = EDGE_SHARE) -> Pruned:
    """The fewest nodes that have this share of all influence, and the fewest edges among them that have this
    share of theirs; tokens stay.
    """
    influence = graph.influence
    known = np.zeros(graph.nodes, dtype=bool)
    known[graph.expanded] = True
    known[len(graph.active) :] = True
    keep: np.ndarray = fewest(np.where(known, influence, 0), node_share) | (graph.kinds == 2)
    rows = np.concatenate(([True], keep[graph.expanded]))
    size = np.abs(graph.edges)
    share = size / np.maximum(size.sum(1, keepdims=True), 1e-30)
    score = share * np.concatenate(([1.0], influence[graph.expanded]))[:, None]
    score = np.where(rows[:, None] & keep[None], score, 0)
    edges: np.ndarray = fewest(score.ravel(), edge_share).reshape(score.shape)
    into = np.concatenate(([TARGET], graph.expanded))
    while True:  # a node that leads nowhere goes, and the edges into it
        used = np.any(edges, axis=0)
        rows = np.concatenate(([True], used[graph.expanded]))
        if not np.any(edges[~rows]):
            break
        edges &= rows[:, None]
    row, source = edges.nonzero()
    nodes = np.flatnonzero(np.any(edges, axis=0) | (graph.kinds == 2))
    order = np.argsort(-influence[nodes], kind="stable")
    return Pruned(nodes[order], source, into[row], graph.edges[row, source])


def fewest(values: np.ndarray, share: float) -> np.ndarray:
    """A mask of the largest values that make up a share of their sum."""
    order = np.argsort(-values, kind="stable")
    total = np.cumsum(values[order])
    count = int(np.searchsorted(total, share * total[-1])) + 1 if total[-1] > 0 else 0
    mask = np.zeros(len(values), dtype=bool)
    mask[order[:count]] = True
    return mask & (values > 0)


@dataclass(frozen=True)
class CircuitCheck:
    """Changes of the target, in logits (or activation)."""

    predicted: np.ndarray  # [node] features of the graph with the largest effects, cut one by one
    actual: np.ndarray
    random_actual: np.ndarray  # [node] of features drawn from all active ones
    whole: float  # all features of the graph cut at once
    random_whole: np.ndarray  # [draw] as many others

    @property
    def correlation(self) -> float:
        return correlation(self.predicted, self.actual)

    @property
    def interval(self) -> tuple[float, float]:
        """Of the correlation, 95 %, by bootstrap over the nodes."""
        draw = np.random.default_rng(0)
        count = len(self.actual)
        picks = (draw.integers(0, count, count) for _ in range(500))
        found = [correlation(self.predicted[pick], self.actual[pick]) for pick in picks]
        low, high = np.nanquantile(found, (0.025, 0.975)) if count > 2 else (np.nan, np.nan)
        return float(low), float(high)

    def summary(self) -> str:
        low, high = self.interval
        draws = self.random_whole
        spread = draws.std(ddof=1) if len(draws) > 1 else np.nan
        return "\n".join(
            [
                f"  cut one by one, {len(self.actual)} features: predicted and real change correlate with "
                f"{self.correlation:.2f} (95 %: {low:.2f} to {high:.2f})",
                f"  they change the target by {np.abs(self.actual).mean():.4f} on average, "
                f"{len(self.random_actual)} features at random by {np.abs(self.random_actual).mean():.4f}",
                f"  all features of the graph cut: {self.whole:+.3f}; as many at random: "
                f"{draws.mean():+.3f} ± {spread:.3f} ({len(draws)} draws)",
            ]
        )


def check_circuit(
    model: LanguageModel,
    transcoders: Transcoders,
    graph: Graph,
    kept: Pruned,
    count: int = 32,
    draws: int = 16,
) -> CircuitCheck:
    """Cut features, one by one and all of the graph's, beside as many at random."""
    draw = np.random.default_rng(0)
    linear = Linear(model, transcoders, graph.tokens)
    effect, features = graph.effect, kept.features(graph)
    top = features[np.argsort(-np.abs(effect[features]), kind="stable")][:count]
    others = np.setdiff1d(np.arange(len(graph.active)), top)
    some = draw.choice(others, min(count, len(others)), replace=False)
    pool = np.setdiff1d(np.arange(len(graph.active)), features)
    sets = [draw.choice(pool, min(len(features), len(pool)), replace=False) for _ in range(draws)]
    cuts = [*(np.array([n]) for n in (*top, *some)), features, *sets]
    changes = cut(linear, model, graph, cuts)
    one, two = len(top), len(top) + len(some)
    whole, random_whole = float(changes[two]), changes[two + 1 :]
    return CircuitCheck(-effect[top], changes[:one], changes[one:two], whole, random_whole)


def cut_each(model: LanguageModel, transcoders: Transcoders, graph: Graph, kept: Pruned) -> dict[int, float]:
    """The real change of the target when one feature of the graph is cut, for each of them."""
    linear, features = Linear(model, transcoders, graph.tokens), kept.features(graph)
    cuts = [np.array([n]) for n in features]
    parts = [cut(linear, model, graph, cuts[i : i + ROWS]) for i in range(0, len(cuts), ROWS)]
    return dict(zip(features.tolist(), np.concatenate(parts).tolist() if parts else [], strict=True))


@torch.no_grad()
def cut(linear: Linear, model: LanguageModel, graph: Graph, cuts: list[np.ndarray]) -> np.ndarray:
    """[cut] The change of the target when features (nodes) are cut, all else computed anew."""
    changes = {
        site: torch.zeros(len(cuts), *linear.error.shape[1:]).to(linear.error) for site in linear.written
    }
    a = graph.active
    for row, nodes in enumerate(cuts):
        for n in nodes:
            member, at = linear.member[a.call[n]]
            mine = linear.calls_of(member)
            for later in range(at, len(mine)):
                for i, distance in member.distances(later):
                    if i == at:
                        wrote = member.direction(distance)[a.stream[n], a.feature[n]] * float(a.activation[n])
                        changes[linear.written[mine[later]]][row, a.token[n], a.stream[n]] -= wrote

    def take(value: Tensor, hook: HookPoint) -> Tensor:
        return value + changes[hook.name].to(value)

    seen: dict[str, Tensor] = {}
    watched = [] if graph.target.feature is None else [linear.given[graph.target.feature[0]]]
    watch = (watched, lambda value, hook: seen.update({hook.name: value}))
    with model.hooks([(linear.written, take), watch]):
        embedding = model.output_embedding(linear.tokens.expand(len(cuts), -1))
    position = graph.target.position
    if graph.target.feature is None:
        value = embedding[:, position] @ linear.read(graph.target)
    else:
        call, stream, feature = graph.target.feature
        member, _ = linear.member[call]
        value = member.encode(seen[linear.given[call]])[:, position, stream, feature]
    return (value - graph.value).double().cpu().numpy()
