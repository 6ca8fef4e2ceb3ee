"""The learning rate as a pure function of the step: linear warm-up, then constant or a cosine.

    >>> [round(learning_rate(t, lr=1.0, warmup=4, steps=10), 2) for t in (1, 2, 4, 10)]
    [0.25, 0.5, 1.0, 1.0]

Steps count from 1. There is no state between steps, so nothing to save or restore.
"""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["constant", "cosine"]


def learning_rate(
    step: int, *, lr: float, warmup: int, steps: int, schedule: Schedule = "constant", lr_end: float = 0.1
) -> float:
    """The rate of step 1 … steps; a cosine falls from `lr` after the warm-up to `lr_end`·lr at the end."""
    if step < warmup:
        return lr * step / warmup
    if schedule == "constant":
        return lr
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    return lr * (lr_end + (1 - lr_end) * (1 + math.cos(math.pi * progress)) / 2)
