"""How one switch is decomposed, predicted and intervened on: the measurements behind `switches`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from srmlab.analysis.capture import Placed
from srmlab.dictionaries.dictionary import Dictionary
from srmlab.dictionaries.pairs import EdgeLogit, Terms
from srmlab.dictionaries.sparsity import first_threshold
from srmlab.errors import UserError
from srmlab.models import LanguageModel

PREDICTORS = (
    "logit", "features", "deciding feature", "best feature", "perfect feature", "token", "best token",
    "position", "shuffled", "random features",
)  # fmt: skip
HELD = ("silenced", "put in", "another silenced", "another put in")
PAIRS = (1, 4, 16, 64, 256, 1024)
BINS = 16  # of positions
TOP = 5  # pairs that are named
EXAMPLES, BEFORE, AFTER = 4, 12, 3

Example = tuple[float, str, str, str]  # the weight, the text before, the token, the text after


@dataclass(frozen=True)
class Text:
    """All tokens of a text, in two halves."""

    batches: Sequence[Placed]
    tokens: Tensor  # [N] ids
    positions: Tensor  # [N] in the window
    windows: Tensor  # [N] the window's number
    first: Tensor  # [N] in the half that is learned from

    @classmethod
    def of(cls, batches: Sequence[Placed]) -> Text:
        rows = [row for batch in batches for row in batch.tokens.cpu()]
        if len(rows) < 4:
            raise UserError(
                "switches are found on one half of the windows and tested on the other: give four or more"
            )
        windows = torch.cat([torch.full((len(row),), i) for i, row in enumerate(rows)])
        places = torch.cat([torch.arange(len(row)) for row in rows])
        return cls(batches, torch.cat(rows), places, windows, windows < len(rows) // 2)

    def draws(self, count: int) -> Tensor:
        """[draw, window] How often each window of the second half comes in a sample of as many."""
        half = int(self.windows[~self.first].min())
        total = int(self.windows.max()) + 1
        generator = torch.Generator().manual_seed(0)
        chosen = torch.randint(half, total, (count, total - half), generator=generator)
        return torch.zeros(count, total).scatter_add_(1, chosen, torch.ones_like(chosen, dtype=torch.float))


def spread(model: LanguageModel, text: Text) -> tuple[Tensor, Tensor]:
    """[L, H, target, source] The mean and the standard deviation over tokens of every edge's weight."""
    sites = [exchange.pattern for exchange in model.exchanges if exchange.pattern]
    total = squares = torch.zeros(())
    for batch in text.batches:
        _, cache = model.run_with_cache(batch.tokens, sites, documents=batch.documents)
        weights = [model.at_tokens(cache[site]).double().cpu().flatten(0, 1) for site in sites]
        weights = torch.stack(weights)  # [L, n, H, S, S]
        total, squares = total + weights.sum(1), squares + weights.square().sum(1)
    mean = total / len(text.tokens)
    variance = squares / len(text.tokens) - mean.square()
    return mean.float(), variance.masked_fill(variance < 1e-12, 0).sqrt().float()


@dataclass(frozen=True)
class Switch:
    """What was found of one."""

    weights: Tensor  # [N]
    open: Tensor  # [N]
    scores: Tensor  # [predictor, N]
    by_pairs: Tensor  # [size, N]
    deciding: tuple[int, int, int]
    pairs: tuple[tuple[int, int, int], ...]
    shares: Tensor  # [pair]
    explained: float
    flipped: Tensor  # [held]

    def examples(self, text: Text, decode: Callable[[int], str]) -> tuple[Example, ...]:
        """Where the edge is widest open in the second half of the text, one of a window."""
        found: list[Example] = []
        seen: set[int] = set()
        for n in self.weights.masked_fill(text.first, -1).argsort(descending=True).tolist():
            window = int(text.windows[n])
            if window in seen or text.first[n]:
                continue
            seen.add(window)
            start, end = n - min(BEFORE, int(text.positions[n])), min(n + AFTER + 1, len(text.tokens))
            words = [decode(int(text.tokens[i])) for i in range(start, end) if text.windows[i] == window]
            at = n - start
            around = "".join(words[:at]), words[at], "".join(words[at + 1 :])
            found.append((round(float(self.weights[n]), 3), *around))
            if len(found) == EXAMPLES:
                break
        return tuple(found)


def measured(
    model: LanguageModel,
    dictionary: Dictionary,
    text: Text,
    edges: Sequence[Sequence[int]],
    say: Callable[[str, int, int], None],
) -> list[Switch]:
    """Every switch, layer by layer, so that the states of one layer are held at a time."""
    found: dict[tuple[int, ...], Switch] = {}
    for layer in sorted({edge[0] for edge in edges}):
        states, pattern = read(model, text, layer)
        chance = random_like(dictionary, states)
        codes = [d.encode(states) for d in (dictionary, chance)]
        for edge in (edge for edge in edges if edge[0] == layer):
            _, head, target, source = edge
            weights = pattern[:, head, target, source].clone()
            logits = [EdgeLogit(model, d, head, target, source) for d in (dictionary, chance)]
            terms = [logit.terms(states, of) for logit, of in zip(logits, codes, strict=True)]
            found[tuple(edge)] = one_switch(
                logits[0], terms[0], states, weights, text, logits[1].score(terms[1])
            )
            say("switches", len(found), len(edges))
    return [found[tuple(edge)] for edge in edges]


def read(model: LanguageModel, text: Text, layer: int) -> tuple[Tensor, Tensor]:
    """The states [N, S, D] that a layer's pattern is made from, and the pattern [N, H, target, source]."""
    exchange = model.exchanges[layer]
    assert isinstance(exchange.state, str), "a switch depends on the token"
    assert exchange.pattern is not None
    states, patterns = [], []
    for batch in text.batches:
        sites = [exchange.state, exchange.pattern]
        _, cache = model.run_with_cache(batch.tokens, sites, documents=batch.documents)
        states.append(model.at_tokens(cache[exchange.state]).float().cpu().flatten(0, 1))
        patterns.append(model.at_tokens(cache[exchange.pattern]).float().cpu().flatten(0, 1))
    return torch.cat(states), torch.cat(patterns)


def random_like(dictionary: Dictionary, states: Tensor) -> Dictionary:
    """A dictionary of random directions around the mean of these states [N, S, D], as many of them in use."""
    chance = Dictionary(dictionary.config, seed=1)
    with torch.no_grad():
        chance.centre.copy_(states.mean(0))
        first_threshold(chance, states.movedim(1, 0))
    return chance


def one_switch(
    edge: EdgeLogit,
    terms: tuple[Terms, Terms],
    states: Tensor,
    weights: Tensor,
    text: Text,
    by_chance: Tensor,
) -> Switch:
    """All of one switch, from the states [N, S, D], the edge's weights [N] and the score [N] of random
    features."""
    here = text.first
    is_open = weights > weights[here].mean()
    opened, closed = here & is_open, here & ~is_open
    share = opened / opened.sum().clamp(min=1) - closed / closed.sum().clamp(min=1)
    difference = edge.total(terms, share.float())  # of the mean logits, by pairs
    size = len(difference) - 2
    ranked = difference[:-1, :-1].clone()
    ranked[-1, -1] = 0  # the same for every token
    order = ranked.abs().flatten().argsort(descending=True, stable=True)
    pairs = torch.stack((order // (size + 1), order % (size + 1)), 1)[: max(PAIRS)]
    stream, feature, sign = decider(edge, states, terms, share.float())
    side = 0 if stream == edge.target else 1
    best_side, best, best_sign = best_feature(terms, opened, closed)
    best_code = terms[best_side].codes[:, best]
    scores = [
        edge.row(states)[:, edge.source],
        edge.score(terms),
        sign * terms[side].codes[:, feature],
        best_sign * best_code,
        best_sign * perfect(best_code > 0, is_open == (best_sign > 0)),
        table_score(weights, text.tokens, here),
        best_token(text.tokens, opened, closed),
        table_score(weights, text.positions * BINS // (int(text.positions.max()) + 1), here),
        edge.score(terms)[torch.randperm(len(weights), generator=torch.Generator().manual_seed(0))],
        by_chance,
    ]
    total = float(difference.sum())
    named = [(i, j, 1 if edge.table[i, j] > 0 else -1) for i, j in pairs[:TOP].tolist()]
    return Switch(
        weights=weights,
        open=is_open,
        scores=torch.stack(scores),
        by_pairs=torch.stack([edge.score(terms, pairs[:n]) for n in PAIRS]),
        deciding=(stream, feature, sign),
        pairs=tuple((i if i < size else -1, j if j < size else -1, sign) for i, j, sign in named),
        shares=difference[tuple(pairs[:TOP].T)] / (total or 1.0),
        explained=float(difference[:-1, :-1].sum()) / total if total else 0.0,
        flipped=hold(edge, terms, states, is_open, here, (stream, feature, sign)),
    )


def decider(
    edge: EdgeLogit, states: Tensor, terms: tuple[Terms, Terms], share: Tensor
) -> tuple[int, int, int]:
    """The feature, of target or source, that makes most of the difference by being in use more at open tokens
    than at closed ones, or less, with the other side at its mean: its stream, its number, and 1 if it raises
    the logit, −1 if it lowers it. (A feature that is always in use makes none, whatever its partner does.)"""
    target, source = states[:, edge.target].float().mean(0), states[:, edge.source].float().mean(0)
    directions = edge.dictionary.directions.detach()
    raised = torch.stack(
        (
            directions[edge.target] @ edge.query @ (source @ edge.key),
            directions[edge.source] @ edge.key @ (target @ edge.query),
        )
    )  # [side, F] by an activation of 1
    more = torch.stack([share @ side.codes[:, :-1] for side in terms])
    side, feature = divmod(int((raised * more).argmax()), raised.shape[1])
    return (edge.source if side else edge.target), feature, 1 if raised[side, feature] > 0 else -1


def best_feature(terms: tuple[Terms, Terms], opened: Tensor, closed: Tensor) -> tuple[int, int, int]:
    """The feature whose firing goes best with open or with closed: of the target (0) or the source (1), its
    number, and which of the two."""
    gaps = []
    for side in terms:
        fires = (side.codes[:, :-1] > 0).float()
        gaps.append(fires[opened].mean(0) - fires[closed].mean(0))
    both = torch.stack(gaps).nan_to_num()
    side, feature = divmod(int(both.abs().argmax()), both.shape[1])
    return side, feature, 1 if both[side, feature] > 0 else -1


def best_token(tokens: Tensor, opened: Tensor, closed: Tensor) -> Tensor:
    """The one token id whose presence goes best with open or with closed, chosen like `best_feature`: 1 or −1
    where it is, else 0."""
    size = int(tokens.max()) + 1
    shares = [torch.bincount(tokens[at], minlength=size) / at.sum().clamp(min=1) for at in (opened, closed)]
    gap = shares[0] - shares[1]
    best = int(gap.abs().argmax())
    return (tokens == best) * gap[best].sign()


def perfect(fires: Tensor, wanted: Tensor) -> Tensor:
    """Of a feature that fires as often as this one and never at a wrong token: all that one so sparse can
    tell. 1 at as many of the wanted tokens, drawn at random, or at all of them."""
    order = torch.rand(len(wanted), generator=torch.Generator().manual_seed(0)).masked_fill(~wanted, 2)
    most = min(int(fires.sum()), int(wanted.sum()))
    return torch.zeros(len(wanted)).index_fill_(0, order.argsort()[:most], 1.0)


def table_score(weights: Tensor, keys: Tensor, here: Tensor) -> Tensor:
    """The mean weight, over the first half, at tokens of the same key; drawn to the mean of all as if that
    had been seen twice."""
    level, size = weights[here].mean(), int(keys.max()) + 1
    total = torch.zeros(size).index_add_(0, keys[here], weights[here])
    count = torch.bincount(keys[here], minlength=size)
    return ((total + 2 * level) / (count + 2))[keys]


def hold(
    edge: EdgeLogit,
    terms: tuple[Terms, Terms],
    states: Tensor,
    is_open: Tensor,
    here: Tensor,
    decided: tuple[int, int, int],
) -> Tensor:
    """[held] The share of tokens of the second half at which the edge flips as the decomposition says.

    With the feature silenced, where it is in use and the edge is as the feature would have it; with it put
    in, where neither is so. Then the same with another feature of the stream, at the same tokens; NaN where
    there is no other.
    """
    stream, feature, sign = decided
    codes = terms[0 if stream == edge.target else 1].codes[:, :-1]
    used, agrees = codes[:, feature] > 0, is_open == (sign > 0)
    strength = codes[here & used, feature].mean().nan_to_num()
    level = edge.row(states).softmax(-1)[:, edge.source]
    bar = level[here].mean()
    directions = edge.dictionary.directions[stream].detach()
    generator = torch.Generator().manual_seed(0)
    others = codes.clone()
    others[:, feature] = 0
    another = others.argmax(1)  # the strongest of the others in use
    several = len(directions) > 1
    anyone = torch.randint(max(1, len(directions) - 1), (len(codes),), generator=generator)
    anyone += (anyone >= feature) * several
    rows = torch.arange(len(codes))
    moves = (
        (~here & used & agrees, -codes[:, feature, None] * directions[feature]),
        (~here & ~used & ~agrees, strength * directions[feature].expand(len(codes), -1)),
        (~here & used & agrees & (others > 0).any(1), -others[rows, another, None] * directions[another]),
        (~here & ~used & ~agrees & several, strength * directions[anyone]),
    )
    found = []
    for at, move in moves:
        moved = states[at].clone()
        moved[:, stream] += move[at]
        after = edge.row(moved).softmax(-1)[:, edge.source] > bar
        found.append((after != is_open[at]).float().mean() if bool(at.any()) else torch.tensor(torch.nan))
    return torch.stack(found)
