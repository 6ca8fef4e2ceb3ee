"""Statistics: standard errors of means over rows, bootstrap errors of derived numbers, correlations, ranks.

>>> rows = np.array([[1.0, 2.0], [3.0, np.nan], [5.0, 6.0]])
>>> mean_of_known(rows), error_of_known(rows).round(3)
(array([3., 4.]), array([1.155, 2.   ]))
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.result import Array, Result

DRAWS = 100


def bootstrapped(found: Result, samples: Iterable[Result], parts: int) -> dict[str, Array]:
    """The standard errors of the numbers that a result derives, from samples of it, each made of as many
    parts of the text drawn anew."""
    drawn: dict[str, list[Array]] = {name: [] for name in found.derived()}
    for sample in samples:
        for name, values in drawn.items():
            values.append(np.asarray(getattr(sample, name), dtype=float))
    correction = (parts / (parts - 1)) ** 0.5
    return {
        name: np.asarray(correction * spread(getattr(found, name), np.stack(values)))
        for name, values in drawn.items()
    }


def mean_of_known(rows: Array) -> Array:
    """Over the first axis, of the finite values; NaN where there is none."""
    known = np.isfinite(rows)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(known, rows, 0).sum(0) / known.sum(0))


def error_of_known(rows: Array) -> Array:
    """The standard error of `mean_of_known`; NaN for fewer than two values."""
    known = np.isfinite(rows)
    count = known.sum(0)
    squares = np.where(known, rows - mean_of_known(rows), 0) ** 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.sqrt(squares.sum(0) / (count - 1) / count))


def correlation(a: Array, b: Array) -> float:
    """Pearson's, over the places where both are known; NaN where one of them does not vary."""
    known = np.isfinite(a) & np.isfinite(b)
    x, y = a[known], b[known]
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])


def ranks(values: Tensor) -> Tensor:
    """From 1; equal values share the mean of their ranks."""
    _, place, count = torch.unique(values, return_inverse=True, return_counts=True)
    return (count.cumsum(0).double() - (count - 1) / 2)[place]


def spread(value: Array | float, draws: Array) -> Array:
    """The standard deviation of the draws [draw, …] of a value. NaN where the value itself is not known;
    infinite where most draws have none; 0 for what rounding leaves of a constant."""
    known = np.isfinite(draws)
    count = np.maximum(known.sum(0), 1)
    centred = np.where(known, draws - np.where(known, draws, 0).sum(0) / count, 0)
    error = np.sqrt(np.square(centred).sum(0) / count)
    error = np.where(error > 1e-13 * np.abs(value), error, 0.0)
    error = np.where(2 * known.sum(0) > len(draws), error, np.inf)
    return np.where(np.isfinite(value), error, np.nan)
