"""Activation patching: which part of the state carries the difference between two prompts.

A clean and a corrupt prompt of equal length are run; then the corrupt one is run many times, each time with
one part of its state replaced by the clean prompt's (one layer, stream and position: a cell of the grid). How
far that moves a metric of the prediction is the cell's effect: 1 if the whole difference is restored, 0 if
none of it.

    >>> import srmlab, torch
    >>> from srmlab.analysis import logit_difference
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> clean, corrupt = torch.arange(6)[None], torch.tensor([[0, 1, 9, 3, 4, 5]])
    >>> metric = logit_difference(torch.tensor([7]), torch.tensor([8]))
    >>> found = srmlab.patch_grid(model, clean, corrupt, metric, over=("layer", "position"))
    >>> found.share.shape                                        # layer, stream (all together), position
    (8, 1, 6)
    >>> bool((abs(found.share[:, 0, :2]) < 1e-3).all())          # before the prompts differ
    True

A metric is a function of the logits [pair, token, vocabulary] that returns one number per pair.

Attribution patching. To first order a patch moves the metric by gradient · (clean − corrupt state), and one
backward pass gives that for every cell at once: `approximate`, next to the exact grid, with the correlation
between the two. The gradient flows through every layer, including those trained without one.

Null. With two or more pairs the grid is also measured with the states of another pair's corrupt prompt,
`mismatched`: the effect of some other state there, one that does not carry what the clean prompt has.

Texts of unequal length are padded on the left (`tokenizer(texts)`), and positions then count from the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.bootstrap import correlation
from srmlab.analysis.capture import Done, counting
from srmlab.analysis.interventions import Hook, put_in
from srmlab.analysis.prompt_pairs import Metric, Pairs, Patched, Prompts, Side, measure
from srmlab.analysis.result import Array, Measured, Result, derived, plus_minus
from srmlab.errors import UserError
from srmlab.models import LanguageModel
from srmlab.models.forward import gradient_everywhere

Axis = Literal["layer", "stream", "position"]
GRID = "layer stream position"


@dataclass(frozen=True, kw_only=True, eq=False)
class PatchGrid(Patched, Result):
    """How far each patched place moves the metric; made by `patch_grid`."""

    kind: ClassVar[str] = "patch_grid"
    columns: ClassVar[tuple[str, ...]] = ("share", "change", "approximate", "mismatched")

    layers: tuple[str, ...]  # what the places along each axis are; one, "all", of what is patched together
    streams: tuple[str, ...]
    positions: tuple[str, ...]
    into: Side  # which of the two prompts is changed
    before: Annotated[Array, Measured("", "metric of the prompt that is changed")]
    goal: Annotated[Array, Measured("", "metric of the other prompt")]
    change: Annotated[Array, Measured(GRID, "metric, patched − before")]
    approximate: Annotated[Array, Measured(GRID, "metric, by the gradient; NaN: not asked for")]
    mismatched: Annotated[Array, Measured(GRID, "metric, by another such prompt's state; NaN: one pair")]

    @derived(GRID, "share of the difference")
    def share(self) -> Array:
        """The change over the difference of the two prompts: 1 is all of it."""
        return self.of_difference(self.change)

    @derived(GRID, "share of the difference")
    def null(self) -> Array:
        """The same with the state of another prompt of the kind that is changed."""
        return self.of_difference(self.mismatched)

    @derived("", "Pearson's r over cells")
    def correlation(self) -> float:
        """Of the gradient's approximation with the exact change."""
        return correlation(self.approximate, self.change)

    @derived("layer", "Pearson's r over cells")
    def correlation_by_layer(self) -> Array:
        """The same within a layer; after the last the output is near, and often linear."""
        return np.array([correlation(*both) for both in zip(self.approximate, self.change, strict=True)])

    def cell(self, at: tuple[int, int, int]) -> str:
        """A cell in words."""
        words, axes = ("", "stream ", "position "), (self.layers, self.streams, self.positions)
        found = zip(words, axes, at, strict=True)
        return ", ".join(f"{word}{names[i]}" for word, names, i in found if len(names) > 1) or "all"

    def headline(self) -> str:
        top = self.ranking[0]
        r = self.text("correlation")
        return f"{self.cell(top)} {self.text('share', '+.1%', top)}; gradient against exact: r = {r}"

    def summary(self) -> str:
        changed, other = self.into, self.other
        lines = [
            f"Patching the {changed} prompt with the {other} one's state ({self.pairs})",
            f"  metric: {changed} {self.text('before', '.4g')}, {other} {self.text('goal', '.4g')}",
        ]
        lines += self.strongest("+.1%", self.cell)
        by_layer = " ".join(plus_minus(r, form=".2f") for r in self.correlation_by_layer)
        r = f"{self.text('correlation')} over {self.change.size} cells"
        lines.append(f"  gradient against exact: r = {r}, by layer {by_layer}")
        return "\n".join(lines)


def patch_grid(
    model: LanguageModel,
    clean: Prompts,
    corrupt: Prompts,
    metric: Metric,
    over: Iterable[Axis] = ("layer", "stream", "position"),
    *,
    into: Side = "corrupt",
    attribution: bool = True,
    null: bool = True,
    labels: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PatchGrid:
    """The effect of the clean state in the corrupt prompt, for every cell.

    clean, corrupt: ids [pair, token], or what `tokenizer(texts)` gives; standard errors are over pairs.
    `over` names the axes of the grid; what is not named is patched all at once (and of all layers at once
    there is no attribution). `into="clean"` goes the other way: corrupt states into the clean prompt.
    `labels` name the positions. `progress` is called with how many cells are done, and of how many.
    """
    pairs = Pairs.of(model, clean, corrupt, into, metric)
    grid = Grid(pairs, over, labels)
    before, goal = pairs.ends()
    done = counting(progress, len(grid.cells) * (2 if null and pairs.count > 1 else 1))
    change, mismatched = pairs.with_null(
        model.points, null, lambda given, real: grid.measured(given, before, real, done)
    )
    by_pair = {"before": before, "goal": goal, "change": change, "mismatched": mismatched}
    by_pair["approximate"] = torch.full_like(change, torch.nan)
    if attribution and "layer" in grid.over:
        by_pair["approximate"] = grid.approximate(pairs.states(pairs.giving, model.points))
    names = dict(zip(("layers", "streams", "positions"), grid.names, strict=True))
    return pairs.result(by_pair, PatchGrid, into=into, **names)


class Grid:
    """The cells, and what a pass does at each."""

    def __init__(self, pairs: Pairs, over: Iterable[Axis], labels: Sequence[str] | None) -> None:
        self.model, self.pairs = pairs.model, pairs
        self.before = pairs.model.config.puzzle_positions  # positions that are not cells
        self.over = (over,) if isinstance(over, str) else tuple(over)
        known = get_args(Axis)
        if not self.over or len(set(self.over)) < len(self.over) or not set(self.over) <= set(known):
            raise UserError(f"over = {self.over}: name some of {', '.join(known)}, each once")
        if labels is not None and len(labels) != pairs.changed.shape[1]:
            raise UserError(f"{len(labels)} labels for {pairs.changed.shape[1]} positions: give one for each")
        positions = pairs.position_names if labels is None else tuple(labels)
        everything = tuple(point.name for point in self.model.points), self.model.streams, positions
        self.full = tuple(map(len, everything))
        self.names = tuple(
            names if axis in self.over else ("all",) for axis, names in zip(known, everything, strict=True)
        )
        self.shape = tuple(map(len, self.names))
        self.cells = list(product(*map(range, self.shape)))

    def measured(self, given: list[Tensor], before: Tensor, real: Tensor, done: Done) -> Tensor:
        """[pair, layer, stream, position] What each cell does to the metric; NaN at padding."""
        found: list[Tensor] = []
        for cells in self.pairs.batched(self.cells):
            hooks: list[Hook] = []
            for p, state in enumerate(given):
                hooks += self.hooks(p, state, cells, real)
            found.append(self.pairs.patched(hooks, len(cells)))
            done(len(cells))
        change = (torch.cat(found) - before).T.reshape(-1, *self.shape)
        return self.without_padding(change, real)

    def without_padding(self, change: Tensor, real: Tensor) -> Tensor:
        if "position" not in self.over:
            return change
        return change.masked_fill(~real.cpu()[:, None, None], torch.nan)

    def hooks(self, p: int, given: Tensor, cells: Sequence[tuple[int, ...]], real: Tensor) -> list[Hook]:
        """Hooks at a point for some cells, each of which reads all pairs; none if no cell is there. Where
        either side has padding, nothing is put in."""
        _, S, T = self.full
        where = torch.zeros(len(cells), self.before + T, S, dtype=torch.bool)
        for c, cell in enumerate(cells):
            axes = zip(get_args(Axis), cell, strict=True)
            layer, stream, position = (at if axis in self.over else slice(None) for axis, at in axes)
            if layer in (p, slice(None)):
                place = position if isinstance(position, slice) else self.before + position
                where[c, place, stream] = True
        if not bool(where.any()):
            return []
        every = where.to(given.device).repeat_interleave(self.pairs.count, 0)
        every = every & self.pairs.positions(real, len(cells))
        return put_in(self.model.points[p], given.repeat(len(cells), 1, 1, 1), every)

    def approximate(self, given: list[Tensor]) -> Tensor:
        """[pair, layer, stream, position] gradient · (given − own state), of all cells from one pass."""
        change = torch.stack(
            [
                (gradient.double() * (theirs - own).double()).sum(-1)
                for theirs, (own, gradient) in zip(given, gradients(self.pairs), strict=True)
            ],
            dim=1,
        ).mT  # [P, L, S, before + T]
        change = change * self.pairs.positions(self.pairs.real).mT[:, None]
        if "stream" not in self.over:
            change = change.sum(2, keepdim=True)
        together = "position" not in self.over
        change = change.sum(3, keepdim=True) if together else change[..., self.before :]
        return self.without_padding(change.cpu(), self.pairs.real)


def gradients(pairs: Pairs) -> list[tuple[Tensor, Tensor]]:
    """Of the prompts that are changed: the state [P, T, S, D] at every point, and the gradient to it."""
    model = pairs.model
    sites = [site for point in model.points for site in point.sites]

    def with_gradient(value: Tensor, _: object) -> Tensor:
        return value if value.requires_grad else value.detach().clone().requires_grad_()  # frozen weights

    was = model.training
    model.eval()
    try:
        with torch.enable_grad(), gradient_everywhere(), model.hooks([(model.site_names[0], with_gradient)]):
            logits, cache = model.run_with_cache(pairs.changed, sites, detach=False, **pairs.options())
            values = [cache[site] for site in sites]
            found = torch.autograd.grad(measure(pairs.metric, logits).sum(), values, allow_unused=True)
    finally:
        model.train(was)
    slopes = {
        site: torch.zeros_like(value) if slope is None else slope
        for site, value, slope in zip(sites, values, found, strict=True)
    }
    own = {site: value.detach() for site, value in cache.items()}
    return [(model.state_at(point, own), model.state_at(point, slopes)) for point in model.points]
