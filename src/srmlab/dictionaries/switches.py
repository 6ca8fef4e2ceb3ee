"""Switches: edges between streams that open and close with the token, and the features that decide it.

A *switch* is an edge (layer, head, target ← source) that is strong (mean weight of 1/S or more) and whose
weight differs between tokens more than it does by chance: its standard deviation over tokens is above that of
every edge of every untrained twin. (An edge with a level of its own, the same for every token, has 0.) It is
*open* at a token where its weight is above its mean.

The text is read in two halves. On the first, the difference between the mean logits of open and closed tokens
is decomposed exactly into pairs of features (pairs.py). On the second, scores have to tell open from closed:

    logit              the edge's own logit, exactly: what its features can at most be expected to tell
    features           what all pairs of features add to the logit; the dictionary's errors are left out
    deciding feature   the one feature of target or source that makes most of it, the other side at its mean
    best feature       the one feature whose firing best predicts open, or closed
    perfect feature    a feature that would fire as often as that one, and never at a wrong token
    token              the mean weight at this token's id: a table with an entry for every id
    best token         the one token id that best predicts open, or closed
    position           the mean weight in this sixteenth of the window
    shuffled           `features` of another token
    random features    `features` of a dictionary with random directions and as many features in use

One feature is to be compared with one token: a feature is in use at few tokens, so it tells little of an edge
that is open at half of them, however well it is chosen. `by_pairs` has the score of the 1, 4, 16 … pairs that
make most of the difference. Last, the deciding feature is clamped in the state that the layer reads. Ablated
where it was active, the edge should close (or open, if the feature closes it), and added elsewhere at its
mean strength it should open; as a control, the same is done with another feature of the stream.

    >>> import torch, srmlab, srmlab.dictionaries
    >>> model = srmlab.build(srmlab.preset("srm-nano", streams=4, depth=2, gradient_depth=1))
    >>> text = [torch.randint(0, 512, (4, 32), generator=torch.Generator().manual_seed(i)) for i in range(2)]
    >>> dictionary = srmlab.dictionaries.learn(model, lambda step: text[step % 2], steps=3, layers="every")
    >>> found = srmlab.dictionaries.switches(model, dictionary, text, twins=0)
    >>> found.auc.shape == (len(found.edges), len(PREDICTORS))
    True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch

from srmlab.analysis.bootstrap import mean_of_known
from srmlab.analysis.capture import Batches, evidence_of, placed
from srmlab.analysis.edges import AXES, named
from srmlab.analysis.null import twins as untrained
from srmlab.analysis.registry import has_patterns
from srmlab.analysis.result import Array, Axes, Coordinate, Result, plus_minus
from srmlab.dictionaries.auc import auc, auc_draws
from srmlab.dictionaries.dictionary import Dictionary, check
from srmlab.dictionaries.switching import (
    HELD,
    PAIRS,
    PREDICTORS,
    TOP,
    Example,
    Switch,
    Text,
    measured,
    spread,
)
from srmlab.errors import UserError
from srmlab.models import LanguageModel

DRAWS = 200  # of windows


@dataclass(frozen=True, kw_only=True, eq=False)
class Switches(Result):
    """The edges that open and close with the token, and what tells when."""

    kind: ClassVar[str] = "switches"
    columns: ClassVar[tuple[str, ...]] = ("weight", "deviation")

    bar: float  # the largest standard deviation of a twin's edge
    strong: int  # edges with a mean weight of 1/S or more, in layers that see the token
    edges: tuple[tuple[int, int, int, int], ...]  # the switches, most varying first
    deciding: tuple[tuple[int, int, int], ...]  # stream, feature, and 1 if it opens the edge, −1 if it closes
    # those that make most of the difference: a feature of the target, one of the source (−1: the centre), and
    # 1 if they raise the logit, −1 if they lower it
    pairs: tuple[tuple[tuple[int, int, int], ...], ...]
    dictionary: str  # its mark: whose features these are
    examples: tuple[tuple[Example, ...], ...]  # where each is widest open, on other text
    predictors: tuple[str, ...]
    held: tuple[str, ...]
    intervals: tuple[tuple[float, float], ...]  # of how many each predicts better, 95 %, over windows
    single: tuple[float, float]  # of how many the best feature does better than one token
    weight: Annotated[Array, Axes(AXES, "mean over tokens")]
    deviation: Annotated[Array, Axes(AXES, "standard deviation over tokens")]
    twin_deviation: Annotated[Array, Axes("twin " + AXES, "standard deviation over tokens")]
    open: Annotated[Array, Axes("switch", "share of tokens")]
    explained: Annotated[Array, Axes("switch", "share of the logit's difference that pairs of features make")]
    shares: Annotated[Array, Axes("switch pair", "share of that difference which each of `pairs` makes")]
    auc: Annotated[Array, Axes("switch predictor", "area under the ROC curve, on other text")]
    auc_error: Annotated[Array, Axes("switch predictor", "its standard error over windows")]
    gain: Annotated[Array, Axes("switch predictor", "auc − auc of the token alone")]
    gain_low: Annotated[Array, Axes("switch predictor", "lower end of its 95 % interval over windows")]
    sizes: Annotated[Array, Coordinate("size", "pairs of features")]
    by_pairs: Annotated[Array, Axes("switch size", "area under the ROC curve, on other text")]
    flipped: Annotated[Array, Axes("switch held", "share of tokens at which holding it flips the edge")]

    def better(self, predictor: str, surely: bool = False) -> int:
        """How many switches it predicts better than the token alone; surely: beyond the interval."""
        gains = self.gain_low if surely else self.gain
        return int((gains[:, self.predictors.index(predictor)] > 0).sum())

    @property
    def better_than_one_token(self) -> int:
        """How many switches the best feature predicts better than the best single token."""
        feature, token = (self.auc[:, self.predictors.index(f"best {one}")] for one in ("feature", "token"))
        return int((feature > token).sum())

    @property
    def distinct(self) -> int:
        """Switches, with the same edge in several layers counted once."""
        return len({edge[1:] for edge in self.edges})

    def median_deviation(self, twins: bool = False) -> float:
        """Over all edges, strong or not, of layers that see the token; in the model or in its twins."""
        values = self.twin_deviation if twins else self.deviation
        return float(np.median(values[values > 0])) if (values > 0).any() else float("nan")

    def mean_auc(self, predictor: str) -> float:
        return (
            float(self.auc[:, self.predictors.index(predictor)].mean()) if len(self.edges) else float("nan")
        )

    def headline(self) -> str:
        if not self.edges:
            return f"no switches: none of {self.strong} strong edges varies more than in an untrained twin"
        return (
            f"{len(self.edges)} of {self.strong} strong edges are switches "
            f"({self.distinct} over all layers); better than the token alone: "
            f"their features in {self.better('features')}, one feature in {self.better('best feature')} "
            f"(than one token: {self.better_than_one_token})"
        )

    def summary(self) -> str:
        lines = [f"Switches ({self.evidence})", f"  {self.headline()}"]
        bar = f"  standard deviation above {self.bar:.3f}, the largest of any untrained twin's edge"
        if self.twin_deviation.size:
            own, others = self.median_deviation(), self.median_deviation(twins=True)
            bar += f"; the median over all edges is {own:.3f}, in twins {others:.3f}"
        lines.append(bar)
        if not self.edges:
            return "\n".join(lines)
        for name in ("features", "best feature", "deciding feature"):
            low, high = self.intervals[self.predictors.index(name)]
            surely = self.better(name, surely=True)
            lines.append(
                f"  {name} better than the token: {self.better(name)} of {len(self.edges)} "
                f"(95 %: {low:.0f} to {high:.0f}), {surely} beyond the switch's own interval"
            )
        low, high = self.single
        lines.append(
            f"  best feature better than the best single token: {self.better_than_one_token} of "
            f"{len(self.edges)} (95 %: {low:.0f} to {high:.0f}); a perfect one better than the token: "
            f"{self.better('perfect feature')}"
        )
        aucs = ", ".join(f"{name} {self.mean_auc(name):.3f}" for name in self.predictors)
        lines.append(f"  mean AUC on other text: {aucs}")
        curve = ", ".join(f"{n} {a:.3f}" for n, a in zip(self.sizes, self.by_pairs.mean(0), strict=True))
        lines.append(f"  by the number of pairs: {curve}")
        shares = [plus_minus(share, form=".1%") for share in mean_of_known(self.flipped)]
        flips = ", ".join(f"{name} {share}" for name, share in zip(self.held, shares, strict=True))
        lines.append(f"  holding the deciding feature flips the edge at: {flips} of tokens")
        for i in self.clearest():
            lines += self.card(i)
        return "\n".join(lines)

    def clearest(self) -> list[int]:
        """The ten most varying switches, each edge in one layer only."""
        found: dict[tuple[int, ...], int] = {}
        for i, edge in enumerate(self.edges):
            found.setdefault(edge[1:], i)
        return list(found.values())[:10]

    def card(self, switch: int) -> list[str]:
        """What is known of one switch, as text."""
        edge, (stream, feature, sign) = self.edges[switch], self.deciding[switch]
        values = dict(zip(self.predictors, self.auc[switch], strict=True))
        said = "opens" if sign > 0 else "closes"
        flipped = plus_minus(self.flipped[switch, 0], form=".0%")
        lines = [
            f"  {named(edge)}: weight {self.weight[edge]:.2f} ± {self.deviation[edge]:.2f} over tokens, "
            f"open at {self.open[switch]:.0%}; AUC features {values['features']:.3f}, token "
            f"{values['token']:.3f}; feature {feature} of S{stream} {said} it, AUC "
            f"{values['deciding feature']:.3f}, silenced {flipped} flip"
        ]
        for weight, before, token, after in self.examples[switch][:3]:
            lines.append(f"    {weight:.2f}  {' '.join(f'{before}[{token}]{after}'.split())}")
        return lines


def switches(
    model: LanguageModel,
    dictionary: Dictionary,
    batches: Batches,
    *,
    twins: int = 3,
    decode: Callable[[int], str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Switches:
    """The switches of a model, and how well features, tokens and positions tell when they are open.

    `decode` turns a token's id into text, for examples. `progress` is called with a name, how much is done,
    and of how much.
    """
    check_readable(model, dictionary)
    say = progress or (lambda *_: None)
    given = list(placed(batches, model.device))
    for batch in given:
        model.check_tokens(batch.tokens, documents=batch.documents, targets=batch.targets)
    text = Text.of(given)
    with torch.inference_mode(), model.evaluating():
        weight, deviation = spread(model, text)
        others = []
        for seed, twin in untrained(model, twins):
            others.append(spread(twin, text)[1])
            say("untrained twins", seed - model.config.init_seed, twins)
        bar = max((float(other.max()) for other in others), default=0.0)
        strong = (weight >= 1 / len(model.streams)) & (deviation > 0)
        chosen = ((deviation > bar) & strong).nonzero().tolist()
        chosen.sort(key=lambda edge: -float(deviation[tuple(edge)]))
        found = measured(model, dictionary, text, chosen, say)
    return Switches(
        evidence=evidence_of(given),
        bar=bar,
        strong=int(strong.sum()),
        edges=tuple((l, h, t, s) for l, h, t, s in chosen),
        deciding=tuple(one.deciding for one in found),
        pairs=tuple(one.pairs for one in found),
        dictionary=dictionary.mark,
        examples=tuple(one.examples(text, decode or (lambda token: f"#{token} ")) for one in found),
        predictors=PREDICTORS,
        held=HELD,
        weight=weight.double().numpy(),
        deviation=deviation.double().numpy(),
        twin_deviation=np.array([other.double().numpy() for other in others]).reshape(-1, *weight.shape),
        sizes=np.array(PAIRS),
        **numbers(found, text),
    )


def check_readable(model: LanguageModel, dictionary: Dictionary) -> None:
    """Refuse a dictionary of another model, or one without the states that the pattern is computed from."""
    check(model, dictionary)
    if not has_patterns(model) or model.queries_and_keys is None:
        raise UserError("switches need a connection with queries and keys, such as attention")
    read = {exchange.state for exchange in model.exchanges if isinstance(exchange.state, str)}
    if missing := sorted(read - {model.input_site} - set(dictionary.config.points)):
        raise UserError(
            f"the dictionary has no features of {missing[0]}, which the pattern is computed from: train one "
            "for all depths with `srmlab dictionary RUN --layers every`"
        )


def numbers(found: Sequence[Switch], text: Text) -> dict[str, Any]:
    """Areas under the curve on the second half, and how sure they are."""
    there = ~text.first
    windows, times = text.windows[there], text.draws(DRAWS)
    token, feature, one_token = (PREDICTORS.index(name) for name in ("token", "best feature", "best token"))
    values = np.zeros((len(found), len(PREDICTORS)))
    draws = np.zeros((len(found), len(PREDICTORS), DRAWS))
    by_pairs = np.zeros((len(found), len(PAIRS)))
    for i, one in enumerate(found):
        is_open = one.open[there]
        for j, score in enumerate(one.scores[:, there]):
            values[i, j] = auc(score, is_open)
            draws[i, j] = auc_draws(score, is_open, windows, times).numpy()
        by_pairs[i] = [auc(score, is_open) for score in one.by_pairs[:, there]]
    gains = draws - draws[:, token : token + 1]
    counts = (gains > 0).sum(0)  # [predictor, draw]
    return {
        "open": np.array([float(one.open.float().mean()) for one in found]),
        "explained": np.array([one.explained for one in found]),
        "shares": np.array([one.shares.double().numpy() for one in found] or np.zeros((0, TOP))),
        "auc": values,
        "auc_error": draws.std(-1),
        "gain": values - values[:, token : token + 1],
        "gain_low": np.quantile(gains, 0.025, axis=-1),
        "intervals": tuple(bounds(count) for count in counts),
        "single": bounds((draws[:, feature] > draws[:, one_token]).sum(0)),
        "by_pairs": by_pairs,
        "flipped": np.array([one.flipped.double().numpy() for one in found]).reshape(-1, len(HELD)),
    }


def bounds(counts: Array) -> tuple[float, float]:
    """The 95 % interval of a count, from its draws."""
    low, high = np.quantile(counts, (0.025, 0.975))
    return float(low), float(high)
