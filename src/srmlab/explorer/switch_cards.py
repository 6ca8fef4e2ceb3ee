"""What is known of one edge between streams, for its card on the page: whether it is a switch, which pairs of
features decide it, how well they tell when it is open beside what the token alone does, and where it is open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from srmlab.dictionaries import Lexicon
from srmlab.dictionaries.switches import Switches
from srmlab.errors import UserError
from srmlab.explorer.tracing import TextTokens, display_strings

RAISED = 3  # tokens that say what a feature is about


def switch_card(
    found: Switches, edge: Sequence[int], lexicon: Lexicon | None, tokenizer: TextTokens
) -> dict[str, Any]:
    """The card of an edge (layer, head, target, source). Features have words if the dictionary is the one
    that the switches were found with."""
    place = tuple(edge)
    if not all(0 <= at < size for at, size in zip(place, found.weight.shape, strict=True)):
        raise UserError(f"no edge {place}: there are {found.weight.shape} (layer, head, target, source)")
    i = found.edges.index(place) if place in found.edges else None
    known = lexicon if lexicon is not None and lexicon.dictionary.mark == found.dictionary else None
    return {
        "edge": list(place),
        "weight": float(found.weight[place]),
        "deviation": float(found.deviation[place]),
        "bar": found.bar,
        "strong": bool(found.weight[place] >= 1 / found.weight.shape[-1]),
        "evidence": f"{found.evidence.tokens:,} tokens",
        "switch": None if i is None else _switch(found, i, known, tokenizer),
    }


def _switch(found: Switches, i: int, lexicon: Lexicon | None, tokenizer: TextTokens) -> dict[str, Any]:
    _, _, target, source = found.edges[i]
    features = found.predictors.index("features")
    decider, number, sign = found.deciding[i]

    def feature(stream: int, one: int) -> dict[str, Any]:
        tokens = [] if lexicon is None or one < 0 else lexicon.features.raised[stream, one, :RAISED].tolist()
        return {
            "stream": stream,
            "feature": None if one < 0 else one,  # None: the mean state
            "raises": display_strings(tokenizer, tokens),
        }

    return {
        "open": float(found.open[i]),
        "pairs": [
            {
                "target": feature(target, a),
                "source": feature(source, b),
                "opens": sign > 0,
                "share": float(share),
            }
            for (a, b, sign), share in zip(found.pairs[i], found.shares[i], strict=True)
        ],
        "deciding": {**feature(decider, number), "opens": sign > 0},
        "auc": [
            {"name": name, "value": float(value), "error": float(error)}
            for name, value, error in zip(found.predictors, found.auc[i], found.auc_error[i], strict=True)
        ],
        "by_pairs": [
            {"pairs": int(size), "auc": float(value)}
            for size, value in zip(found.sizes, found.by_pairs[i], strict=True)
        ],
        "gain": float(found.gain[i, features]),
        "surely": bool(found.gain_low[i, features] > 0),
        "flipped": {
            name: None if np.isnan(share) else float(share)
            for name, share in zip(found.held, found.flipped[i], strict=True)
        },
        "examples": [
            {"weight": weight, "before": before, "token": token, "after": after}
            for weight, before, token, after in found.examples[i]
        ],
    }
