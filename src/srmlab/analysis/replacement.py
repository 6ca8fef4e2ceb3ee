"""Replacement: what takes the place of a stream's state wherever it is removed.

mean       its mean over the evaluation tokens
zero       nothing
resample   its state at another token of the batch, drawn at random

>>> import torch
>>> z = torch.arange(6.0).view(1, 2, 3, 1)                  # stream, batch, token, dim
>>> replacement(z, "mean", mean=torch.tensor([[7.0]])).unique().item()
7.0
>>> bool((replacement(z, "resample") != z).all())
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Literal, get_args

import torch
from torch import Tensor

from srmlab.analysis.states import StateMeans, points_of
from srmlab.errors import UserError, check_choice
from srmlab.models import HookPoint, LanguageModel

By = Literal["mean", "zero", "resample"]
Layers = Literal["last", "every"] | Iterable[int]
Replace = Callable[[Tensor, str], Tensor]  # states [S, B, T, D] at a point → what comes in their place


def replacement(z: Tensor, by: By, mean: Tensor | None = None, seed: int = 0) -> Tensor:
    """What takes the place of the states z [S, B, T, D]; `mean` [S, D] is needed by "mean"."""
    if by == "zero":
        return torch.zeros_like(z)
    if by == "mean":
        assert mean is not None
        return mean[:, None, None, :].expand_as(z)
    other = other_tokens(z.shape[1] * z.shape[2], seed).to(z.device)
    return z.flatten(1, 2)[:, other].view_as(z)


def replacer(by: By, means: StateMeans | None, seed: int = 0) -> Replace:
    """The replacement of states at any point."""

    def replace(z: Tensor, point: str) -> Tensor:
        mean = means.at(point, z.device) if by == "mean" and means is not None else None
        return replacement(z, by, mean, seed)

    return replace


def replacing(streams: Iterable[int], replace: Replace) -> Callable[[Tensor, HookPoint], Tensor]:
    """A hook that puts in some streams what `replace` makes of the states at its site."""
    chosen = list(streams)

    def hook(value: Tensor, site: HookPoint) -> Tensor:
        replaced = replace(value.permute(2, 0, 1, 3), site.name)[chosen].permute(1, 2, 0, 3)
        value = value.clone()
        value[:, :, chosen] = replaced.to(value.dtype)
        return value

    return hook


def points_at(model: LanguageModel, layers: Layers) -> tuple[str, ...]:
    """The sites of the states meant by "last", "every" or some layers."""
    points = points_of(model)
    if isinstance(layers, str) and layers in ("last", "every"):
        return points[-1:] if layers == "last" else points
    chosen = sorted(set(layers)) if isinstance(layers, Iterable) and not isinstance(layers, str) else []
    if not chosen or not all(isinstance(l, Integral) and 0 <= l < model.depth for l in chosen):
        last = model.depth - 1
        raise UserError(f'layers = {layers!r}: "last", "every", or a list of layers of 0 to {last}')
    return tuple(points[l] for l in chosen)


def other_tokens(count: int, seed: int = 0) -> Tensor:
    """For every token another one, by a fixed draw: token i of a random cycle gets its successor."""
    if count < 2:
        raise UserError('by = "resample" needs at least two tokens in a batch: give longer or more windows')
    cycle = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    other = torch.empty_like(cycle)
    other[cycle] = cycle.roll(-1)
    return other


def check_by(by: str) -> None:
    check_choice("by", by, get_args(By))
