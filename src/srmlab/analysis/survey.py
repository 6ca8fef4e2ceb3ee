"""A survey: every analysis of a model in as few passes as possible.

Analyses declare what they need (see registry.py). Those that need only the states of a pass share the first,
those that need the mean states the second; a third runs the model deeper. Each pass feeds all its analyses at
once, can be stopped and resumed, and only what is asked for is measured.

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> found = srmlab.analysis.survey(model, [torch.arange(64).view(2, 32)], only=["routing", "ablation"])
    >>> sorted(found)
    ['ablation', 'routing', 'states']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from srmlab.analysis.capture import Batches, capture, read_twice
from srmlab.analysis.depth import deepened
from srmlab.analysis.registry import ANALYSES, LENS_TOKENS, PASSES, Request
from srmlab.analysis.result import Result
from srmlab.errors import UserError, unknown
from srmlab.models import LanguageModel

Progress = Callable[[str, int], None]  # the name of the pass, and how many batches of it are done


def available(model: LanguageModel) -> tuple[str, ...]:
    """The analyses that are defined on this model."""
    return tuple(name for name, analysis in ANALYSES.items() if analysis.defined_on(model))


def chosen(model: LanguageModel, only: Iterable[str] | None) -> tuple[str, ...]:
    """The analyses asked for, checked, with the mean states if others need them."""
    known = available(model)
    if only is None:
        return known
    wanted = (only,) if isinstance(only, str) else tuple(only)
    for name in wanted:
        if name not in ANALYSES:
            raise unknown("analysis", name, ANALYSES, own=True)
        if name not in known:
            lacks = ANALYSES[name].defined_on.__name__.replace("_", " ")
            raise UserError(
                f"{name} needs a model that {lacks}; {type(model).__name__} has {', '.join(known)}"
            )
    needs_means = any(ANALYSES[name].needs == "means" for name in wanted)
    return tuple(name for name in known if name in wanted or (name == "states" and needs_means))


def passes(names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """The name of every pass, and the analyses measured in it."""
    names = list(names)
    for title in dict.fromkeys(PASSES.values()):
        if together := [name for name in names if PASSES[ANALYSES[name].needs] == title]:
            yield title, together


def survey(
    model: LanguageModel,
    batches: Batches,
    only: Iterable[str] | None = None,
    *,
    threshold: float = 0.10,
    lens_tokens: int | None = LENS_TOKENS,
    max_depth: int | None = None,
    segment_depth: int | None = None,
    known: dict[str, Result] | None = None,
    checkpoint: str | Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Result]:
    """The results by name. Those in `known` are taken as they are; `checkpoint` is a path for what is half
    done."""
    read_twice(batches)
    results = dict(known or {})
    for title, names in passes(name for name in chosen(model, only) if name not in results):
        runner = deepened(model, max_depth) if title == "depth" else model
        request = Request(runner, model, batches, results, threshold, lens_tokens, segment_depth)
        found = capture(
            runner,
            batches,
            *(ANALYSES[name].accumulator(request) for name in names),
            checkpoint=None if checkpoint is None else f"{checkpoint}-{title}",
            progress=None if progress is None else partial(progress, title),
        )
        results.update(zip(names, found, strict=True))
    return {name: results[name] for name in (*ANALYSES, *results) if name in results}
