"""Small models for the tests of this folder."""

from __future__ import annotations

import torch

import srmlab
from srmlab.models import SRM
from subjects import SMALL


def build(**changes) -> SRM:
    model = srmlab.build(SMALL.replace(**changes))
    assert isinstance(model, SRM)
    return model


def force_pattern(model, wanted: torch.Tensor) -> None:
    """Make every head of every layer use the pattern `wanted` [target, source], by hooks that stay."""
    for l in range(model.config.depth):
        site = model.sites[f"layers.{l}.connection.pattern"]
        site.register_forward_hook(lambda _m, _i, out: wanted.expand_as(out).contiguous())
