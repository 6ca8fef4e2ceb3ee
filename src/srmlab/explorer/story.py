"""What the report says first: a few findings as sentences, each with its figure, its null and how sure it is.

Every sentence is computed from a result of `srmlab analyze`, and its null from the same analysis of untrained
twins: a statistic that they have too is called that, however striking it looks.

    story(results, twins)        at most five findings, from what has been measured
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from srmlab import analysis
from srmlab.analysis.ablation import Ablation
from srmlab.analysis.depth import Depth
from srmlab.analysis.drift import Drift
from srmlab.analysis.effective_sources import EffectiveSources
from srmlab.analysis.null import Beside, strongest
from srmlab.analysis.readout import BITS
from srmlab.analysis.result import Result
from srmlab.analysis.routing import Routing
from srmlab.analysis.stream_similarity import StreamSimilarity
from srmlab.errors import UserError

FINDINGS = 5
CLOSE = 0.02  # nats: a loss this near to the last counts as reached

Results = Mapping[str, Result]
Twins = Mapping[str, Sequence[Result]]


@dataclass(frozen=True)
class Finding:
    text: str
    kind: str  # the analysis whose figure shows it
    evidence: str
    null: Beside | None = None

    @property
    def sure(self) -> str:
        """How far to trust it."""
        if self.null is None or not self.null.twins:
            return "Not compared with untrained twins: `srmlab analyze RUN --null 3` does that."
        verdict = (
            "untrained weights do not give it"
            if self.null.beyond
            else "untrained weights give it too"
            if len(self.null.twins) > 1
            else "and one twin is too few to say more"
        )
        return f"Null: {self.null}; {verdict}."


def story(results: Results, twins: Twins) -> list[Finding]:
    found = (tell(results, twins) for tell in TELLERS)
    return [finding for finding in found if finding is not None][:FINDINGS]


def load_results(folder: Path) -> tuple[dict[str, Result], dict[str, list[Result]]]:
    """The results in a folder of `srmlab analyze`, and those of its untrained twins."""
    results = _load_all(folder)
    twins: dict[str, list[Result]] = {kind: [] for kind in results}
    for seed in sorted((folder / "null").glob("seed-*")):
        for kind, result in _load_all(seed).items():
            if kind in twins:
                twins[kind].append(result)
    return results, twins


def _load_all(folder: Path) -> dict[str, Result]:
    found = {}
    for file in sorted(folder.glob("*.json")):
        if file.name != "index.json":
            try:
                found[file.stem] = analysis.load(file.with_suffix(""))
            except (UserError, KeyError, ValueError, OSError):
                continue  # the explorer says so when it opens the run
    return found


# --- one function a finding: None if what it needs was not measured -----------------------------------------


def importance(results: Results, twins: Twins) -> Finding | None:
    """Which stream the prediction needs most: at the end, and all the way."""
    at_last, everywhere = results.get("ablation"), results.get("ablation_everywhere")
    shown = everywhere or at_last
    if not isinstance(shown, Ablation):
        return None

    def most(result: Result) -> float:
        return float(result.kl.max()) * BITS if isinstance(result, Ablation) else float("nan")

    parts = [
        f"{result.names[(top := result.ranking[0])]} ({result.bits[top]:.2f} bits) {when}"
        for result, when in ((at_last, "at the final state"), (everywhere, "after every layer"))
        if isinstance(result, Ablation)
    ]
    text = f"The prediction changes most without {', and without '.join(parts)}."
    null = Beside("the most that one stream changes", "bits", most(shown), _of(twins, shown, most))
    return Finding(text, shown.kind, str(shown.evidence), null)


def hub(results: Results, twins: Twins) -> Finding | None:
    """Which stream the others read."""
    routing = results.get("routing")
    if not isinstance(routing, Routing):
        return None
    top = int(routing.outgoing.argmax())
    text = (
        f"S{top} is the stream that others read most: at {routing.outgoing[top]:.0%} of tokens, against "
        f"{routing.outgoing.mean():.0%} on average."
    )
    return Finding(text, routing.kind, str(routing.evidence), strongest(routing, twins.get("routing", ())))


def settling(results: Results, twins: Twins) -> Finding | None:
    """How much depth the loss needs."""
    depth = results.get("depth")
    if not isinstance(depth, Depth):
        return None
    losses = dict(zip(map(int, depth.depths), map(float, depth.loss), strict=True))
    last = losses[depth.trained]
    reached = min(d for d, loss in losses.items() if loss <= last + CLOSE)
    text = (
        f"The loss is {last:.2f} nats a token at the trained depth of {depth.trained} {depth.unit}; it is "
        f"within {CLOSE:g} of that after {reached}."
    )

    def loss(result: Result) -> float:
        at = result.depths == depth.trained if isinstance(result, Depth) else np.array([], bool)
        return float(result.loss[at][0]) if isinstance(result, Depth) and at.any() else float("nan")

    return Finding(
        text, depth.kind, str(depth.evidence), Beside("loss", "nats", last, _of(twins, depth, loss))
    )


def contraction(results: Results, twins: Twins) -> Finding | None:
    """Whether the recursion comes to rest."""
    drift = results.get("drift")
    if not isinstance(drift, Drift) or np.isfinite(drift.profile).sum() < 2:
        return None

    def left(result: Result) -> float:
        profile = result.profile[np.isfinite(result.profile)] if isinstance(result, Drift) else np.zeros(0)
        return float(profile[-1] / profile[0]) if len(profile) > 1 and profile[0] > 0 else float("nan")

    share = left(drift)
    moving = "comes to rest" if share < 0.05 else "is still moving at the last layer"
    text = f"From the first transition to the last a step changes the state {share:.1%} as much: it {moving}."
    null = Beside("change at the last transition over the first", "share", share, _of(twins, drift, left))
    return Finding(text, drift.kind, str(drift.evidence), null)


def sparsity(results: Results, twins: Twins) -> Finding | None:
    """How many streams a stream reads."""
    sources = results.get("effective_sources")
    if not isinstance(sources, EffectiveSources):
        return None

    def number(result: Result) -> float:
        return float(result.mean_number) if isinstance(result, EffectiveSources) else float("nan")

    count = number(sources)
    text = (
        f"At a token a stream reads {count:.1f} of {sources.weight.shape[-1]} streams (exp of the entropy)."
    )
    null = Beside("sources", "streams", count, _of(twins, sources, number))
    return Finding(text, sources.kind, str(sources.evidence), null)


def likeness(results: Results, twins: Twins) -> Finding | None:
    """Whether the streams have become alike."""
    similar = results.get("stream_similarity")
    if not isinstance(similar, StreamSimilarity):
        return None

    def last(result: Result) -> float:
        return float(result.last) if isinstance(result, StreamSimilarity) else float("nan")

    value = last(similar)
    text = f"At the last layer the cosine between two streams' states is {value:+.2f} on average."
    null = Beside("cosine", "cosine", value, _of(twins, similar, last))
    return Finding(text, similar.kind, str(similar.evidence), null)


TELLERS: tuple[Callable[[Results, Twins], Finding | None], ...] = (
    importance, hub, settling, contraction, sparsity, likeness,
)  # fmt: skip


def _of(twins: Twins, result: Result, number: Callable[[Result], float]) -> tuple[float, ...]:
    """A number of every twin."""
    values = (number(twin) for twin in twins.get(result.kind, ()))
    return tuple(value for value in values if np.isfinite(value))
