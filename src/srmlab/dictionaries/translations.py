"""Translations: how a stream's state is transformed on its way to another, and which feature becomes which.

What a target takes from a source through a head is weight · z_source · T with T = value · output, a separate
matrix for every (head, target, source). Three questions:

    rank    how many directions does T pass on? Its effective rank is exp of the entropy of its singular
            values' shares (Roy and Vetterli, 2007): all dimensions if all are passed on alike, 1 if one is
    match   does T turn features into features? Every direction of the source's dictionary is translated, and
            compared with all of the target's: its best cosine. Among many directions one is always near, so
            the same is done with the target's directions rotated at random. A feature that comes nearer than
            99 % of features come to rotated ones *becomes* the one that it is nearest to
    lift    does it? How much more often the target's feature is in use after the layer where the source's was
            before it: P(after | before) / P(after), and the same with another feature of the target

Without a dictionary there are ranks alone, also for an untrained twin.

    >>> import srmlab, srmlab.dictionaries, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> found = srmlab.dictionaries.translations(model, [torch.arange(64).view(2, 32)])
    >>> found.rank.shape, bool(found.rank.max() < 32)           # head, target, source
    ((2, 8, 8), True)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.capture import Batches, Placed, evidence_of, placed
from srmlab.analysis.result import Array, Axes, Result, derived, plus_minus
from srmlab.dictionaries.dictionary import Dictionary, check, of_states
from srmlab.errors import UserError
from srmlab.models import LanguageModel

AXES = "head target source"
SURELY = 0.99  # of the features that are compared with rotated ones
Becomes = tuple[int, int, int, int, int]  # head, target, source, the source's feature, the target's
Describe = Callable[[int, int], str]  # stream, feature → what it is about


@dataclass(frozen=True, kw_only=True, eq=False)
class Translations(Result):
    """How states are transformed between streams, and which feature becomes which."""

    kind: ClassVar[str] = "translations"

    dim: int  # of a stream: the largest rank
    becomes: tuple[Becomes, ...]  # the clearest first
    cosines: tuple[float, ...]  # of each
    lifts: tuple[float, ...]  # of each
    other_lifts: tuple[float, ...]  # of each, with another feature of the target
    described: tuple[tuple[str, str], ...]  # of each
    rank: Annotated[Array, Axes(AXES, "effective rank")]
    size: Annotated[Array, Axes(AXES, "root mean square of the singular values")]
    match: Annotated[Array, Axes(AXES, "best cosine with a feature of the target, mean over features")]
    chance: Annotated[Array, Axes(AXES, "the same with the target's features rotated at random")]
    clear: Annotated[Array, Axes(AXES, "share of features that become one")]

    @derived("", "directions")
    def mean_rank(self) -> float:
        return float(self.rank.mean())

    @derived("", "cosine")
    def mean_match(self) -> float:
        return float(self.match.mean())

    @derived("", "cosine")
    def mean_chance(self) -> float:
        return float(self.chance.mean())

    @derived("", "share of features")
    def becoming(self) -> float:
        """1 % would be by chance."""
        return float(self.clear.mean())

    def median_lift(self, other: bool = False) -> float:
        known = [lift for lift in (self.other_lifts if other else self.lifts) if np.isfinite(lift)]
        return float(np.median(known)) if known else float("nan")

    def headline(self) -> str:
        ranks = f"effective rank {self.mean_rank:.1f} of {self.dim}"
        if not np.isfinite(self.mean_match):
            return ranks
        return (
            f"{ranks}; translated features have cosine {self.mean_match:.2f} with the target's nearest, "
            f"{self.mean_chance:.2f} if these are rotated; {self.becoming:.1%} become one "
            f"(by chance {1 - SURELY:.0%})"
        )

    def summary(self) -> str:
        lines = [f"Translations ({self.evidence})", f"  {self.headline()}"]
        lines.append(
            f"  ranks {self.rank.min():.1f} to {self.rank.max():.1f} over heads, targets and sources"
        )
        if self.becomes:
            own, another = (plus_minus(self.median_lift(other), form=".2f") for other in (False, True))
            lines.append(
                f"  lift of the {len(self.becomes)} clearest, median: {own}, of another feature {another}"
            )
        for i, (head, target, source, feature, becomes) in enumerate(self.becomes[:10]):
            before, after = (f" ({text})" if text else "" for text in self.described[i])
            lines.append(
                f"  head {head}: S{source} feature {feature}{before} → S{target} feature {becomes}{after}: "
                f"cosine {self.cosines[i]:.2f}, lift {plus_minus(self.lifts[i], form='.2f')}"
            )
        return "\n".join(lines)


def translations(
    model: LanguageModel,
    batches: Batches,
    dictionary: Dictionary | None = None,
    *,
    top: int = 200,
    describe: Describe | None = None,
    seed: int = 0,
) -> Translations:
    """The ranks of a model's translations and, with a dictionary, which features become which; for the `top`
    clearest, whether they do on this text."""
    if model.translations is None:
        raise UserError("translations need a connection with values and outputs, such as attention")
    maps = model.translations.detach().float().cpu()  # [H, target, source, D, D]
    given = list(placed(batches, model.device))
    values = torch.linalg.svdvals(maps)
    shape = maps.shape[:3]
    fields: dict[str, Any] = {name: np.full(shape, np.nan) for name in ("match", "chance", "clear")}
    found: list[tuple[float, Becomes]] = []
    lifts = (np.zeros(0), np.zeros(0))
    if dictionary is not None:
        check(model, of_states(dictionary))
        matched, found = matches(maps, dictionary, top, seed)
        fields |= matched
        pairs = [becomes for _, becomes in found]
        lifts = measured_lifts(model, dictionary, given, pairs, seed)
    about = describe or (lambda stream, feature: "")  # noqa: ARG005
    return Translations(
        evidence=evidence_of(given),
        dim=maps.shape[-1],
        becomes=tuple(becomes for _, becomes in found),
        cosines=tuple(cosine for cosine, _ in found),
        lifts=tuple(map(float, lifts[0])),
        other_lifts=tuple(map(float, lifts[1])),
        described=tuple((about(s, i), about(t, j)) for _, (_, t, s, i, j) in found),
        rank=effective_rank(values).double().numpy(),
        size=values.square().mean(-1).sqrt().double().numpy(),
        **fields,
    )


def effective_rank(values: Tensor) -> Tensor:
    """Singular values […, D] → exp of the entropy of their shares […]."""
    shares = values / values.sum(-1, keepdim=True).clamp(min=1e-12)
    return torch.exp(-(shares * shares.clamp(min=1e-12).log()).sum(-1))


def matches(
    maps: Tensor, dictionary: Dictionary, top: int, seed: int
) -> tuple[dict[str, Array], list[tuple[float, Becomes]]]:
    """By head, target and source: the best cosines beside those by chance; and the clearest features that
    become one, with their cosines."""
    directions = dictionary.directions.detach().float().cpu()  # [S, F, D]
    draw = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(*maps.shape[-2:], generator=draw)).Q
    fields = {name: np.zeros(maps.shape[:3]) for name in ("match", "chance", "clear")}
    found: list[tuple[float, Becomes]] = []
    for place in np.ndindex(*maps.shape[:3]):
        head, target, source = place
        moved = torch.nn.functional.normalize(directions[source] @ maps[place], dim=-1)  # [F, D]
        best, nearest = (moved @ directions[target].T).max(-1)
        by_chance = (moved @ (directions[target] @ rotation).T).amax(-1)
        bar = float(by_chance.quantile(SURELY))
        fields["match"][place], fields["chance"][place] = float(best.mean()), float(by_chance.mean())
        fields["clear"][place] = float((best > bar).float().mean())
        for i in (best > bar).nonzero().squeeze(1).tolist():
            found.append((float(best[i]), (head, target, source, i, int(nearest[i]))))
    found.sort(key=lambda one: -one[0])
    return fields, found[:top]


def measured_lifts(
    model: LanguageModel,
    dictionary: Dictionary,
    batches: Sequence[Placed],
    pairs: Sequence[Becomes],
    seed: int,
) -> tuple[Array, Array]:
    """[pair] The lift of each pair, over all layers whose states before and after the dictionary knows; and
    that of another feature of the target, NaN if it has no other."""
    points = set(dictionary.config.points)
    reads = [exchange.state for exchange in model.exchanges]
    layers = [
        (r, model.points[l].name)
        for l, r in enumerate(reads)
        if r in points and model.points[l].name in points
    ]
    _, target, source, before, after = torch.tensor(pairs, dtype=torch.long).reshape(-1, 5).T
    draw = torch.Generator().manual_seed(seed)
    F = dictionary.config.features
    other = (after + torch.randint(1, max(2, F), after.shape, generator=draw)) % F
    counts, others = torch.zeros(2, 4, len(pairs), dtype=torch.float64)  # before, both, after, all
    for batch in batches:
        sites = sorted({site for pair in layers for site in pair if isinstance(site, str)})
        with torch.inference_mode(), model.evaluating():
            _, cache = model.run_with_cache(batch.tokens, sites, documents=batch.documents)
            states = {site: model.at_tokens(cache[site]) for site in sites}
            fired = {site: (dictionary.encode(states[site]) > 0).flatten(0, 1).cpu() for site in sites}
        for read, written in layers:
            assert isinstance(read, str)
            was = fired[read][:, source, before]
            for sums, feature in ((counts, after), (others, other)):
                now = fired[written][:, target, feature]
                every = torch.full_like(after, len(was))
                sums += torch.stack((was.sum(0), (was & now).sum(0), now.sum(0), every))
    return lift(counts), lift(others) if F > 1 else np.full(len(pairs), np.nan)


def lift(counts: Tensor) -> Array:
    """P(after | before) / P(after), from the counts of before, both, after and all; NaN where one is never in
    use."""
    before, both, after, total = counts
    found = (both / before) / (after / total)
    return found.masked_fill((before == 0) | (after == 0), torch.nan).numpy()
