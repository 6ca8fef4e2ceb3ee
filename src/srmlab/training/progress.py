"""What a person sees of a run: on a terminal a live line with a sparkline of the loss, else plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self

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


def duration(seconds: float) -> str:
    """
    >>> duration(3725)
    '1:02:05'
    >>> duration(1e6)
    '11.6 days'
    """
    if seconds >= 48 * 3600:
        return f"{seconds / 86400:,.1f} days"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


class Progress:
    """Told every row of the metrics; shows what is worth it."""

    def __init__(self, steps: int, first: int, every: int, *, show: bool = True) -> None:
        self.steps, self.first, self.every, self.show = steps, first, every, show
        self.losses: list[float] = []
        self.val_loss: float | None = None
        self.started = time.perf_counter()
        self._live: Any = None

    def __enter__(self) -> Self:
        if self.show and sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(refresh_per_second=4)
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live is not None:
            self._live.__exit__(*error)

    def say(self, text: str) -> None:
        if not self.show:
            return
        if self._live is not None:
            self._live.console.print(text, highlight=False)
        else:
            print(text, flush=True)

    def row(self, row: dict[str, Any]) -> None:
        if "val_loss" in row:
            self.val_loss = row["val_loss"]
            self.say(f"step {row['step']:>6}   validation loss {row['val_loss']:.4f}")
            return
        self.losses.append(row["loss"])
        if self._live is not None:
            self._live.update(self.line(row, spark=True))
        elif row["step"] % self.every == 0 or row["step"] in (self.first + 1, self.steps):
            self.say(self.line(row))

    def line(self, row: dict[str, Any], *, spark: bool = False) -> str:
        done = row["step"] - self.first
        left = (time.perf_counter() - self.started) / done * (self.steps - row["step"])
        mfu = f"  {row['mfu']:.0%} of peak" if row.get("mfu") else ""
        curve = f"  {sparkline([loss for loss in self.losses if loss == loss])}" if spark else ""
        return (
            f"step {row['step']:>6}/{self.steps}  loss {row['loss']:.4f}{curve}  "
            f"{row['tokens_per_second']:,.0f} tokens/s{mfu}  {duration(left)} left"
        )
