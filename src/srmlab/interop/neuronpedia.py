"""Attribution graphs in Neuronpedia's JSON: metadata, qParams, nodes and links, as circuit-tracer has them.

A "layer" is a call of a step function, in the order of the computation (`0.A`, `0.B` …); a feature's number
is stream · features + feature. What an SRM has besides (level, step, stream, its effect and examples) is in
each node under `srmlab`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from srmlab.dictionaries.circuit import Graph
from srmlab.dictionaries.circuit_checks import TARGET, Pruned
from srmlab.dictionaries.features import Features

EXAMPLES = 3  # of each feature


def document(
    graph: Graph,
    kept: Pruned,
    decode: Callable[[int], str],
    features: Mapping[str, Features] | None = None,
    probability: float = 0.0,
    slug: str = "circuit",
    scan: str = "srmlab",
    extra: Mapping[str, Any] | None = None,
    actual: Mapping[int, float] | None = None,
) -> dict[str, Any]:
    """The graph as a JSON document. `features` has what is known of the features, by transcoder; `actual`
    the real change of the target when a node is cut.
    """
    from srmlab import __version__

    influence, effect = graph.influence, graph.effect
    nodes = [
        node(graph, int(n), float(influence[n]), float(effect[n]), decode, features or {}) for n in kept.nodes
    ]
    for n, one in zip(kept.nodes, nodes, strict=True):
        if actual and int(n) in actual:
            one["srmlab"]["actual"] = actual[int(n)]
    ids = {int(n): one["node_id"] for n, one in zip(kept.nodes, nodes, strict=True)}
    goal = target_node(graph, decode, probability)
    ids[TARGET] = goal["node_id"]
    return {
        "metadata": {
            "slug": slug,
            "scan": scan,
            "transcoder_list": [],
            "prompt_tokens": [decode(token) for token in graph.tokens],
            "prompt": "".join(decode(token) for token in graph.tokens),
            "node_threshold": kept.node_share,
            "schema_version": 1,
            "info": {"generator": {"name": "srmlab", "version": __version__}},
            "srmlab": {
                "calls": list(graph.calls),
                "levels": list(graph.levels),
                "streams": graph.streams,
                "value": graph.value,
                "replacement": graph.replacement,
                "completeness": graph.completeness,
                **(extra or {}),
            },
        },
        "qParams": {"pinnedIds": [], "supernodes": [], "linkType": "both", "clickedId": "", "sg_pos": ""},
        "nodes": [*nodes, goal],
        "links": [
            {"source": ids[int(s)], "target": ids[int(t)], "weight": float(w)}
            for s, t, w in zip(kept.source, kept.target, kept.weight, strict=True)
        ],
    }


def node(
    graph: Graph,
    n: int,
    influence: float,
    effect: float,
    decode: Callable[[int], str],
    features: Mapping[str, Any],
) -> dict[str, Any]:
    a = graph.active
    shared = {
        "influence": influence,
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "token_prob": 0.0,
        "is_target_logit": False,
    }
    if n < len(a):
        return shared | feature_node(graph, n, effect, decode, features)
    rest = n - len(a)
    if rest < graph.errors:
        place, rest = divmod(rest, len(graph.tokens) * graph.streams)
        token, stream = divmod(rest, graph.streams)
        level = graph.levels[place] if place < len(graph.levels) else None
        return shared | {
            "node_id": f"0_e{place}s{stream}_{token}",
            "jsNodeId": f"{place}s{stream}_{token}-0",
            "feature": -1,
            "layer": str(place),
            "ctx_idx": token,
            "feature_type": "mlp reconstruction error",
            "activation": None,
            "clerp": f"error of {graph.places[place]} S{stream}",
            "srmlab": {"level": level, "stream": stream, "effect": effect},
        }
    token = rest - graph.errors
    return shared | {
        "node_id": f"E_{graph.tokens[token]}_{token}",
        "jsNodeId": f"E_{graph.tokens[token]}-{token}",
        "feature": token,
        "layer": "E",
        "ctx_idx": token,
        "feature_type": "embedding",
        "activation": None,
        "clerp": decode(graph.tokens[token]),
        "srmlab": {"effect": effect},
    }


def feature_node(
    graph: Graph, n: int, effect: float, decode: Callable[[int], str], features: Mapping[str, Any]
) -> dict[str, Any]:
    a = graph.active
    call, token, stream, feature = (int(part[n]) for part in (a.call, a.token, a.stream, a.feature))
    number = stream * graph.features + feature
    level, step = graph.calls[call].split(".")
    about = described(features.get(graph.members[call]), stream, feature, decode)
    return {
        "node_id": f"{call}_{number}_{token}",
        "jsNodeId": f"{call}_{number}-0",
        "feature": number,
        "layer": str(call),
        "ctx_idx": token,
        "feature_type": "cross layer transcoder",
        "activation": float(a.activation[n]),
        "clerp": about.pop("label", f"{graph.calls[call]} S{stream} #{feature}"),
        "srmlab": {"level": int(level), "step": step, "stream": stream, "feature": feature, "effect": effect}
        | about,
    }


def target_node(graph: Graph, decode: Callable[[int], str], probability: float) -> dict[str, Any]:
    target = graph.target
    layer = str(len(graph.calls) + 1)
    if target.feature is not None:
        call, stream, feature = target.feature
        number, words = stream * graph.features + feature, f"{graph.calls[call]} S{stream} #{feature}"
    else:
        assert target.token is not None
        number = target.token
        against = "" if target.against is None else f" against {decode(target.against)!r}"
        words = f"Output {decode(target.token)!r}{against} (p={probability:.3f})"
    return {
        "node_id": f"{layer}_{number}_{target.position}",
        "jsNodeId": f"L_{number}-{target.position}",
        "feature": number,
        "layer": layer,
        "ctx_idx": target.position,
        "feature_type": "logit",
        "token_prob": probability,
        "is_target_logit": True,
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "clerp": words,
        "influence": 1.0,
        "activation": graph.value,
        "srmlab": {"effect": graph.value},
    }


def described(
    found: Features | None, stream: int, feature: int, decode: Callable[[int], str]
) -> dict[str, Any]:
    """A label, and the places where a feature is strongest."""
    if found is None or found.strength[stream, feature, 0] <= 0:
        return {}
    raised = [decode(int(token)) for token in found.raised[stream, feature, :3]]
    shown = [
        e for e in range(EXAMPLES) if e < found.strength.shape[2] and found.strength[stream, feature, e] > 0
    ]
    return {
        "label": f"#{feature}: " + found.quote(stream, feature, 0, decode)[-40:],
        "raises": raised,
        "frequency": float(found.frequency[stream, feature]),
        "examples": [found.quote(stream, feature, e, decode) for e in shown],
    }
