"""What counts as evidence: differences paired by seed, an interval, a margin named beforehand, a verdict.

The cells of an experiment share the order of the data by seed, so what a seed does to one it also does to the
other: losses are subtracted seed by seed, and the interval is Student's over those differences. Nothing is
assumed about how much either cell varies alone.

    >>> found = paired({0: 3.50, 1: 3.54, 2: 3.52}, {0: 3.60, 1: 3.65, 2: 3.61})
    >>> print(found)
    -0.100 [-0.125, -0.075] over 3 seeds
    >>> below(found, margin=0.02), alike(found, margin=0.02), not_above(found, margin=0.02)
    ('holds', 'does not hold', 'holds')

A verdict is one of three. "Undecided" is what an interval says that reaches both ways; it is never read as
"no effect", which has to be shown: the whole interval within ± the margin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from srmlab.analysis.student import LEVEL, Interval, interval

Verdict = Literal["holds", "does not hold", "undecided"]
MARGIN = 0.02  # nats: 2 % of perplexity, "no noticeable effect" in the paper's table of orders


@dataclass(frozen=True)
class Difference(Interval):
    """A mean over pairs and its interval."""

    pairs: int

    def __neg__(self) -> Difference:
        return Difference(-self.mean, self.half, self.pairs)

    def __str__(self) -> str:
        return f"{self:+.3f} over {self.pairs} seeds"


@dataclass(frozen=True)
class Claim:
    """A sentence that runs can decide, with its verdict."""

    text: str
    verdict: Verdict
    because: str  # the number that decides it
    missing: str = ""  # a cell that it needs and that has not been run

    def __str__(self) -> str:
        return f"“{self.text}” {'is ' if self.verdict == 'undecided' else ''}{self.verdict}: {self.because}."


def paired(a: Mapping[int, float], b: Mapping[int, float], level: float = LEVEL) -> Difference | None:
    """a − b over the seeds that both have; None for fewer than two."""
    seeds = sorted(a.keys() & b.keys())
    if len(seeds) < 2:
        return None
    found = interval(np.array([a[seed] - b[seed] for seed in seeds]), level)
    return Difference(found.mean, found.half, len(seeds))


def below(difference: Difference | None, margin: float) -> Verdict:
    """Is a lower than b? Not so if it is higher, or if they are alike to within the margin."""
    if difference is None:
        return "undecided"
    if difference.high < 0:
        return "holds"
    return "does not hold" if difference.low > 0 or alike(difference, margin) == "holds" else "undecided"


def above(difference: Difference | None, margin: float) -> Verdict:
    """Is a higher than b?"""
    return below(None if difference is None else -difference, margin)


def alike(difference: Difference | None, margin: float) -> Verdict:
    """Is there no effect? So if the interval is within ± margin; not so if it is to one side of 0 and not."""
    if difference is None:
        return "undecided"
    if -margin < difference.low and difference.high < margin:
        return "holds"
    return "does not hold" if difference.low > 0 or difference.high < 0 else "undecided"


def not_above(difference: Difference | None, margin: float) -> Verdict:
    """Is a no higher than b, but for the margin?"""
    if difference is None:
        return "undecided"
    if difference.high < margin:
        return "holds"
    return "does not hold" if difference.low > 0 else "undecided"


def every(text: str, claims: Iterable[Claim]) -> Claim:
    """All of them together: it fails with one that fails. The number that decides is the one named."""
    parts = list(claims)
    for verdict in ("does not hold", "undecided"):
        if failing := [part for part in parts if part.verdict == verdict]:
            return Claim(text, verdict, failing[0].because, failing[0].missing)
    if not parts:
        return Claim(text, "undecided", "not enough runs")
    return Claim(text, "holds", "; ".join(part.because for part in parts))


def some(text: str, alike_claims: Iterable[Claim]) -> Claim:
    """That there is an effect somewhere: the opposite of all being alike."""
    opposite: dict[Verdict, Verdict] = {
        "holds": "does not hold",
        "does not hold": "holds",
        "undecided": "undecided",
    }
    all_alike = every(text, alike_claims)
    return replace(all_alike, verdict=opposite[all_alike.verdict])
