"""Experiment `learned`: which of the paper's findings about streams does training bring about?

A statistic of a trained model is a finding only if the untrained model does not have it too. Every run is
paired with the weights it began from: the same config, the same seed, on the same text. Over seeds, the
difference has an interval; the paper's claim is that training moves the number one way.

At scale mini the models are those of the demo (srm-nano and its recipe), since the models of other miniatures
hardly know more than bigram counts: 8 streams of 32, 16 of 16, 32 of 8. At paper scale they are the paper's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from srmlab.experiments.evidence import Claim, Difference, above, every, paired
from srmlab.experiments.experiment import Cell, Experiment, Scale
from srmlab.experiments.miniatures import srm_med, training
from srmlab.experiments.results import CellResult, SweepResult
from srmlab.models import SRMConfig, preset
from srmlab.models.srm_config import srm_nano
from srmlab.training.config import TrainConfig
from srmlab.training.recipes import recipe


@dataclass(frozen=True)
class Statistic:
    claim: str  # that training moves the number up, or down
    analysis: str
    read: Callable[[Any], float]
    margin: float  # named before any run: an interval around 0 that stays within it means no difference
    up: bool = True


STATISTICS = {
    "the most-read stream: share of edges over 0.10": Statistic(
        "training makes one stream a hub, by edges over 0.10",
        "routing",
        lambda found: float(found.outgoing.max()),
        0.02,
    ),
    "the most-read stream: share of all attention, times S": Statistic(
        "training makes one stream a hub, by its share of attention",
        "routing",
        lambda found: float(found.most_attention * found.streams),
        0.05,
    ),
    "streams read at a token, share of S": Statistic(
        "training makes routing more selective",
        "effective_sources",
        lambda found: float(found.mean_number / found.weight.shape[-1]),
        0.02,
        up=False,
    ),
    "edges over 2/S": Statistic(
        "training makes strong edges", "effective_sources", lambda found: float(found.in_use), 0.01
    ),
    "correlation of routing with the next layer": Statistic(
        "training makes routing settle more over depth",
        "routing",
        lambda found: float(found.mean_stability),
        0.02,
    ),
    "drift, last transition over the first": Statistic(
        "training makes the layers converge more",
        "drift",
        lambda found: float(found.profile[-1] / found.profile[0]),
        0.01,
        up=False,
    ),
    "cos(c, x)": Statistic(
        "training turns the connection's output towards the input",
        "alignment",
        lambda found: float(found.mean),
        0.02,
    ),
    "cos(update, state)": Statistic(
        "training aligns updates with the state", "alignment", lambda found: float(found.update_mean[0]), 0.02
    ),
    "ablation in the final state, largest over smallest": Statistic(
        "training makes streams matter unequally, in the final state",
        "ablation",
        lambda found: float(found.dynamic_range),
        0.1,
    ),
    "ablation after every layer, largest over smallest": Statistic(
        "training makes streams matter unequally, by all that they do",
        "ablation_everywhere",
        lambda found: float(found.dynamic_range),
        0.1,
    ),
    "super-additive pairs of streams": Statistic(
        "training makes streams cover for each other (not in the paper)",
        "interaction",
        lambda found: float(found.positive_share),
        0.05,
    ),
    "cosine between streams": Statistic(
        "training makes streams alike (reported of hyper-connections, not in the paper)",
        "stream_similarity",
        lambda found: float(found.last),
        0.02,
    ),
    "cosine between tokens": Statistic(
        "training makes states of different tokens alike (not in the paper)",
        "token_similarity",
        lambda found: float(found.last),
        0.02,
    ),
}
PAPER = {8: "srm-med", 16: "srm-large", 32: "srm-base"}


def nano(streams: int) -> SRMConfig:
    """srm-nano's width in so many streams."""
    dim = 256 // streams
    return srm_nano().replace(streams=streams, stream_dim=dim, head_dim=dim, mlp_dim=4 * dim)


def small(streams: int) -> SRMConfig:
    dim = 256 // streams
    return srm_med("small").replace(streams=streams, stream_dim=dim, token_heads=max(1, dim // 16))


def subject(scale: Scale, streams: int) -> tuple[SRMConfig, TrainConfig]:
    """A model that is worth looking inside, and how it is trained."""
    if scale == "mini":
        return nano(streams), recipe("srm-nano").replace(eval_windows="spread", device="cpu")
    if scale == "small":
        return small(streams), training("small")
    name = PAPER[streams]
    return cast(SRMConfig, preset(name)), recipe(name)


def cells(scale: Scale) -> list[Cell]:
    found = []
    for streams in PAPER:
        model, trained = subject(scale, streams)
        if scale == "mini":
            trained = trained.replace(depth_schedule="grow:2")  # as in the demo
        found.append(
            Cell(name=f"{streams} streams", model=model, training=trained, x=streams, tuned=scale == "small")
        )
    return found


@dataclass(frozen=True)
class Moved:
    """A statistic over the runs of a cell: what training did to it."""

    trained: float
    untrained: float
    by: Difference | None  # over seeds; None for fewer than two


def moved(cell: CellResult, name: str) -> Moved | None:
    measured = {run.seed: run.learned[name] for run in cell.runs if run.learned}
    if not measured:
        return None
    trained, untrained = ({seed: pair[i] for seed, pair in measured.items()} for i in range(2))
    after, before = (float(np.mean(list(values.values()))) for values in (trained, untrained))
    return Moved(after, before, paired(trained, untrained))


def judge(result: SweepResult) -> list[Claim | str]:
    """A claim holds if it does at every number of streams. Each has the usual interval: what has to pass all
    of several tests gains nothing from their number. To fail, one is enough, which is easier with several.
    """
    return [
        every(statistic.claim, [decided(result, f"{streams} streams", name) for streams in PAPER])
        for name, statistic in STATISTICS.items()
    ]


def decided(result: SweepResult, cell: str, name: str) -> Claim:
    """At one number of streams."""
    statistic, found = STATISTICS[name], moved(result[cell], name) if cell in result else None
    if found is None:
        return Claim("", "undecided", f"{cell} has not been run", missing=cell)
    numbers = f"{name}, {cell}: {found.trained:#.3g}, untrained {found.untrained:#.3g}"
    if found.by is None:
        return Claim("", "undecided", f"{numbers} (one seed: no interval)")
    verdict = above(found.by if statistic.up else -found.by, statistic.margin)
    return Claim(
        "", verdict, f"{numbers}: {found.by:+#.3g} over {found.by.pairs} seeds; margin {statistic.margin:g}"
    )


def table(result: SweepResult) -> list[list[str]]:
    """Every statistic at every number of streams: trained, untrained, the difference with its interval."""
    heads = ["trained, untrained: difference [95 %]", *(cell.name for cell in result.cells)]
    return [heads, *([name, *(shown(moved(cell, name)) for cell in result.cells)] for name in STATISTICS)]


def shown(found: Moved | None) -> str:
    if found is None:
        return ""
    by = found.by and f": {found.by:+#.3g}"
    return f"{found.trained:#.3g}, {found.untrained:#.3g}{by or ''}"


LEARNED = Experiment(
    name="learned",
    question="Which of the paper's findings about streams are learned, and with how many streams?",
    claim="Streams specialise: hubs, sparse routing that settles, updates aligned with the state, streams "
    "that matter unequally.",
    cells=cells,
    verdict=judge,
    axis="streams",
    measures=("learned",),
    compares=False,
    statistics=table,
)
