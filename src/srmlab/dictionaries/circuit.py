"""Attribution graphs: what a prediction is made of, feature by feature.

With the attention patterns (over tokens and over streams) and the norms' scales frozen at their values on a
prompt, the model is linear in the token input and in every MLP's output. An MLP's output is what the active
features of its transcoder write, plus an error:

    MLP(u) = target + Σ_f a_f · direction_f (+ u · skip) + error

So the activation of a feature, (u − centre) · encoder + bias, is a sum over all that comes before it: a
weight for every active feature at an earlier (layer, step, stream, token), for every error and every token,
and a constant. These are the edges of the graph; a logit, or a difference of two, is a node like a feature.
The weights are exact: those into a node, plus its constant, sum to its activation (`Graph.completed`).

    graph = srmlab.dictionaries.attribute(model, transcoders, tokens, Target(token=17))

The edges into a node take one backward pass; many nodes share one, each as a row of the batch. Nodes are
expanded in order of their influence on the target, until there are `nodes` of them.

Influence: the target has 1, and every node passes its influence on to its inputs in proportion to the
absolute weights. `effect` is signed: how the target changes without the node, to first order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from srmlab.dictionaries.dictionary import check
from srmlab.dictionaries.transcoder import Calls, Transcoder, Transcoders
from srmlab.errors import UserError
from srmlab.models import Call, HookPoint, LanguageModel

ROWS = 64  # nodes whose edges are found in one backward pass
NODES = 384  # features whose edges are found


@dataclass(frozen=True)
class Target:
    """What the graph is of, at a token: the logit of a token (against the mean of all, or against another
    one's), or a feature.
    """

    token: int | None = None
    against: int | None = None
    feature: tuple[int, int, int] | None = None  # call, stream, feature
    position: int = -1


@dataclass(frozen=True)
class Active:
    """The active features of a prompt, one a row: call, token, stream and feature, and the activation."""

    call: np.ndarray
    token: np.ndarray
    stream: np.ndarray
    feature: np.ndarray
    activation: np.ndarray

    def __len__(self) -> int:
        return len(self.call)


@dataclass(frozen=True)
class Graph:
    """Nodes: features (all active ones), then errors [call, token, stream], then tokens; and the target."""

    active: Active
    calls: tuple[str, ...]  # the names of the calls: layer and step function (see call_names)
    members: tuple[str, ...]  # the names of their transcoders
    levels: tuple[int, ...]
    places: tuple[str, ...]  # of errors: the calls, and MLPs that have no transcoder
    tokens: tuple[int, ...]
    streams: int
    features: int  # of a transcoder
    target: Target
    value: float  # of the target
    expanded: np.ndarray  # [N] features whose edges are known
    edges: np.ndarray  # [1 + N, nodes] into the target, then into these
    constants: np.ndarray  # [1 + N] what does not depend on the prompt

    @property
    def errors(self) -> int:
        return len(self.places) * len(self.tokens) * self.streams

    @property
    def nodes(self) -> int:
        return len(self.active) + self.errors + len(self.tokens)

    @property
    def kinds(self) -> np.ndarray:
        """[nodes] 0: a feature, 1: an error, 2: a token."""
        return np.repeat((0, 1, 2), (len(self.active), self.errors, len(self.tokens)))

    @property
    def completed(self) -> np.ndarray:
        """[1 + N] The edges into a node and its constant, less its activation: 0, but for rounding."""
        values = np.concatenate(([self.value], self.active.activation[self.expanded]))
        return self.edges.sum(1) + self.constants - values

    @property
    def influence(self) -> np.ndarray:
        """[nodes] How much of the target's 1 comes through each node."""
        return influence_of(self.edges, self.expanded)

    @property
    def effect(self) -> np.ndarray:
        """[nodes] What the target owes to each node, by all ways, to first order; with signs."""
        share = self.edges[1:] / self.active.activation[self.expanded, None]
        found = self.edges[0]
        for _ in range(len(self.calls) + 1):  # a way has no more nodes than there are calls
            found = self.edges[0] + found[self.expanded] @ share
        return found

    @property
    def replacement(self) -> float:
        """The share of the influence that comes from tokens by way of features, not from errors."""
        influence, kinds = self.influence, self.kinds
        errors, tokens = influence[kinds == 1].sum(), influence[kinds == 2].sum()
        return float(tokens / (tokens + errors)) if tokens + errors > 0 else float("nan")

    @property
    def completeness(self) -> float:
        """The share of the edges, by the influence of what they lead to, that are not from errors."""
        size = np.abs(self.edges)
        from_errors = size[:, self.kinds == 1].sum(1) / np.maximum(size.sum(1), 1e-30)
        weight = np.concatenate(([1.0], self.influence[self.expanded]))
        return float(1 - (weight * from_errors).sum() / weight.sum())


def influence_of(edges: np.ndarray, expanded: np.ndarray) -> np.ndarray:
    """[nodes] The influence of every node, from edges [1 + N, nodes] into the target and N nodes."""
    size = np.abs(edges)
    share = size / np.maximum(size.sum(1, keepdims=True), 1e-30)
    total = now = share[0]
    for _ in range(len(expanded)):
        now = now[expanded] @ share[1:]
        if now.sum() < 1e-9:
            break
        total = total + now
    return total


def attribute(
    model: LanguageModel,
    transcoders: Transcoders,
    tokens: Sequence[int],
    target: Target,
    nodes: int = NODES,
    progress: Callable[[int], None] | None = None,
) -> Graph:
    """The graph of a target on a prompt."""
    check(model, transcoders.members[0])
    if not model.held_sites or transcoders.of != "mlp":
        raise UserError("an attribution graph needs an SRM and transcoders of its MLPs (--of mlp)")
    if model.config.puzzle_positions:
        raise UserError("an attribution graph is of tokens: a puzzle model with puzzle_positions has none")
    if (own := model.unembedding.dtype) != (theirs := transcoders.members[0].directions.dtype):
        raise UserError(f"the model is in {own}, its transcoders in {theirs}: use model.to({theirs})")
    if nodes < 1:
        raise UserError(f"nodes = {nodes}: give 1 or more")
    linear = Linear(model, transcoders, tokens)
    target = linear.settled(target)
    first, constant = linear.edges([target])
    edges, constants, expanded = first, constant, np.empty(0, dtype=int)
    while len(expanded) < min(nodes, len(linear.active)):
        influence = influence_of(edges, expanded)[: len(linear.active)]
        influence[expanded] = -1
        chosen = np.argsort(-influence, kind="stable")[: min(ROWS, nodes - len(expanded))]
        chosen = chosen[influence[chosen] > 0]
        if not len(chosen):
            break
        more, constant = linear.edges([linear.as_target(int(n)) for n in chosen])
        edges, constants = np.concatenate((edges, more)), np.concatenate((constants, constant))
        expanded = np.concatenate((expanded, chosen))
        if progress is not None:
            progress(len(expanded))
    return Graph(
        linear.active, linear.names, linear.members, linear.levels, linear.places, tuple(tokens),
        linear.streams, transcoders.config.features, target, linear.value(target), expanded, edges, constants,
    )  # fmt: skip


def mlp_calls(model: LanguageModel) -> list[Call]:
    """The calls that have an MLP."""
    return [call for call in model.calls if call.given and call.written("mlp")]


def call_names(calls: Sequence[Call]) -> tuple[str, ...]:
    """LAYER.STEP of each; with several calls of a step in a layer, LAYER.STEP:1, LAYER.STEP:2 …"""
    plain = [f"{call.level}.{call.group}" for call in calls]
    return tuple(
        name if plain.count(name) == 1 else f"{name}:{plain[: i + 1].count(name)}"
        for i, name in enumerate(plain)
    )


class Linear:
    """The model on one prompt with patterns and norms held, and what enters it."""

    def __init__(self, model: LanguageModel, transcoders: Transcoders, tokens: Sequence[int]) -> None:
        self.model, self.transcoders = model.with_held_norms(), transcoders
        self.tokens = torch.tensor([list(tokens)], dtype=torch.long, device=model.device)
        model.check_tokens(self.tokens)
        self.streams = len(model.streams)
        calls = mlp_calls(model)
        self.given = [call.given or "" for call in calls]
        self.written = [call.written("mlp") or "" for call in calls]
        self.others = [site for site in model.free_sites[1:] if site not in self.written]  # of other steps
        self.names = call_names(calls)
        self.levels = tuple(call.level for call in calls)
        self.places = (*self.names, *self.others)
        self.member: list[tuple[Transcoder, int]] = [  # whose call it is, and which of its calls
            next((m, m.config.writes.index(site)) for m in transcoders if site in m.config.writes)
            for site in self.written
        ]
        self.members = tuple(member.config.name for member, _ in self.member)
        before = calls[0].before
        self.first = before if isinstance(before, Tensor) else None  # the state before all, if it is constant
        self.messages = [model.exchanges[level].message for level in model.token_independent]
        self.taken_apart()
        self.rows = 0

    @torch.no_grad()
    def taken_apart(self) -> None:
        """The active features, and the errors [call, T, S, D]."""
        wanted = [*self.given, *self.written, *self.model.free_sites, *self.messages]
        _, self.clean = self.model.run_with_cache(self.tokens, wanted)
        found, errors = [], []
        self.codes: list[Tensor] = []
        passes = {id(member): Calls(member) for member in self.transcoders}
        for c, (given, written) in enumerate(zip(self.given, self.written, strict=True)):
            codes, rebuilt = passes[id(self.member[c][0])].write(self.clean[given][0])
            self.codes.append(codes)  # [T, S, F]
            errors.append(self.clean[written][0] - rebuilt)
            t, s, f = self.codes[c].nonzero(as_tuple=True)
            found.append((torch.full_like(t, c), t, s, f, self.codes[c][t, s, f]))
        self.error = torch.stack(errors)
        self.index = [torch.cat(parts) for parts in zip(*found, strict=True)]
        self.active = Active(*(part.cpu().numpy() for part in self.index))

    def as_target(self, node: int) -> Target:
        a = self.active
        place = int(a.call[node]), int(a.stream[node]), int(a.feature[node])
        return Target(feature=place, position=int(a.token[node]))

    def settled(self, target: Target) -> Target:
        """The target with its place counted from the start, if there is such a one."""
        T, vocabulary = self.tokens.shape[1], self.model.config.vocab_size
        if not -T <= target.position < T:
            raise UserError(f"position = {target.position}: the prompt has {T} tokens")
        position = target.position % T
        if target.feature is not None:
            self.check_feature(target.feature, position)
        elif target.token is None or not all(
            t in range(vocabulary) for t in (target.token, target.against) if t is not None
        ):
            raise UserError(f"target token {target.token}: give a token id from 0 to {vocabulary - 1}")
        return Target(target.token, target.against, target.feature, position)

    def check_feature(self, place: tuple[int, int, int], position: int) -> None:
        call, stream, feature = place
        ends = len(self.given), self.streams, self.transcoders.config.features
        for what, number, end in zip(("call", "stream", "feature"), place, ends, strict=True):
            if number not in range(end):
                raise UserError(f"{what} {number} of feature {place}: there are 0 to {end - 1}")
        active = self.codes[call][position, stream].nonzero().flatten().tolist()
        if feature not in active:
            raise UserError(
                f"feature {self.names[call]}.{stream}.{feature} is not active at token {position} of this "
                f"prompt; of {self.names[call]}.{stream} there are {', '.join(map(str, active)) or 'none'}"
            )

    @torch.no_grad()
    def value(self, target: Target) -> float:
        if target.feature is not None:
            call, stream, feature = target.feature
            return float(self.codes[call][target.position, stream, feature])
        embedding = self.model.output_embedding(self.tokens)[0, target.position]
        return float(embedding @ self.read(target))

    def read(self, target: Target) -> Tensor:
        """[E] What of the output embedding the target is."""
        table = self.model.unembedding.detach()
        other = table.mean(0) if target.against is None else table[target.against]
        return table[target.token] - other

    def begin(self, rows: int) -> None:
        """One pass over as many copies of the prompt, kept for any number of backward passes."""
        self.leaves: dict[str, Tensor] = {}
        self.inputs: dict[str, Tensor] = {}
        skips = {self.written[c]: (self.given[c], m.skip) for c, (m, _) in enumerate(self.member)}

        def hold(value: Tensor, _: HookPoint) -> Tensor:
            return value.detach()

        def free(value: Tensor, hook: HookPoint) -> Tensor:
            leaf = self.leaves[hook.name] = value.detach().clone().requires_grad_()
            given, skip = skips.get(hook.name, ("", None))
            if skip is None:
                return leaf
            by_skip = torch.einsum("btsd,sde->btse", self.inputs[given], skip.detach())
            return leaf + by_skip - by_skip.detach()

        def keep(value: Tensor, hook: HookPoint) -> None:
            self.inputs[hook.name] = value

        free_sites = [*self.model.free_sites, *self.messages]
        hooks = [(self.model.held_sites, hold), (self.given, keep), (free_sites, free)]
        with torch.enable_grad(), self.model.hooks(hooks):
            self.embedding = self.model.output_embedding(self.tokens.expand(rows, -1))
        self.rows = rows

    @torch.enable_grad()  # also where a notebook has turned gradients off
    def edges(self, targets: Sequence[Target]) -> tuple[np.ndarray, np.ndarray]:
        """The edges [N, nodes] into some targets, and what of them is constant [N]."""
        if self.rows < len(targets):
            self.begin(len(targets))
        total: Tensor | float = 0.0
        own = torch.zeros(len(targets), dtype=self.embedding.dtype, device=self.embedding.device)
        for row, target in enumerate(targets):
            if target.feature is None:
                total = total + self.embedding[row, target.position] @ self.read(target)
                continue
            call, stream, feature = target.feature
            member, _ = self.member[call]
            reads = member.encoder[stream, :, feature].detach()
            total = total + self.inputs[self.given[call]][row, target.position, stream] @ reads
            own[row] = (member.bias[stream, feature] - member.centre[stream] @ reads).detach()
        assert isinstance(total, Tensor)
        first = self.inputs[self.given[0]]
        found = torch.autograd.grad(
            total, [*self.leaves.values(), first], retain_graph=True, allow_unused=True
        )
        slopes = {
            site: torch.zeros_like(leaf) if g is None else g
            for (site, leaf), g in zip([*self.leaves.items(), ("", first)], found, strict=True)
        }
        return self.weighed({site: g[: len(targets)] for site, g in slopes.items()}, own)

    def weighed(self, slopes: dict[str, Tensor], own: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Slopes [N, T, S, D] at every site that is free → edges and constants."""
        token_site = self.model.free_sites[0]
        by_token = (slopes[token_site] * self.clean[token_site]).sum((2, 3))  # [N, T]
        by_error = [(slopes[site] * self.error[c]).sum(-1) for c, site in enumerate(self.written)]
        by_error += [(slopes[site] * self.clean[site]).sum(-1) for site in self.others]  # all of it is one
        constant = own
        by_feature = torch.zeros(len(own), len(self.active), dtype=own.dtype, device=own.device)
        call, token, stream, feature, activation = self.index
        for j, site in enumerate(self.written):
            member, _ = self.member[j]
            constant = constant + torch.einsum("ntsd,sd->n", slopes[site], member.target.detach())
            for writer, directions in self.writers(j):
                here = call == writer
                slope = slopes[site][:, token[here], stream[here]]  # [N, n, D]
                by_feature[:, here] += (slope * directions[stream[here], feature[here]]).sum(-1) * activation[
                    here
                ]
        for site in self.messages:
            constant = constant + (slopes[site] * self.clean[site]).sum((1, 2, 3))
        if self.first is not None:
            constant = constant + torch.einsum("ntsd,sd->n", slopes[""], self.first.detach())
        edges = torch.cat((by_feature, torch.stack(by_error, 1).flatten(1), by_token), 1)
        return edges.double().cpu().numpy(), constant.double().detach().cpu().numpy()

    def writers(self, call: int) -> list[tuple[int, Tensor]]:
        """The calls whose features write into a call, and what they write there [S, F, D]."""
        member, at = self.member[call]
        mine = [c for c, (one, _) in enumerate(self.member) if one is member]
        directions = [each.detach() for each in member.written()]
        return [(mine[i], directions[distance]) for i, distance in member.distances(at)]
