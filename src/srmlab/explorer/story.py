"""What the report says first: a few findings as sentences, each with its figure, its null and how sure it is.

Every sentence is computed from a result of `srmlab analyze`, and its null from the same analysis of untrained
twins: a statistic that they have too is called that, however striking it looks.

    story(results, twins)        at most five findings, from what has been measured
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from srmlab import analysis
from srmlab.analysis.ablation import Ablation
from srmlab.analysis.depth import Depth
from srmlab.analysis.drift import Drift
from srmlab.analysis.effective_sources import EffectiveSources
from srmlab.analysis.null import Beside, saved_twins, strongest
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
            return "It has not been compared with untrained twins: run `srmlab analyze RUN --null 3`."
        unit = "" if self.null.unit.startswith("share") else f" {self.null.unit}"
        if len(self.null.twins) == 1:
            return f"One untrained twin has {self.null.span}{unit}: too few to say whether this was learned."
        if self.null.beyond:
            return f"Untrained twins have {self.null.span}{unit}, so this was learned."
        return f"Untrained twins do much the same ({self.null.span}{unit}), so this need not be learned."


def story(results: Results, twins: Twins) -> list[Finding]:
    found = (tell(results, twins) for tell in TELLERS)
    return [finding for finding in found if finding is not None][:FINDINGS]


def load_results(folder: Path) -> tuple[dict[str, Result], dict[str, list[Result]]]:
    """The results in a folder of `srmlab analyze`, and those of its untrained twins on the same text."""
    results: dict[str, Result] = {}
    for file in sorted(folder.glob("*.json")):
        if file.name != "index.json":
            # of what cannot be read, the explorer says so when it opens the run
            with suppress(UserError, KeyError, ValueError, OSError):
                results[file.stem] = analysis.load(file)
    return results, {kind: saved_twins(folder, result) for kind, result in results.items()}


# --- one function a finding: None if what it needs was not measured -----------------------------------------


def importance(results: Results, twins: Twins) -> Finding | None:
    """Which stream the prediction needs most: at the end, and all the way."""
    at_last, everywhere = results.get("ablation"), results.get("ablation_everywhere")
    shown = everywhere or at_last
    if not isinstance(shown, Ablation):
        return None

    def most(result: Result) -> float:
        return float(result.kl.max()) * BITS if isinstance(result, Ablation) else float("nan")

    def top(result: Ablation) -> str:
        return f"{result.names[result.ranking[0]]} ({result.bits[result.ranking[0]]:.2f} bits per token)"

    if isinstance(at_last, Ablation) and isinstance(everywhere, Ablation):
        text = (
            f"Ablated after every layer, {top(everywhere)} changes the prediction most; ablated in the final "
            f"state alone, {top(at_last)} does."
        )
    else:
        text = f"Of all streams, ablating {top(shown)} changes the prediction most."
    null = Beside("the most that one stream changes", "bits", most(shown), _of(twins, shown, most))
    return Finding(text, shown.kind, _text(shown), null)


def hub(results: Results, twins: Twins) -> Finding | None:
    """Which stream the others read."""
    routing = results.get("routing")
    if not isinstance(routing, Routing):
        return None
    top = int(routing.outgoing.argmax())
    text = (
        f"S{top} is the stream that the others read most: at {routing.outgoing[top]:.0%} of tokens, against "
        f"{routing.outgoing.mean():.0%} for the average stream."
    )
    return Finding(text, routing.kind, _text(routing), strongest(routing, twins.get("routing", ())))


def settling(results: Results, twins: Twins) -> Finding | None:
    """How much depth the loss needs."""
    depth = results.get("depth")
    if not isinstance(depth, Depth):
        return None
    losses = dict(zip(map(int, depth.depths), map(float, depth.loss), strict=True))
    last = losses[depth.trained]
    reached = min(d for d, loss in losses.items() if loss <= last + CLOSE)
    text = (
        f"The loss is {last:.2f} nats per token at the trained depth of {depth.trained} {depth.unit}, and "
        f"already within {CLOSE:g} of that after {reached}."
    )

    def loss(result: Result) -> float:
        at = result.depths == depth.trained if isinstance(result, Depth) else np.array([], bool)
        return float(result.loss[at][0]) if isinstance(result, Depth) and at.any() else float("nan")

    return Finding(text, depth.kind, _text(depth), Beside("loss", "nats", last, _of(twins, depth, loss)))


def contraction(results: Results, twins: Twins) -> Finding | None:
    """Whether the recursion comes to rest."""
    drift = results.get("drift")
    if not isinstance(drift, Drift) or np.isfinite(drift.profile).sum() < 2:
        return None

    def left(result: Result) -> float:
        profile = result.profile[np.isfinite(result.profile)] if isinstance(result, Drift) else np.zeros(0)
        return float(profile[-1] / profile[0]) if len(profile) > 1 and profile[0] > 0 else float("nan")

    share = left(drift)
    end = "has converged" if share < 0.05 else "has not converged"
    text = (
        f"The recursion {end} at the last layer: what a step contributes changes {share:.1%} as much there "
        "as between the first two layers."
    )
    null = Beside("change at the last transition over the first", "share", share, _of(twins, drift, left))
    return Finding(text, drift.kind, _text(drift), null)


def sparsity(results: Results, twins: Twins) -> Finding | None:
    """How many streams a stream reads."""
    sources = results.get("effective_sources")
    if not isinstance(sources, EffectiveSources):
        return None

    def number(result: Result) -> float:
        return float(result.mean_number) if isinstance(result, EffectiveSources) else float("nan")

    count = number(sources)
    text = (
        f"At each token a stream effectively reads {count:.1f} of the {sources.weight.shape[-1]} streams "
        "(the exponential of the routing entropy)."
    )
    null = Beside("sources", "streams", count, _of(twins, sources, number))
    return Finding(text, sources.kind, _text(sources), null)


def likeness(results: Results, twins: Twins) -> Finding | None:
    """Whether the streams have become alike."""
    similar = results.get("stream_similarity")
    if not isinstance(similar, StreamSimilarity):
        return None

    def last(result: Result) -> float:
        return float(result.last) if isinstance(result, StreamSimilarity) else float("nan")

    value = last(similar)
    text = f"After the last layer, the states of two streams have a mean cosine similarity of {value:+.2f}."
    null = Beside("cosine", "cosine", value, _of(twins, similar, last))
    return Finding(text, similar.kind, _text(similar), null)


TELLERS: tuple[Callable[[Results, Twins], Finding | None], ...] = (
    importance, hub, settling, contraction, sparsity, likeness,
)  # fmt: skip


def _of(twins: Twins, result: Result, number: Callable[[Result], float]) -> tuple[float, ...]:
    """A number of every twin."""
    values = (number(twin) for twin in twins.get(result.kind, ()))
    return tuple(value for value in values if np.isfinite(value))


def _text(result: Result) -> str:
    return f"Measured on {result.evidence.tokens:,} tokens of evaluation text."
