"""Patching as slowly and plainly as it can be said: one pair, one cell, one pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from srmlab.models import LanguageModel, Point


@torch.no_grad()
def state(model: LanguageModel, tokens: Tensor, point: Point) -> Tensor:
    """[T, S, D] of one prompt [T]."""
    _, cache = model.run_with_cache(tokens[None], point.sites)
    found = [cache[site][0] for site in point.sites]
    return found[0] if found[0].ndim == 3 else torch.stack(found, dim=1)


@torch.no_grad()
def put(model: LanguageModel, tokens: Tensor, point: Point, wanted: dict, keep: str | None = None) -> Tensor:
    """One prompt [T] read with `wanted` {(position, stream): [D]} in the state at a point: its logits [T, V],
    or a site's value."""

    def hook(value: Tensor, site) -> Tensor:
        value = value.clone()
        for (position, stream), vector in wanted.items():
            if value.ndim == 4:
                value[0, position, stream] = vector
            elif point.sites.index(site.name) == stream:
                value[0, position] = vector
        return value

    with model.hooks([(point.sites, hook)]):
        logits, cache = model.run_with_cache(tokens[None], [] if keep is None else keep)
    return logits[0] if keep is None else cache[keep][0]


def cell(
    model: LanguageModel,
    changed: Tensor,
    giving: Tensor,
    metric: Callable[[Tensor], Tensor],
    layer: int,
    streams: list[int],
    positions: list[int],
) -> float:
    """The metric of one prompt, some streams of some positions after one layer taken from the other."""
    point = model.points[layer]
    theirs = state(model, giving, point)
    wanted = {(p, s): theirs[p, s] for p in positions for s in streams}
    return float(metric(put(model, changed, point, wanted)[None]))


def path(
    model: LanguageModel,
    changed: Tensor,
    giving: Tensor,
    metric: Callable[[Tensor], Tensor],
    layer: int,
    target: int,
    source: int,
) -> float:
    """The metric of one prompt in which `target` is told, in one layer, what it would be if `source` came
    from the other prompt."""
    first = model.site_names[0]
    entry = model.points[layer - 1] if layer else Point(first, (first,))
    site = model.exchanges[layer].message
    other = state(model, giving, entry)
    tokens = range(len(changed))
    told = put(model, changed, entry, {(t, source): other[t, source] for t in tokens}, keep=site)
    given = {(t, target): told[t, target] for t in tokens}
    return float(metric(put(model, changed, Point(site, (site,)), given)[None]))
