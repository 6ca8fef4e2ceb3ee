"""Early exit: a recursion stops where its state has settled.

One layer's weights are applied again and again, and the state changes less each time. With a tolerance, a
pass stops after the first level (layer, or high cycle) at which

    ‖z_t − z_{t−1}‖ < tolerance · ‖z_t‖

over all streams. A pass over many tokens stops for all of them at once; a pass over one token a row, as in
decoding, stops for each row on its own, and only the rows that go on are computed. The levels that were not
computed have the keys and values of the last one that was, stored once (see `cache`).

    >>> import torch, srmlab
    >>> from srmlab.models import Exit
    >>> model = srmlab.load(srmlab.pretrained.folder())
    >>> exit = Exit(0.05)
    >>> text = srmlab.generate(model, torch.tensor([[1, 2, 3]]), 8, seed=0, exit=exit)
    >>> exit.mean_levels < model.depth
    True
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from srmlab.errors import UserError

if TYPE_CHECKING:
    from srmlab.models.forward import Pass


class Exit:
    """The tolerance of early exit, and a count of the levels that the passes it was given to computed."""

    def __init__(self, tolerance: float) -> None:
        if not 0 <= tolerance < math.inf:  # NaN too
            raise UserError(f"exit = {tolerance}: must be 0 (never) or more, such as 0.05")
        self.tolerance = tolerance
        self.levels = 0  # computed, added up over the tokens
        self.tokens = 0

    @classmethod
    def of(cls, exit: float | Exit | None) -> Exit | None:
        return exit if exit is None or isinstance(exit, Exit) else cls(exit)

    @property
    def mean_levels(self) -> float:
        """Levels computed per token; NaN before the first."""
        return self.levels / self.tokens if self.tokens else math.nan

    def settled(self, before: Tensor, after: Tensor, together: bool) -> Tensor:
        """Whether the state [S, B, T, D] has settled: [B], or [1] when all rows decide together."""
        over = (0, 1, 2, 3) if together else (0, 2, 3)
        change = torch.linalg.vector_norm(after - before, dim=over)
        return (change < self.tolerance * torch.linalg.vector_norm(after, dim=over)).reshape(-1)


@torch.no_grad()
def until_settled(
    level: Callable[[int, Tensor, Tensor], tuple[Tensor, ...]], z: Tensor, x: Tensor, depth: int, here: Pass
) -> tuple[Tensor, ...]:
    """Apply `level(t, z, x)` for t = 0, 1 … until the state has settled, at most `depth` times.

    z and x have the batch as their third axis from the end, and so has all that a level gives back: the next
    state [S, B, T, D] first. The result is that of every row's last level, without gradient.
    """
    assert here.exit is not None
    B, T = x.shape[-3:-1]
    together = T > 1 or here.mask is not None
    rows = torch.arange(B, device=x.device)  # those that go on
    outside, cache = here.slots, None if here.cache is None else here.cache.settled
    results: tuple[Tensor, ...] = ()
    for t in range(depth):
        if cache is not None:
            here.slots = cache.level(t, depth, rows, T)
        after = level(t, z, x)
        here.exit.levels += len(rows) * T
        if len(rows) == B:
            results = after
        else:
            results = tuple(all.index_copy(-3, rows, new) for all, new in zip(results, after, strict=True))
        settled = here.exit.settled(z, after[0], together).tolist()
        z = after[0]
        if cache is not None and any(settled) and t < depth - 1:
            cache.settle(t)
        if all(settled):
            break
        if any(settled):
            on = torch.tensor([row for row, done in enumerate(settled) if not done], device=x.device)
            rows, z, x = rows[on], z.index_select(-3, on), x.index_select(-3, on)
    here.exit.tokens += B * T
    here.slots = outside
    return results
