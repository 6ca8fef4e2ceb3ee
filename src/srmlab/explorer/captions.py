"""One sentence under each figure, about this trace and computed from it. A caption never says what a figure
could show, only what it does.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from srmlab.analysis.drift import CLASSES, convergence, convergence_class
from srmlab.analysis.routing import outgoing, self_routing
from srmlab.explorer.trace import Trace

THRESHOLD = 0.10


def captions(trace: Trace) -> dict[str, str]:
    """View id → sentence."""
    sentences = {
        "tokens": _tokens(trace),
        "wall": _wall(trace),
        "routing": _routing(trace),
        "flow": _flow(trace),
        "ranked": _ranked(trace),
        "lens": _lens(trace),
        "stepper": _stepper(trace),
        "align": _align(trace),
        "card": _card(trace),
    }
    if trace.manifest["axes"]["transition"]:
        sentences["drift"] = _drift(trace)
    if "features" in trace.arrays:
        sentences["features"] = _features(trace)
    return sentences


def comparison(one: Trace, other: Trace) -> str:
    """The sentence under two traces side by side, A and B."""
    if one is other:
        return "A and B are the same trace."
    a, b = one.weights.mean(1), other.weights.mean(1)  # [layer, head, target, source]
    if a.shape != b.shape:
        sizes = [trace.shape[:3] for trace in (a, b)]
        return "A has {} layers, {} heads and {} streams, B {}, {} and {}.".format(*sizes[0], *sizes[1])
    apart = np.abs(b - a)
    layer, head, target, source = at = np.unravel_index(int(apart.argmax()), apart.shape)
    cosines = [trace["update_cosine"].astype(float).mean() for trace in (one, other)]
    return (
        f"Mean routing differs by {apart.mean():.3f} an edge, most at S{target} ← S{source} in layer "
        f"{layer}, head {head}, {a[at]:.2f} in A and {b[at]:.2f} in B; update and step output are at cosine "
        f"{cosines[0]:+.3f} in A and {cosines[1]:+.3f} in B."
    )


def _tokens(trace: Trace) -> str:
    surprisal = trace["surprisal"].astype(float)
    if len(surprisal) < 2:
        return "A prompt of one token: nothing before it, so nothing to be surprised at."
    at = int(np.nanargmax(surprisal))
    return (
        f"The {len(surprisal) - 1} predicted tokens cost {np.nanmean(surprisal):.2f} bits each on average; "
        f"“{_word(trace, at)}” at {at} surprised most, {surprisal[at]:.1f} bits."
    )


def frequency(trace: Trace) -> np.ndarray:
    """[layer, head, target, source]: share of tokens with weight > 0.10."""
    return (trace["routing"] > int(THRESHOLD * 255)).mean(1)


def _wall(trace: Trace) -> str:
    maps = frequency(trace)
    out = outgoing(maps)
    best, worst = int(out.argmax()), int(out.argmin())
    own = self_routing(maps).mean()
    return (
        f"S{best} is read most, at {out[best]:.0%} of the edges it could have, S{worst} least "
        f"({out[worst]:.0%}); "
        f"streams read themselves at {own:.0%}, and {maps.mean():.0%} of all edges exceed {THRESHOLD:.2f}."
    )


def _routing(trace: Trace) -> str:
    weights = trace.weights.mean(1)  # [layer, head, target, source]
    layer, head, target, source = np.unravel_index(int(weights.argmax()), weights.shape)
    times = weights.max() * weights.shape[-1]
    return (
        f"The strongest edge on average is S{target} ← S{source} in layer {layer}, head {head}: "
        f"{weights.max():.2f}, {times:.1f} times an even share."
    )


def _flow(trace: Trace) -> str:
    used = (frequency(trace) > 0.5).sum((1, 2, 3))
    return f"Edges in use at most tokens, by layer: {' '.join(map(str, used.tolist()))}."


def _ranked(trace: Trace) -> str:
    kl = trace["ablation_kl"].astype(float).mean(0)
    order = np.argsort(-kl)
    share = np.cumsum(kl[order]) / max(kl.sum(), 1e-12)
    half = int((share < 0.5).sum()) + 1
    ratio = kl[order[0]] / max(kl[order[-1]], 1e-9)
    return (
        f"Ablating S{order[0]} costs most, {kl[order[0]]:.3f} bits a token, S{order[-1]} least, "
        f"{kl[order[-1]]:.3f} "
        f"({ratio:.1f} times less); {half} of {len(kl)} streams make half of the sum."
    )


def _lens(trace: Trace) -> str:
    axes = trace.manifest["axes"]
    steps = axes["tick"] // axes["layer"]
    ids = trace["lens_ids"][steps - 1 : axes["tick"] : steps, :, 0]  # [layer, token]
    settled = _first_settled(ids)
    right = trace["lens_target"][steps - 1 : axes["tick"] : steps].astype(float).mean(1)
    return (
        f"The top token no longer changes after layer {np.median(settled):.0f} at half of the tokens; "
        f"the right token's "
        f"log-probability goes from {right[0]:.2f} after layer 0 to {right[-1]:.2f} nats after layer "
        f"{axes['layer'] - 1}."
    )


def _first_settled(ids: np.ndarray) -> np.ndarray:
    """[token]: the first layer from which the top token stays what it is at the end."""
    same = (ids == ids[-1]).astype(int)
    tail = np.minimum.accumulate(same[::-1], axis=0)[::-1]
    return len(ids) - tail.sum(0)


def _stepper(trace: Trace) -> str:
    change = trace["step_change"].astype(float).mean((1, 2))
    letters = [letter for layer in trace.manifest["order"] for letter in layer]
    by_letter = {
        letter: np.mean([c for c, l in zip(change, letters, strict=True) if l == letter])
        for letter in trace.manifest["letters"]
    }
    most = max(by_letter, key=lambda letter: by_letter[letter])
    listed = ", ".join(f"{letter} {value:.2f}" for letter, value in by_letter.items())
    return (
        f"Step function {most} moves the state furthest relative to its length ({listed}); the first "
        f"step of the pass moves it by {change[0]:.2f}, the last by {change[-1]:.2f}."
    )


def _align(trace: Trace) -> str:
    connection = trace["connection_cosine"].astype(float).mean(1)
    update = trace["update_cosine"].astype(float).mean(1)
    negative = (connection < 0).mean()
    return (
        f"Connection and token input are at cosine {connection.mean():+.3f} on average, {negative:.0%} "
        f"of the layer–stream pairs negative; update and step output at {update.mean():+.3f}, "
        f"from {update.min():+.2f} to {update.max():+.2f}."
    )


def _drift(trace: Trace) -> str:
    drift = trace["drift_cosine"].astype(float).mean(2)  # [transition, group, stream]
    if len(drift) == 0:
        return "One layer: there are no transitions."
    settled = [convergence(curve) for curve in drift.reshape(len(drift), -1).T]
    measured = [at for at in settled if not np.isnan(at)]  # a random order may leave gaps
    classes = Counter(CLASSES[convergence_class(at, len(drift))] for at in measured)
    listed = ", ".join(f"{classes[name]} {name}" for name in CLASSES)
    first, last = np.nanmean(drift[0]), np.nanmean(drift[-1])
    return (
        f"Mean cosine distance {'falls' if last < first else 'rises'} from {first:.3f} to {last:.3f} over "
        f"the depth; of {sum(classes.values())} group–stream pairs, {listed}."
    )


def _card(trace: Trace) -> str:
    norms = trace["write_norm"][-1].astype(float)  # [token, stream]
    token, stream = np.unravel_index(int(norms.argmax()), norms.shape)
    return (
        f"The strongest single write is S{stream}'s at “{_word(trace, int(token))}” ({token}): "
        f"{norms.max():.1f} beyond its mean, against {np.median(norms):.1f} in the middle."
    )


def _features(trace: Trace) -> str:
    ids, activation = trace["features"][-1], trace["feature_activation"][-1].astype(float)
    token, stream, place = np.unravel_index(int(activation.argmax()), activation.shape)
    if activation.max() <= 0:
        return f"No feature is in use at any of the {len(ids)} tokens."
    used = sum(len(np.unique(ids[:, s][ids[:, s] >= 0])) for s in range(ids.shape[1]))
    point = trace.manifest["dictionary"]["points"][-1]
    total = ids.shape[1] * trace.manifest["dictionary"]["features"]
    return (
        f"{used:,} of {total:,} features are in use in this prompt at {point}; the strongest is "
        f"feature {ids[token, stream, place]} of S{stream}, {activation.max():.1f} at "
        f"“{_word(trace, int(token))}” ({token})."
    )


def _word(trace: Trace, token: int) -> str:
    return trace.token_strings[token].strip() or trace.token_strings[token].replace(" ", "·").replace(
        "\n", "⏎"
    )
