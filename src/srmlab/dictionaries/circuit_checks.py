"""Checks of an attribution graph: pruned, and compared with what ablations actually do.

    kept = prune(graph)                                     # the nodes and edges that carry the influence
    found = check_circuit(model, transcoders, graph, kept)  # predicted and real changes; nodes at random

A feature is ablated by removing what it writes from its MLP's output at one (layer, step, stream, token);
everything downstream is recomputed: patterns, norms and MLPs. The graph predicts the change in the target
with those frozen (`Graph.effect`). The null is the same for random active features, one by one and in sets
of the graph's size.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    each: dict[int, float]  # of every feature of the graph, cut alone, by its node

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
                f"  {len(self.actual)} features ablated singly: predicted and actual change correlate at "
                f"{self.correlation:.2f} (95 %: {low:.2f} to {high:.2f})",
                f"  they change the target by {np.abs(self.actual).mean():.4f} on average, "
                f"{len(self.random_actual)} random features by {np.abs(self.random_actual).mean():.4f}",
                f"  all features of the graph ablated: {self.whole:+.3f}; as many random ones: "
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
    """Cut the graph's features, one by one and all at once, beside some at random. Predictions are held
    against the `count` with the largest effects, and as many at random; sets are drawn `draws` times."""
    draw = np.random.default_rng(0)
    linear = Linear(model, transcoders, graph.tokens)
    effect, features = graph.effect, kept.features(graph)
    top = features[np.argsort(-np.abs(effect[features]), kind="stable")][:count]
    others = np.setdiff1d(np.arange(len(graph.active)), top)
    some = draw.choice(others, min(count, len(others)), replace=False)
    pool = np.setdiff1d(np.arange(len(graph.active)), features)
    sets = [draw.choice(pool, min(len(features), len(pool)), replace=False) for _ in range(draws)]
    cuts = [*([n] for n in (*features, *some)), features, *sets]
    parts = [cut(linear, model, graph, cuts[i : i + ROWS]) for i in range(0, len(cuts), ROWS)]
    alone, at_random, (whole, *wholes) = np.split(
        np.concatenate(parts), np.cumsum((len(features), len(some)))
    )
    each = dict(zip(features.tolist(), alone.tolist(), strict=True))
    actual = np.array([each[n] for n in top.tolist()])
    return CircuitCheck(-effect[top], actual, at_random, float(whole), np.array(wholes), each)


@torch.no_grad()
def cut(
    linear: Linear, model: LanguageModel, graph: Graph, cuts: Sequence[Sequence[int] | np.ndarray]
) -> np.ndarray:
    """[cut] The change of the target when features (nodes) are cut, all else computed anew."""
    sizes = [len(nodes) for nodes in cuts]
    rows = torch.tensor(np.repeat(np.arange(len(cuts)), sizes), device=linear.error.device)
    nodes = torch.tensor(np.concatenate(cuts), device=linear.error.device)
    call, token, stream, feature, activation = (part[nodes] for part in linear.index)
    changes = {}
    for c, site in enumerate(linear.written):
        change = changes[site] = linear.error.new_zeros(len(cuts), *linear.error.shape[1:])
        for writer, directions in linear.writers(c):
            here = call == writer
            wrote = directions[stream[here], feature[here]] * activation[here, None]
            change.index_put_((rows[here], token[here], stream[here]), -wrote, accumulate=True)

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
