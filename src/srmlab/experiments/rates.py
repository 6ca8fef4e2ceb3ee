"""A model's own best learning rate: a grid of factors of two, extended until its best is inside it.

The search uses the first seed. It begins at the rate that the cell names and at half of it; while the best is
at an edge, the grid grows there. A comparison of models whose search ended at an edge decides nothing.

    >>> Search({2e-3: 3.6, 4e-3: 3.5, 8e-3: 3.7}).best
    0.004
    >>> Search({2e-3: 3.4, 4e-3: 3.5}).missing(4e-3)
    [0.001]
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST_SEED = 0
MOST = 7  # rates; then the search gives up, at an edge


@dataclass(frozen=True)
class Search:
    losses: dict[float, float]  # rate → validation loss of the first seed; inf where training diverged

    @property
    def best(self) -> float:
        return min(sorted(self.losses), key=lambda rate: self.losses[rate])

    @property
    def interior(self) -> bool:
        """Whether a lower and a higher rate are worse."""
        return bool(self.losses) and min(self.losses) < self.best < max(self.losses)

    def missing(self, start: float) -> list[float]:
        """The rates to try next; none if the search is over."""
        if left := [rate for rate in (start / 2, start) if rate not in self.losses]:
            return left
        if self.interior or len(self.losses) >= MOST:
            return []
        return [self.best / 2 if self.best == min(self.losses) else self.best * 2]

    def __str__(self) -> str:
        tried = ", ".join(
            f"{rate:g}: {'diverged' if math.isinf(loss) else f'{loss:.3f}'}"
            for rate, loss in sorted(self.losses.items())
        )
        return f"{self.best:g} of {tried}" if self.losses else "none tried"
