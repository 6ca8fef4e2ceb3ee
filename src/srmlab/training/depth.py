"""Training depth as a pure function of the step: how many levels (layers, high cycles) it runs, and how many
of them have a gradient.

    constant      the model's own n and l
    grow:2        from 2 levels to n, in equal stretches of the run; gradient through l of them, at most
    grow:2/1      the same with the gradient depth growing too, from 1 level to l
    draw:2        n drawn uniformly for every step from 2 … n
    draw:2/1      the same, and l drawn from 1 … l (but no more than there are levels)
    poisson       n drawn for every step as Huginn does: 1 + Poisson(e^τ), τ normal, so that e^τ has the mean
                  of the model's own n; occasionally much deeper. Gradient through l of them, at most

    >>> [depth_at("grow:2", step, steps=8, seed=0, depth=5, gradient_depth=3) for step in (1, 3, 5, 8)]
    [(2, None), (3, None), (4, None), (5, None)]

A draw is a function of the seed and the step, so nothing has to be saved for an exact resume, and all
processes draw the same. All runs share the weights: the levels of a recursion have no weights of their own.
A schedule of l is refused where the architecture cannot cut its gradient there.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from srmlab.errors import UserError
from srmlab.models import LanguageModel, ModelConfig, outline

if TYPE_CHECKING:
    from srmlab.training.config import TrainConfig

FORM = re.compile(r"(grow|draw):([1-9]\d*)(?:/([1-9]\d*))?")
CONSTANT, POISSON = "constant", "poisson"
SPREAD = 0.5  # the standard deviation of τ


def is_schedule(text: str) -> bool:
    return text in (CONSTANT, POISSON) or FORM.fullmatch(text) is not None


def depth_at(
    schedule: str, step: int, *, steps: int, seed: int, depth: int, gradient_depth: int
) -> tuple[int, int | None]:
    """The depth and gradient depth of step 1 … steps, for a model of that depth and gradient depth. None is
    the usual gradient depth, as of `at_depth`.
    """
    if schedule == CONSTANT:
        return depth, None
    random = np.random.default_rng(np.random.SeedSequence([seed, step], spawn_key=(1,)))
    if schedule == POISSON:
        rate = np.exp(random.normal(np.log(depth) - SPREAD**2 / 2, SPREAD))
        return 1 + int(random.poisson(rate)), None
    kind, least, least_gradient = _read(schedule)
    if kind == "grow":

        def pick(low: int, high: int) -> int:
            return low + min(high - low, (high - low + 1) * (step - 1) // steps)
    else:

        def pick(low: int, high: int) -> int:
            return int(random.integers(low, high, endpoint=True))

    n = pick(least, depth)
    return n, None if least_gradient is None else min(n, pick(least_gradient, gradient_depth))


def _read(schedule: str) -> tuple[str, int, int | None]:
    """Of "grow:2/1" or "draw:2": the kind, and the least levels, of all and in the gradient."""
    match = FORM.fullmatch(schedule)
    assert match is not None
    return match[1], int(match[2]), int(match[3]) if match[3] else None


class TrainingDepth:
    """The depth of every step of one run, and its arithmetic."""

    def __init__(self, training: TrainConfig, model: ModelConfig) -> None:
        self.schedule, self.steps, self.seed = training.depth_schedule, training.steps, training.seed
        self.model, self.context = model, training.context or model.context
        meta: LanguageModel = outline(model)
        self.depth, self.gradient_depth = meta.depth, meta.depth - (meta.gradient_from or 0)
        self.flops = cache(self._flops)
        if not self.constant:
            self.check()

    @property
    def constant(self) -> bool:
        return self.schedule == CONSTANT

    def at(self, step: int) -> tuple[int, int | None]:
        return depth_at(
            self.schedule,
            step,
            steps=self.steps,
            seed=self.seed,
            depth=self.depth,
            gradient_depth=self.gradient_depth,
        )

    def mean_flops(self) -> float:
        """Training FLOP per token, averaged over the run."""
        if self.constant:
            return float(self.flops(self.depth, None))
        often = Counter(self.at(step) for step in range(1, self.steps + 1))
        return sum(count * self.flops(*depth) for depth, count in often.items()) / self.steps

    def _flops(self, depth: int, gradient_depth: int | None) -> int:
        """Training FLOP per token at a depth."""
        at = self.model if self.constant else self.model.at_depth(depth, gradient_depth)
        return outline(at).flops_per_token(self.context).training

    def check(self) -> None:
        """Refuse what the model cannot do before anything is computed."""
        if self.schedule == POISSON:
            self.model.at_depth(self.depth)
            return
        kind, levels, in_gradient = _read(self.schedule)
        for what, least, own in (
            ("levels", levels, self.depth),
            ("levels in the gradient", in_gradient, self.gradient_depth),
        ):
            if least is not None and least > own:
                raise UserError(
                    f"depth_schedule = {self.schedule!r}: the model has {own} {what}; start from at most that"
                )
        self.model.at_depth(levels)
        if in_gradient is None:
            return
        # the least gradient is drawn at any depth; growing, it is that of the least depth
        for n in (levels, self.depth) if kind == "draw" else (levels,):
            try:
                self.model.at_depth(n, min(n, in_gradient))
            except UserError as error:
                use = f"use {kind}:{levels}"
                raise UserError(f"depth_schedule = {self.schedule!r}: {use} ({error})") from None
