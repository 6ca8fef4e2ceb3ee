"""What the page shows of a whole prompt: hub scores at every threshold, and when drift converges.

The formulas are those of srmlab.analysis; the page is given their numbers and only draws.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from srmlab.analysis.drift import convergences
from srmlab.analysis.routing import incoming, outgoing, self_routing

LEVELS = 256  # of a routing weight: level = weight × 255


def measures(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a trace that are worked out of its others."""
    found = {}
    if "routing" in arrays:
        frequency = frequencies(arrays["routing"])[:, None, None]  # [level, 1, 1, target, source]
        scores = {"hub_score": outgoing, "incoming": incoming, "self_routing": self_routing}
        found = {name: np.stack([score(f) for f in frequency]) for name, score in scores.items()}
    for metric in ("cosine", "kl") if "drift_kl" in arrays else ():
        drift = arrays[f"drift_{metric}"].astype(float).mean(2)  # [transition, group, stream]
        found[f"convergence_{metric}"] = np.stack([convergences(curves) for curves in drift.swapaxes(0, 1)])
    return {name: values.astype(np.float32) for name, values in found.items()}


def frequencies(routing: np.ndarray) -> np.ndarray:
    """[level, target, source] The share of layers, tokens and heads at which a weight [layer, token, head,
    target, source] exceeds each of the levels."""
    S = routing.shape[-1]
    counts = np.zeros(S * S * LEVELS, dtype=np.int64)
    for layer in routing:
        place = np.arange(S * S) * LEVELS + layer.reshape(-1, S * S)
        counts += np.bincount(place.ravel(), minlength=len(counts))
    each = counts.reshape(S * S, LEVELS)
    above = each.sum(1, keepdims=True) - each.cumsum(1)
    return (above / each.sum(1, keepdims=True)).T.reshape(LEVELS, S, S)
