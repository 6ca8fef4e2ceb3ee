"""Scaling: how the loss falls with tokens or FLOP, by a power law with an offset, and how far that can be
trusted.

    L(x) = E + A · x^(−a)

E is what is left with endless data, a how fast the rest goes. For a given exponent the best E and A are
linear least squares (neither may be negative), so only the exponent is searched. Points are evenly spaced in
log x and smoothed, so that early training does not outweigh what came after; the first tenth of a run,
warm-up and the steep fall, is left out. Intervals are by bootstrap: the curve's residuals are drawn again in
blocks, for neighbours share their noise, and every draw is fitted in turn. Where the learning rate decays or
the depth grows, the curve is bent by that too, and the law with it: this is said, not corrected.

    >>> x = np.geomspace(1e5, 1e8, 40)
    >>> found = fit(x, 2.0 + 50 * x**-0.3)
    >>> round(found.offset, 3), round(found.exponent, 3)
    (2.0, 0.3)
    >>> round(float(found(3e11)), 2)
    2.02
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from srmlab.errors import Notice, UserError
from srmlab.files import short_names
from srmlab.storage.metrics_file import Losses
from srmlab.training.config import TrainConfig
from srmlab.training.depth import TrainingDepth
from srmlab.training.run import run_config

EXPONENTS = np.geomspace(0.01, 3.0, 600)
DRAWS = 200
POINTS = 60
FEWEST = 8  # points of a curve
SKIPPED = 0.1  # the share of a run before the fit begins


@dataclass(frozen=True)
class PowerLaw:
    offset: float  # E, nats
    scale: float  # A
    exponent: float  # a

    def __call__(self, x: np.ndarray | float) -> np.ndarray:
        return self.offset + self.scale * np.asarray(x, dtype=float) ** -self.exponent


@dataclass(frozen=True)
class Curve:
    """A run's training loss against tokens seen."""

    name: str
    tokens: np.ndarray  # [point]
    loss: np.ndarray  # [point] nats, smoothed
    flops_per_token: float  # of training, mean over the depths that it is done at
    bends: tuple[str, ...] = ()  # what else than more tokens shaped it, in words


@dataclass(frozen=True)
class Fit:
    """A law, the laws of the bootstrap's draws, and the range it was fitted on."""

    law: PowerLaw
    draws: tuple[PowerLaw, ...]
    first: float
    last: float
    residual: float  # standard deviation of the points around the law, nats

    def interval(self, x: float) -> tuple[float, float]:
        """95 % of the draws at x."""
        return middle([float(law(x)) for law in self.draws])

    def range_of(self, field: str) -> tuple[float, float]:
        """95 % of the draws' offset, scale or exponent."""
        return middle([getattr(law, field) for law in self.draws])

    def trust(self, x: float) -> str:
        """How far to trust the law at x, in words."""
        factor = x / self.last
        low, high = self.interval(x)
        words = [f"{factor:,.0f} times beyond the last point" if factor > 1 else "within what was run"]
        if factor > 10:
            words.append("past ten times it is a guess, whatever the interval")
        if factor > 1 and high - low > 0.2:
            words.append(f"the fit alone leaves {high - low:.2f} nats open")
        if factor > 1 and self.law.offset < 1e-6:
            words.append("no floor is visible yet, so it must come out too low in the end")
        if not EXPONENTS[0] < self.law.exponent < EXPONENTS[-1]:
            words.append("the exponent is at the edge of those searched, so this is not a fit")
        return "; ".join(words)


def middle(values: list[float]) -> tuple[float, float]:
    """Between which 95 % of them lie."""
    return float(np.percentile(values, 2.5)), float(np.percentile(values, 97.5))


def fit(x: np.ndarray, loss: np.ndarray) -> PowerLaw:
    """The law nearest to the points."""
    x, loss = np.asarray(x, dtype=float), np.asarray(loss, dtype=float)
    if len(x) < FEWEST or len(x) != len(loss):
        raise UserError(f"{len(x)} points are too few to fit three parameters: give {FEWEST} or more")
    middle = float(np.exp(np.log(x).mean()))  # for conditioning
    coarse = _best(EXPONENTS, x / middle, loss).exponent
    step = EXPONENTS[1] / EXPONENTS[0]
    law = _best(np.geomspace(coarse / step, coarse * step, 200), x / middle, loss)
    return PowerLaw(law.offset, law.scale * middle**law.exponent, law.exponent)


def _best(exponents: np.ndarray, x: np.ndarray, loss: np.ndarray) -> PowerLaw:
    """The law with the least squared error among those with these exponents; neither number is negative."""
    power = x ** -exponents[:, None]  # [exponent, point]
    centred = power - power.mean(1, keepdims=True)
    scale = np.maximum(0.0, centred @ loss / np.square(centred).sum(1))
    offset = loss.mean() - scale * power.mean(1)
    bare = offset < 0
    offset[bare] = 0.0
    scale[bare] = (power @ loss / np.square(power).sum(1))[bare]
    errors = np.square(loss - offset[:, None] - scale[:, None] * power).sum(1)
    at = int(errors.argmin())
    return PowerLaw(float(offset[at]), float(scale[at]), float(exponents[at]))


def fit_curve(x: np.ndarray, loss: np.ndarray, seed: int = 0) -> Fit:
    """The law and its bootstrap."""
    law = fit(x, loss)
    residuals = loss - law(x)
    generator = np.random.default_rng(seed)
    block = max(1, len(x) // 10)
    starts = -(-len(x) // block)
    draws = []
    for _ in range(DRAWS):
        firsts = generator.integers(0, len(x) - block + 1, starts)
        noise = np.concatenate([residuals[first : first + block] for first in firsts])[: len(x)]
        draws.append(fit(x, law(x) + noise - noise.mean()))
    return Fit(law, tuple(draws), float(x.min()), float(x.max()), float(residuals.std(ddof=3)))


def read_curves(runs: Sequence[str | Path]) -> list[Curve]:
    """Those of several runs, each with a name of its own. Runs on puzzles are left out: they are not counted
    in tokens.
    """
    folders = [Path(run) for run in runs]
    text = [folder for folder in folders if not ((config := run_config(folder)) and config.puzzles)]
    if not text:
        raise UserError("these runs are on puzzles, which are not counted in tokens: give runs on text")
    if others := len(folders) - len(text):
        words = f"left out {others} of {len(folders)} runs: they are on puzzles, not counted in tokens"
        warnings.warn(words, Notice, stacklevel=2)
    names = short_names(text)
    return [replace(read_curve(folder), name=name) for folder, name in zip(text, names, strict=True)]


def read_curve(run: str | Path) -> Curve:
    """The training loss of a run, at points evenly spaced in log tokens."""
    folder = Path(run)
    if not (folder / "metrics.jsonl").is_file():
        raise UserError(f"{folder} has no metrics.jsonl: give run directories of `srmlab train` or `sweep`")
    config = run_config(folder)
    if config is None:
        raise UserError(f"{folder} has no run.json: give run directories of `srmlab train` or `sweep`")
    found = Losses.read(folder / "metrics.jsonl")
    losses, steps = np.array(found.training, dtype=float), np.array(found.steps, dtype=float)
    after = steps > SKIPPED * steps.max() if len(steps) else np.array([], dtype=bool)
    places, means = smoothed(steps[after], losses[after]) if after.any() else (steps[after], losses[after])
    if len(places) < FEWEST:
        raise UserError(f"{folder} has {len(steps)} steps, too few to fit: train for {2 * FEWEST} or more")
    tokens = places * config.training.tokens_per_step(config.model.context)
    depth = TrainingDepth(config.training, config.model)
    return Curve(folder.name, tokens, means, depth.mean_flops(), bends(config.training, depth))


def bends(training: TrainConfig, depth: TrainingDepth) -> tuple[str, ...]:
    """What in a run's training changes the slope of its loss besides more tokens."""
    found = []
    if training.schedule != "constant" and training.lr_end < 1:
        found.append(f"the learning rate decays ({training.schedule}), which bends the curve")
    if depth.schedule.startswith("grow") and depth.at(1) != depth.at(depth.steps):
        found.append(f"the depth grows ({depth.schedule}), which bends the curve")
    return tuple(found)


def smoothed(steps: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of the losses in bins of equal width in log steps, and the bins' middles."""
    edges = np.geomspace(steps[0], steps[-1] * (1 + 1e-9), min(POINTS, len(steps)) + 1)
    bins = np.clip(np.searchsorted(edges, steps, side="right") - 1, 0, len(edges) - 2)
    filled = np.unique(bins)
    places = np.array([np.exp(np.log(steps[bins == b]).mean()) for b in filled])
    return places, np.array([losses[bins == b].mean() for b in filled])
