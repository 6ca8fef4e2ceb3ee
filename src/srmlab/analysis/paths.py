"""Path patching between streams: how much the message from one stream to another, in one layer, matters.

A path (layer, source → target) is a part of the connection: what the target stream receives there depends
on the source stream's state before the layer. It is patched in two steps:

1. The corrupt prompt is run with the source stream, before the layer, patched from the clean prompt, and what
   the target then receives is recorded.
2. The corrupt prompt is run with that one message patched in. Everything else is frozen: the source itself,
   the messages to other streams, and those of other layers, except for what follows from the message.

The effect is measured as in `patching`: 1 if the metric's whole difference is restored.

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano").replace(depth=2, gradient_depth=1))
    >>> clean, corrupt = torch.arange(6)[None], torch.tensor([[0, 1, 9, 3, 4, 5]])
    >>> metric = srmlab.analysis.logit_difference(torch.tensor([7]), torch.tensor([8]))
    >>> found = srmlab.analysis.path_grid(model, clean, corrupt, metric)
    >>> found.share.shape                                        # layer, target, source
    (2, 8, 8)
    >>> bool((abs(found.share[0]) < 1e-3).all())                 # the first layer reads z_0, not the prompt
    True

It is defined for models whose streams exchange messages at a site of their own (`model.exchanges`). Before
the first layer of hyper-connections all streams are one, the embedding: its paths are NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from srmlab.analysis.capture import Done, counting
from srmlab.analysis.interventions import put_in
from srmlab.analysis.prompt_pairs import Metric, Pairs, Patched, Prompts, Side
from srmlab.analysis.result import Array, Measured, Result, derived
from srmlab.errors import UserError
from srmlab.models import LanguageModel, Point

PATHS = "layer target source"


@dataclass(frozen=True, kw_only=True, eq=False)
class PathGrid(Patched, Result):
    """How far each message between streams moves the metric; made by `path_grid`."""

    kind: ClassVar[str] = "path_grid"
    columns: ClassVar[tuple[str, ...]] = ("share", "change", "mismatched")

    streams: tuple[str, ...]
    into: Side  # which of the two prompts is changed
    before: Annotated[Array, Measured("", "metric of the prompt that is changed")]
    goal: Annotated[Array, Measured("", "metric of the other prompt")]
    change: Annotated[Array, Measured(PATHS, "metric, patched − before; NaN: all streams are one")]
    mismatched: Annotated[Array, Measured(PATHS, "metric, by another such prompt's state; NaN: one pair")]

    @derived(PATHS, "share of the difference")
    def share(self) -> Array:
        """The change over the difference of the two prompts: 1 is all of it."""
        return self.of_difference(self.change)

    @derived(PATHS, "share of the difference")
    def null(self) -> Array:
        """The same with the state of another prompt of the kind that is changed."""
        return self.of_difference(self.mismatched)

    def path(self, at: tuple[int, int, int]) -> str:
        layer, target, source = at
        return f"layer {layer}, {self.streams[source]} → {self.streams[target]}"

    def headline(self) -> str:
        return "; ".join(f"{self.path(at)} {self.text('share', '+.1%', at)}" for at in self.ranking[:3])

    def summary(self) -> str:
        title = f"Paths between streams, patched in the {self.into} prompt ({self.pairs})"
        return "\n".join([title, *self.strongest("+.2%", self.path)])


def path_grid(
    model: LanguageModel,
    clean: Prompts,
    corrupt: Prompts,
    metric: Metric,
    *,
    into: Side = "corrupt",
    null: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> PathGrid:
    """The effect of every path (layer, source stream → target stream), at all positions together."""
    if not model.exchanges:
        raise UserError(
            f"paths between streams need a model whose streams exchange messages; "
            f"{model.config.architecture} has none"
        )
    pairs = Pairs.of(model, clean, corrupt, into, metric)
    start, goal = pairs.ends()
    entries = [_entry(model, layer) for layer in range(len(model.exchanges))]
    twice = null and pairs.count > 1
    done = counting(progress, (2 if twice else 1) * len(entries) * len(model.streams) ** 2)
    found = pairs.with_null(entries, null, lambda before, real: _measured(pairs, before, real, done))
    change, mismatched = (values - start[:, None, None, None] for values in found)
    by_pair = {"before": start, "goal": goal, "change": change, "mismatched": mismatched}
    return pairs.result(by_pair, PathGrid, streams=model.streams, into=into)


def _entry(model: LanguageModel, layer: int) -> Point:
    """Where the state that a layer's connection reads is found; before the first, the token input."""
    return model.points[layer - 1] if layer else Point(model.site_names[0])


def _measured(pairs: Pairs, before: list[Tensor], real: Tensor, done: Done) -> Tensor:
    """[pair, layer, target, source] The metric of every path."""
    model, S = pairs.model, len(pairs.model.streams)
    found = torch.empty(len(model.exchanges), S, S, pairs.count, dtype=torch.float64)
    for layer, exchange in enumerate(model.exchanges):
        if before[layer].shape[2] < S:
            found[layer] = torch.nan
            done(S * S)
            continue
        messages = _messages(pairs, layer, before[layer], real)
        site = Point(exchange.message)
        for paths in pairs.batched(list(product(range(S), range(S)))):
            targets, sources = zip(*paths, strict=True)
            given = torch.cat([messages[source] for source in sources])
            where = _streams(targets, S, pairs, given.device)
            values = pairs.patched(put_in(site, given, where), len(paths))
            found[layer, list(targets), list(sources)] = values
            done(len(paths))
    return found.permute(3, 0, 1, 2)


def _messages(pairs: Pairs, layer: int, before: Tensor, real: Tensor) -> list[Tensor]:
    """For every source: the messages [P, T, S, D] of a layer with that stream replaced before it, where there
    is no padding on either side."""
    model, S, entry = pairs.model, len(pairs.model.streams), _entry(pairs.model, layer)
    kept: list[Tensor] = []
    for sources in pairs.batched(range(S)):
        where = _streams(sources, S, pairs, before.device) & pairs.positions(real, len(sources))
        hooks = put_in(entry, before.repeat(len(sources), 1, 1, 1), where)
        message = model.exchanges[layer].message
        with model.evaluating(), model.hooks(hooks):
            tokens, options = pairs.changed.repeat(len(sources), 1), pairs.options(len(sources))
            _, cache = model.run_with_cache(tokens, message, **options)
        kept += cache[message].unflatten(0, (len(sources), pairs.count)).unbind(0)
    return kept


def _streams(chosen, count: int, pairs: Pairs, device: torch.device) -> Tensor:
    """[cell · pair, positions, S] One stream of every cell, at all of them."""
    one = torch.arange(count, device=device) == torch.tensor(list(chosen), device=device)[:, None]
    one = one.repeat_interleave(pairs.count, 0)
    positions = pairs.model.config.puzzle_positions + pairs.changed.shape[1]
    return one[:, None].expand(-1, positions, -1)
