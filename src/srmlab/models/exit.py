"""Early exit: stop the recursion once its state has settled.

One layer's weights are applied repeatedly, and the state changes less each time. With a tolerance, a pass
stops after the first level (layer, or high cycle) at which

    ‖z_t − z_{t−1}‖ < tolerance · ‖z_t‖

over all streams. That is the rule "change"; an architecture may have others of its own (`exit_rules`), such
as a learned exit gate. A pass over many tokens, or over a padded batch, stops for all of them at once, and
padding does not count; a pass over one token per row, as in decoding, stops for each row on its own, and only
the rows that continue are computed. Levels that were not computed reuse the keys and values of the last one
that was (see `cache`).

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

State = tuple[Tensor, ...]
Level = Callable[[int, State, Tensor], State]
Settles = Callable[[State, State, bool], Tensor]  # before, after, whether all rows decide together


class Exit:
    """The tolerance of early exit, the rule it is for (by default the model's first), and a count of the
    levels that the passes it was given to computed. For Ouro's gate it is the cumulative probability to
    reach: 0 stops after the first loop, more than 1 never.
    """

    def __init__(self, tolerance: float, by: str | None = None) -> None:
        if not 0 <= tolerance < math.inf:  # NaN too
            raise UserError(f"exit = {tolerance}: must be 0 (never) or more, such as 0.05")
        self.tolerance, self.by = tolerance, by
        self.levels = 0  # computed, added up over the tokens
        self.tokens = 0

    @classmethod
    def of(cls, exit: float | Exit | None) -> Exit | None:
        return exit if exit is None or isinstance(exit, Exit) else cls(exit)

    @property
    def mean_levels(self) -> float:
        """Mean number of levels computed per token; NaN before the first."""
        return self.levels / self.tokens if self.tokens else math.nan

    def settled(self, before: Tensor, after: Tensor, together: bool) -> Tensor:
        """Whether the state [S, B, T, D] or [B, T, D] has settled: [B], or [1] when all rows decide
        together."""
        rows = after.ndim - 3
        over = tuple(axis for axis in range(after.ndim) if axis != rows)
        if together or after.shape[rows] == 1:
            over = None  # all axes, in one go
        change = torch.linalg.vector_norm(after - before, dim=over)
        return (change < self.tolerance * torch.linalg.vector_norm(after, dim=over)).reshape(-1)


def moved(by: str, was: Tensor, now: Tensor) -> Tensor:
    """[…] How far the next token's distribution has moved, from log-probabilities […, V]: "kl" is
    KL(now ‖ was) in nats, "entropy" the change of its entropy."""
    if by == "kl":
        return (now.exp() * (now - was)).sum(-1)
    return ((now.exp() * now).sum(-1) - (was.exp() * was).sum(-1)).abs()


def recurse(
    level: Level, state: State, x: Tensor, depth: int, here: Pass, settled: Settles | None = None
) -> State:
    """Apply `level(t, state, x)` for t = 0 … depth − 1; with early exit, until the state has settled.

    x and all parts of a state have the batch as their third axis from the end. `settled(before, after,
    together)` decides, by default by the change of the first part.
    """
    if here.exit is not None:
        return until_settled(level, state, x, depth, here, settled)
    for t in range(depth):
        state = level(t, state, x)
    return state


@torch.no_grad()
def until_settled(
    level: Level, state: State, x: Tensor, depth: int, here: Pass, settled: Settles | None
) -> State:
    """`recurse` with early exit: the result is that of every row's last level, without gradient."""
    assert here.exit is not None
    exit = here.exit
    B, T = x.shape[-3:-1]
    together = T > 1 or here.mask is not None
    rows = torch.arange(B, device=x.device)  # those that go on
    outside, cache = here.slots, None if here.cache is None else here.cache.settled
    results: State = ()
    done = settled or (lambda a, b, together: exit.settled(a[0], b[0], together))
    for t in range(depth):
        if cache is not None:
            here.slots = cache.level(t, depth, rows, T)
        after = level(t, state, x)
        exit.levels += len(rows) * T
        if len(rows) == B:
            results = after
        else:
            results = tuple(all.index_copy(-3, rows, new) for all, new in zip(results, after, strict=True))
        if t == depth - 1:
            break
        stops = done(without_padding(state, here.real, T), without_padding(after, here.real, T), together)
        stops = stops.tolist()
        state = after
        if cache is not None and any(stops):
            cache.settle(t)
        if all(stops):
            break
        if any(stops):
            on = torch.tensor([row for row, stop in enumerate(stops) if not stop], device=x.device)
            rows, x = rows[on], x.index_select(-3, on)
            state = tuple(part.index_select(-3, on) for part in state)
    exit.tokens += B * T
    here.slots = outside
    return results


def without_padding(state: State, real: Tensor | None, T: int) -> State:
    """The parts of a state [..., B, T, D] at its real tokens alone, [..., real tokens, 1, D]."""
    if real is None:
        return state
    counted = real[:, -T:]
    return tuple(
        part.flatten(-3, -2)[..., counted.flatten(), :].unsqueeze(-2)
        if part.shape[-3:-1] == counted.shape
        else part
        for part in state
    )
