"""Fair timing on a noisy machine: the candidates take turns, and what counts is their ratio within a round.

Every number here is a ratio of two things timed in the same process, moments apart. A time alone would say
more about the machine's other tenants than about the code.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Row:
    """One line of the bench: `numerator` over `denominator`, and what was asked of the ratio."""

    name: str
    numerator: str
    denominator: str
    seconds: tuple[float, float]  # medians over the rounds; in `unit`
    ratio: float  # median over the rounds of the ratio within a round
    asked: str = ""  # such as "≤ 4.0"
    limit: float | None = None  # the ratio the arithmetic alone allows
    limit_seconds: tuple[float, float] | None = None  # each side's FLOPs ÷ the measured GEMM peak
    note: str = ""
    unit: str = "s"

    @property
    def met(self) -> bool | None:
        if not self.asked:
            return None
        sign, bound = self.asked.split()
        return self.ratio <= float(bound) if sign == "≤" else self.ratio >= float(bound)


def take_turns(candidates: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every candidate in every round, after one round that does not count (compilation, first
    touch of memory).
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(rounds + 1):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            if turn > 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def compare(name: str, seconds: dict[str, list[float]], numerator: str, denominator: str, **row) -> Row:
    ratios = [a / b for a, b in zip(seconds[numerator], seconds[denominator], strict=True)]
    medians = (statistics.median(seconds[numerator]), statistics.median(seconds[denominator]))
    return Row(name, numerator, denominator, medians, statistics.median(ratios), **row)


def gemm_peak(size: int = 2048, seconds: float = 2.0) -> float:
    """The best fp32 matmul rate of this machine now, in FLOP/s: the limit that times are held against."""
    a = torch.randn(size, size)
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        a @ a
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best
