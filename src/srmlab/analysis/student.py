"""Student's t: how wide an interval over a few values has to be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    mean: float
    half: float  # half the width of the interval; NaN for one value

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    def __str__(self) -> str:
        return f"{self:.4f}"

    def __format__(self, form: str) -> str:
        """
        >>> f"{Interval(2.4541, 0.0155):.3f}"
        '2.454 [2.439, 2.470]'
        """
        return f"{self.mean:{form}} [{self.low:{form}}, {self.high:{form}}]" if form else str(self)


def interval(values: np.ndarray, level: float = LEVEL) -> Interval:
    """The mean and its interval."""
    n = len(values)
    half = student(n - 1, level) * float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return Interval(float(values.mean()), half)


@cache
def student(freedom: int, level: float = LEVEL) -> float:
    """The half-width of Student's interval, in standard errors.

    >>> round(student(2), 3), round(student(9), 3)
    (4.303, 2.262)
    """
    # With t = sqrt(f)·tan(a) the density is cos(a)^(f−1) up to a constant: smooth, on a finite range.
    angles = np.linspace(0, math.pi / 2, 20_001)
    density = np.cos(angles) ** (freedom - 1)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return math.sqrt(freedom) * math.tan(float(np.interp(level, mass / mass[-1], angles)))
