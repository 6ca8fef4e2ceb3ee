"""Holding features: what would the model say if a feature were silent, or always there?

A feature held at a value moves its stream's state along the feature's direction, by the value less its
activation, at every point the dictionary was learned from; what the dictionary does not explain stays as it
is. Held at 0 a feature is silent; where it is not in use, nothing changes.

    >>> import srmlab, srmlab.dictionaries, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano")).eval()
    >>> tokens = torch.arange(4 * 32).view(4, 32)
    >>> dictionary = srmlab.dictionaries.learn(model, lambda step: tokens + step, steps=3, features=64, k=4)
    >>> hooks = srmlab.dictionaries.hold_features(dictionary, [(3, 17, 0.0)])         # stream, feature, value
    >>> logits = model.run_with_hooks(tokens, fwd_hooks=hooks)
    >>> with model.hooks(hooks):
    ...     written = srmlab.generate(model, tokens[:1], max_new_tokens=4)
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from srmlab.analysis.ablation import replacing
from srmlab.analysis.capture import stream_major
from srmlab.analysis.interventions import Hook
from srmlab.dictionaries.dictionary import Dictionary
from srmlab.errors import UserError

Held = tuple[int, int, float]  # stream, feature, value


def hold_features(dictionary: Dictionary, held: Iterable[Held]) -> list[Hook]:
    """Hooks that hold features at values."""
    held = list(held)
    config = dictionary.config
    for stream, feature, value in held:
        for what, at, size in (("stream", stream, config.streams), ("feature", feature, config.features)):
            if at not in range(size):
                raise UserError(f"hold {what} {at}: give one of 0 to {size - 1}")
        if not math.isfinite(value):
            raise UserError(f"hold feature {feature} at {value}: give a number")
    directions = dictionary.directions.detach()

    def moved(states: Tensor, _: str) -> Tensor:
        codes = stream_major(dictionary.encode(states.movedim(0, -2)).detach()).flatten(1, 2)  # [S, B·T, F]
        wanted = codes.clone()
        for stream, feature, value in held:
            wanted[stream, :, feature] = value
        return states + torch.bmm(wanted - codes, directions).view_as(states)

    streams = sorted({stream for stream, _, _ in held})
    return [(point, replacing(streams, moved)) for point in config.points] if held else []
