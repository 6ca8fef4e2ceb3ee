"""Checks of an attribution graph: pruned, and compared with what ablations actually do.

    kept = prune(graph)                                     # the nodes and edges that carry the influence
    found = check_circuit(model, transcoders, graph, kept)  # predicted and real changes; nodes at random

A feature is ablated by removing what it writes from its MLP's output at one (layer, step, stream, token);
everything downstream is recomputed: patterns, norms and MLPs. The graph predicts the change in the target
with those frozen (`Graph.effect`). There are two nulls, one by one and in sets: random active features, and
others of the same calls and tokens, which are as near to the target as the graph's own.
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
    node_share: float = NODE_SHARE  # of the influence, that nodes were kept for

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
    return Pruned(nodes[order], source, into[row], graph.edges[row, source], node_share)


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
    matched_actual: np.ndarray  # [node] of another one of the same call and token each; NaN: there is none
    whole: float  # all features of the graph cut at once
    whole_predicted: float
    random_whole: np.ndarray  # [draw] as many others
    paired_whole: np.ndarray  # [draw] those of the graph for which there is another of their call and token
    matched_whole: np.ndarray  # [draw] these others
    pairs: int  # how many they are
    each: dict[int, float]  # of every feature of the graph, cut alone, by its node
    each_predicted: dict[int, float]

    @property
    def correlation(self) -> float:
        return correlation(self.predicted, self.actual)

    @property
    def slope(self) -> float:
        """Of actual on predicted changes, through 0: 1 if sizes are right, less if they are overstated."""
        square = self.predicted @ self.predicted
        return float(self.predicted @ self.actual / square) if square else float("nan")

    @property
    def sign_agreement(self) -> float:
        """The share of the features with the largest effects whose change has the predicted sign."""
        return agreement(self.predicted, self.actual)

    @property
    def sign_agreement_all(self) -> float:
        """The same, of all features of the graph."""
        return agreement(np.array([*self.each_predicted.values()]), np.array([*self.each.values()]))

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
        draws = len(self.random_whole)
        return "\n".join(
            [
                f"  {len(self.actual)} features ablated singly: predicted and actual change correlate at "
                f"{self.correlation:.2f} (95 %: {low:.2f} to {high:.2f}); the actual one is "
                f"{self.slope:.2f} of the predicted; {self.sign_agreement:.0%} have the predicted sign, "
                f"{self.sign_agreement_all:.0%} of all {len(self.each)}",
                f"  they change the target by {mean_size(self.actual):.4f} on average, "
                f"{len(self.random_actual)} random features by {mean_size(self.random_actual):.4f}, "
                f"others of the same calls and tokens by {mean_size(self.matched_actual):.4f}",
                f"  all {len(self.each)} features of the graph ablated: {self.whole:+.3f}, predicted "
                f"{self.whole_predicted:+.3f}; as many random ones: {spread(self.random_whole)} "
                f"({draws} draws)",
                f"  {self.pairs} of them: {spread(self.paired_whole)}; as many others of the same calls "
                f"and tokens: {spread(self.matched_whole)}",
            ]
        )


def agreement(predicted: np.ndarray, actual: np.ndarray) -> float:
    """The share of equal signs."""
    return float(np.mean(np.sign(predicted) == np.sign(actual))) if len(actual) else float("nan")


def mean_size(changes: np.ndarray) -> float:
    """The mean absolute change, of those that are known."""
    known = changes[np.isfinite(changes)]
    return float(np.abs(known).mean()) if len(known) else float("nan")


def spread(draws: np.ndarray) -> str:
    """Mean and standard deviation."""
    return f"{draws.mean():+.3f} ± {draws.std(ddof=1) if len(draws) > 1 else np.nan:.3f}"


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
    near = partners(graph, top, pool, draw, again=True)
    matched = [partners(graph, features, pool, draw) for _ in range(draws)]
    paired = [features[one >= 0] for one in matched]
    matched = [one[one >= 0] for one in matched]

    def changes(cuts: Sequence[Sequence[int] | np.ndarray]) -> np.ndarray:
        parts = [cut(linear, model, graph, cuts[i : i + ROWS]) for i in range(0, len(cuts), ROWS)]
        return np.concatenate([np.zeros(0), *parts])

    singly = changes([[n] for n in (*features, *some, *near[near >= 0])])
    alone, at_random, at_near = np.split(singly, np.cumsum((len(features), len(some))))
    (whole,), *sets_changed = np.split(
        changes([features, *sets, *paired, *matched]), np.cumsum((1, draws, draws))
    )
    each = dict(zip(features.tolist(), alone.tolist(), strict=True))
    matched_actual = np.full(len(top), np.nan)
    matched_actual[near >= 0] = at_near
    return CircuitCheck(
        predicted=-effect[top],
        actual=np.array([each[n] for n in top.tolist()]),
        random_actual=at_random,
        matched_actual=matched_actual,
        whole=float(whole),
        whole_predicted=float(-effect[features].sum()),
        random_whole=sets_changed[0],
        paired_whole=sets_changed[1],
        matched_whole=sets_changed[2],
        pairs=len(matched[0]),
        each=each,
        each_predicted=dict(zip(features.tolist(), (-effect[features]).tolist(), strict=True)),
    )


def partners(
    graph: Graph, features: np.ndarray, pool: np.ndarray, draw: np.random.Generator, again: bool = False
) -> np.ndarray:
    """[feature] For each, one of a pool at the same call and token, and in the same stream if there is one;
    -1 where none is left. With `again`, one may stand beside several."""
    a = graph.active
    left = np.zeros(len(a), dtype=bool)
    left[pool] = True
    found = np.full(len(features), -1)
    for i in draw.permutation(len(features)):
        n = features[i]
        near = left & (a.call == a.call[n]) & (a.token == a.token[n])
        same = near & (a.stream == a.stream[n])
        choices = np.flatnonzero(same if same.any() else near)
        if len(choices):
            found[i] = draw.choice(choices)
            left[found[i]] = again
    return found


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
