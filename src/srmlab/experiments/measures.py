"""What is measured of a run after its training, each in a file beside its log: RUN/depths.json and so on.

depths    validation loss of the trained weights at 1 level, 2, … up to twice as many as in training
exits     the same with the model's own ways of spending less: early exit, routing
learned   statistics of the streams, each next to the same of the weights before training
profiles  two curves over the layers, drift and the logit lens, each next to that before training
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from srmlab.analysis import depth, survey
from srmlab.analysis.spending import spending
from srmlab.data import Batch, EvaluationBatches, open_tokens
from srmlab.experiments.learned import STATISTICS
from srmlab.files import write_file
from srmlab.models import LanguageModel, build
from srmlab.storage import load
from srmlab.training.run import run_config

Windows = Callable[[int], list[Batch]]  # so many of validation text, spread over it


def depths(model: LanguageModel, windows: Windows) -> dict[int, float]:
    deepest = 2 * model.depth if model.recurrent else model.depth
    found = depth(model, windows(64), max_depth=deepest)
    return {int(d): float(loss) for d, loss in zip(found.depths, found.loss, strict=True)}


def exits(model: LanguageModel, windows: Windows) -> list[dict[str, Any]]:
    return [asdict(one) for one in spending(model, windows(64))]


def learned(model: LanguageModel, windows: Windows) -> dict[str, tuple[float, float]]:
    """Trained and untrained."""
    trained, untrained = before_and_after(
        model, windows, {statistic.analysis for statistic in STATISTICS.values()}
    )
    return {
        name: (statistic.read(trained[statistic.analysis]), statistic.read(untrained[statistic.analysis]))
        for name, statistic in STATISTICS.items()
    }


def profiles(model: LanguageModel, windows: Windows) -> dict[str, tuple[list[float], list[float]]]:
    """Drift by transition, and by layer the mean over streams of the correct token's log-probability."""
    found = before_and_after(model, windows, {"drift", "logit_lens"})
    trained, untrained = (
        {"drift": one["drift"].profile.tolist(), "logit lens": one["logit_lens"].stream_mean[0].tolist()}
        for one in found
    )
    return {curve: (trained[curve], untrained[curve]) for curve in trained}


def before_and_after(model: LanguageModel, windows: Windows, names: set[str]) -> list[dict[str, Any]]:
    """Analyses of the trained model, and of the very weights that its training began from."""
    text = windows(8)  # few: the seeds say how far to trust a number
    return [survey(one, text, only=names) for one in (model, build(model.config))]


MEASURES: dict[str, Callable[[LanguageModel, Windows], Any]] = {
    "depths": depths,
    "exits": exits,
    "learned": learned,
    "profiles": profiles,
}


def measure(run: Path, data: str, names: Iterable[str]) -> None:
    """Write those that are not there yet."""
    if missing := [name for name in names if not (run / f"{name}.json").is_file()]:
        model, tokens = load(run), open_tokens(data).val
        config = run_config(run)
        context = (config.training.context if config else None) or model.config.context

        def windows(count: int) -> list[Batch]:
            return list(EvaluationBatches(tokens, context, 8, count * context, spread=True))

        for name in missing:
            write_file(run / f"{name}.json", json.dumps(MEASURES[name](model, windows)) + "\n")
