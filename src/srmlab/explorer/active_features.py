"""The features of a dictionary in a trace: which are in use at every token, and what is known of those.

Axes:  P point of the dictionary   T token   S stream   K place, the strongest first   D stream dim
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.states import points_of
from srmlab.dictionaries import Features, Lexicon
from srmlab.models import LanguageModel

NAMED = 5  # tokens named that a feature raises


def feature_arrays(lexicon: Lexicon, cache: dict[str, Tensor]) -> dict[str, Tensor]:
    """The features in use and their activations, each [P, T, S, K], from the cached states of one prompt."""
    points = lexicon.dictionary.config.points
    used = [lexicon.in_use(cache[point][0]) for point in points]
    features, activation = (torch.stack(values) for values in zip(*used, strict=True))
    return {"features": features.int(), "feature_activation": activation.clamp_max(6e4).half()}


def described(lexicon: Lexicon, used: np.ndarray, model: LanguageModel) -> dict[str, Any]:
    """The dictionary for a trace's manifest. `about` has the features in use [P, T, S, K] under
    "STREAM.FEATURE"; `layers` says which layer's result is at each point; the
    post-steps belong to the last."""
    config, points = lexicon.dictionary.config, points_of(model)
    frequency = lexicon.features.frequency
    in_use = ((s, int(f)) for s in range(config.streams) for f in np.unique(used[:, :, s]) if f >= 0)
    return {
        "points": list(config.points),
        "layers": [min(points.index(point), model.depth - 1) for point in config.points],
        "features": config.features,
        "k": config.most,
        "about": {
            f"{s}.{f}": {"frequency": round(float(frequency[s, f]), 6), **_about(lexicon.features, s, f)}
            for s, f in in_use
        },
    }


def _about(found: Features, stream: int, feature: int) -> dict[str, Any]:
    """The tokens a feature raises, and the text around its strongest place."""
    tokens, activation = found.context[stream, feature, 0], found.activation[stream, feature, 0]
    there = (tokens >= 0) & (found.strength[stream, feature, 0] > 0)  # none if it never fired
    return {
        "raises": found.raised[stream, feature, :NAMED].tolist(),
        "example": tokens[there].tolist(),
        "peak": int(activation[there].argmax()) if there.any() else 0,
    }
