"""A survey: every analysis of a model in as few passes as they need.

The first pass measures routing, alignment, drift and the mean states; the second, which needs those means,
ablation, logit lens, attribution and the interaction of streams; a third runs the model deeper. Each pass
feeds all its analyses at once, can be stopped and picked up, and only what is asked for is measured.

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> found = srmlab.analysis.survey(model, [torch.arange(64).view(2, 32)], only=["routing", "ablation"])
    >>> sorted(found)
    ['ablation', 'routing', 'states']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from srmlab.analysis.ablation import FinalAblation
from srmlab.analysis.alignment import AlignmentSums
from srmlab.analysis.attribution import AttributionSums
from srmlab.analysis.baselines import baseline_decoder
from srmlab.analysis.capture import Accumulator, Batches, capture, read_twice
from srmlab.analysis.depth import DepthSums, deepened, trained_depth
from srmlab.analysis.drift import DriftSums, contributions_of
from srmlab.analysis.interventions import InteractionSums
from srmlab.analysis.logit_lens import LENS_TOKENS, LensSums, StreamDecoder, count_tokens
from srmlab.analysis.result import Result
from srmlab.analysis.routing import RoutingSums
from srmlab.analysis.states import StateMeans, StateSums
from srmlab.errors import UserError, nearest
from srmlab.models import SRM, LanguageModel

FIRST = ("routing", "alignment", "drift", "states")
SECOND = ("ablation", "attribution", "logit_lens", "interaction")
ANALYSES = (*FIRST, *SECOND, "depth")
ON_BASELINES = ("drift", "logit_lens", "depth")

Progress = Callable[[str, int], None]  # the name of the pass, and how many batches of it are done


def available(model: LanguageModel) -> tuple[str, ...]:
    """The analyses that are defined on this model."""
    if not isinstance(model, SRM):
        return ON_BASELINES
    return ANALYSES if model.config.connection == "attention" else ANALYSES[1:]  # no routing without patterns


def chosen(model: LanguageModel, only: Iterable[str] | None) -> tuple[str, ...]:
    """The analyses asked for, checked, with the mean states if others need them."""
    known = available(model)
    if only is None:
        return known
    wanted = tuple(only)
    for name in wanted:
        if name not in ANALYSES:
            hint = nearest(name, list(ANALYSES)) or f"; there are {', '.join(ANALYSES)}"
            raise UserError(f"no analysis is called {name!r}{hint}")
        if name not in known:
            raise UserError(f"{name} is defined on streams; a {type(model).__name__} has {', '.join(known)}")
    needs_means = isinstance(model, SRM) and any(
        name in ("ablation", "logit_lens", "interaction") for name in wanted
    )
    return tuple(name for name in known if name in wanted or (name == "states" and needs_means))


def survey(
    model: LanguageModel,
    batches: Batches,
    only: Iterable[str] | None = None,
    *,
    threshold: float = 0.10,
    lens_tokens: int | None = LENS_TOKENS,
    max_depth: int | None = None,
    known: dict[str, Result] | None = None,
    checkpoint: str | Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Result]:
    """The results by name. Those in `known` are taken as they are; `checkpoint` is a path for what is half
    done."""
    read_twice(batches)
    results = dict(known or {})
    missing = [name for name in chosen(model, only) if name not in results]

    def run(name: str, runner: LanguageModel, books: dict[str, Accumulator]) -> None:
        if books:
            saved = None if checkpoint is None else f"{checkpoint}-{name}"

            def tell(done: int) -> None:
                if progress is not None:
                    progress(name, done)

            found = capture(runner, batches, *books.values(), checkpoint=saved, progress=tell)
            results.update(zip(books, found, strict=True))

    run("states", model, {name: _first(name, model, threshold) for name in missing if name in FIRST})
    second = [name for name in missing if name in SECOND]
    run(
        "outputs",
        model,
        {name: _second(name, model, results.get("states"), batches, lens_tokens) for name in second},
    )
    if "depth" in missing:
        deep = deepened(model, max_depth)
        run("depth", deep, {"depth": DepthSums(deep, trained_depth(model))})
    return {name: results[name] for name in (*ANALYSES, *results) if name in results}


def _first(name: str, model: LanguageModel, threshold: float) -> Accumulator:
    if name == "drift":
        return DriftSums(contributions_of(model))
    assert isinstance(model, SRM)
    if name == "routing":
        return RoutingSums(model, threshold)
    return AlignmentSums(model) if name == "alignment" else StateSums(model)


def _second(
    name: str, model: LanguageModel, means: Result | None, batches: Batches, lens_tokens: int | None
) -> Accumulator:
    if not isinstance(model, SRM):
        return LensSums(baseline_decoder(model), count_tokens(batches), lens_tokens)
    if name == "attribution":
        return AttributionSums(model)
    assert isinstance(means, StateMeans)
    if name == "logit_lens":
        return LensSums(StreamDecoder(model, means), means.evidence.tokens, lens_tokens)
    return (
        FinalAblation(model, "mean", means) if name == "ablation" else InteractionSums(model, "mean", means)
    )
