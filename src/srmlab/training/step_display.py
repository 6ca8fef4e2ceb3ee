"""The progress display of a run: on a terminal a bar with a sparkline of the loss, otherwise plain lines."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self

from srmlab.progress import Display, duration

BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """The values as bars, averaged to `width` of them.

    >>> sparkline([4.0, 3.0, 2.0, 1.0])
    '█▆▃▁'
    """
    if not values:
        return ""
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, span = min(means), (max(means) - min(means)) or 1.0
    return "".join(BARS[min(7, round((mean - low) / span * 7))] for mean in means)


class Progress(Display):
    """Gets every row of the metrics; shows what is worth it."""

    def __init__(self, steps: int, first: int, every: int, *, show: bool = True) -> None:
        super().__init__(show=show, file=sys.stdout)
        self.steps, self.first, self.every = steps, first, every
        self.losses: list[float] = []  # those that are finite
        self.started = time.perf_counter()

    def __enter__(self) -> Self:
        super().__enter__()
        self.training = self.task("training", self.steps, "steps", self.first)
        return self

    def row(self, row: dict[str, Any]) -> None:
        if "val_loss" in row:
            solved = f", {row['val_solved']:.1%} of the puzzles solved" if "val_solved" in row else ""
            self.say(f"step {row['step']:>6}   validation loss {row['val_loss']:.4f}{solved}")
            return
        if math.isfinite(row["loss"]):
            self.losses.append(row["loss"])
        if self.live:
            curve = sparkline(self.losses)
            self.training.update(row["step"], f"loss {row['loss']:.4f} {curve}, {_speed(row)}")
        elif row["step"] % self.every == 0 or row["step"] in (self.first + 1, self.steps):
            done = row["step"] - self.first
            left = (time.perf_counter() - self.started) / done * (self.steps - row["step"])
            self.say(
                f"step {row['step']:>6}/{self.steps}  loss {row['loss']:.4f}  {_speed(row)}  "
                f"{duration(left)} left"
            )


def _speed(row: dict[str, Any]) -> str:
    mfu = f"  {row['mfu']:.0%} of peak" if row.get("mfu") else ""
    return f"{row['tokens_per_second']:,.0f} tokens/s{mfu}"
