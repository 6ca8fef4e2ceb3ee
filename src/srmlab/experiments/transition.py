"""Experiment `transition`: does something happen at mid-depth, and because of where the gradient begins?

The paper finds a spike of drift at layer 4 of 8 and a fall of the logit lens at mid-depth, and reads both as
a phase of the computation. Its models are trained with gradient through the last l = 4 layers, so layer 4 is
also where the gradient begins. Here l is 2, 4 or 8 (all layers): a phase of the computation stays where it
is, an effect of the truncated gradient moves to layer 6, and is gone with 8.

Every run is measured next to the weights it began from. In both curves the largest step against the trend
counts, and the layer that it leads to:

    >>> steps = drift_ratios([0.4, 0.1, 0.02, 0.06, 0.01])     # from layer 0 to 1, 1 to 2 …
    >>> round(largest(steps), 2), place(steps)                 # log 3, at the change from layer 3 to layer 4
    (1.1, 4)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from srmlab.analysis.drift import FLOOR
from srmlab.experiments.evidence import LEVEL, Claim, above, every, paired
from srmlab.experiments.experiment import Cell, Experiment, Scale
from srmlab.experiments.learned import subject
from srmlab.experiments.results import CellResult, SweepResult

STREAMS = 8
GRADIENT_DEPTHS = (2, 4, 8)
TOGETHER = 1 - (1 - LEVEL) / len(GRADIENT_DEPTHS)  # of the claims about one curve
Steps = dict[int, float]  # by the layer they lead to; positive is against the trend


def drift_ratios(curve: Sequence[float]) -> Steps:
    """log of the drift over that of the transition before: above 0 it rises."""
    ratios = np.diff(np.log(np.maximum(curve, FLOOR)))
    return {layer: float(ratio) for layer, ratio in enumerate(ratios, start=2)}


def lens_falls(curve: Sequence[float]) -> Steps:
    """By how much the mean log-probability of the correct token falls, in nats."""
    return {layer: curve[layer - 1] - curve[layer] for layer in range(1, len(curve))}


def largest(steps: Steps) -> float:
    return max(steps.values())


def place(steps: Steps) -> int:
    return max(steps, key=lambda layer: steps[layer])


@dataclass(frozen=True)
class Event:
    claim: str
    unit: str
    steps: Callable[[Sequence[float]], Steps]
    margin: float  # named before any run


EVENTS = {
    "drift": Event("drift has a spike", "log of the rise", drift_ratios, 0.1),
    "logit lens": Event("the logit lens falls on the way", "nats", lens_falls, 0.02),
}


def cells(scale: Scale) -> list[Cell]:
    model, training = subject(scale, STREAMS)
    cell = Cell(name="", model=model, training=training, tuned=scale == "small")
    return [
        replace(cell, name=f"l = {l}", model=model.replace(gradient_depth=l), x=l) for l in GRADIENT_DEPTHS
    ]


def by_seed(
    cell: CellResult, curve: str, read: Callable[[Steps], float]
) -> tuple[dict[int, float], dict[int, float]]:
    """Trained and untrained."""
    measured = {run.seed: run.profiles[curve] for run in cell.runs if run.profiles}
    trained, untrained = (
        {seed: read(EVENTS[curve].steps(pair[i])) for seed, pair in measured.items()} for i in range(2)
    )
    return trained, untrained


def there(result: SweepResult, curve: str, name: str) -> Claim:
    """Whether a cell's curve has its event: one that is there at all, and is not without training."""
    event, text = EVENTS[curve], f"{EVENTS[curve].claim}, {name}"
    if name not in result:
        return Claim(text, "undecided", f"{name} has not been run", missing=name)
    trained, untrained = by_seed(result[name], curve, largest)
    of_null = (("0", dict.fromkeys(trained, 0.0)), ("untrained", untrained))
    return every(
        text,
        [
            Claim(
                "",
                above(found, event.margin),
                f"largest step ({event.unit}) against {null}: {found} ({100 * TOGETHER:.1f} % interval); "
                f"margin {event.margin:g}",
            )
            for null, values in of_null
            for found in [paired(trained, values, TOGETHER)]
        ],
    )


def moves(result: SweepResult, curve: str) -> Claim:
    """Whether it is later with two layers less in the gradient, if it is there in both. Layers are whole
    numbers, on which seeds can agree, and an interval over them would have no width: it has to be later with
    every seed, and fails if it is with none.
    """
    text = f"{EVENTS[curve].claim}, and it moves with l"
    both = [there(result, curve, name) for name in ("l = 2", "l = 4")]
    if unmet := [claim for claim in both if claim.verdict != "holds"]:
        reason = "it is not shown to be there in both, l = 2 and l = 4"
        return Claim(text, "undecided", reason, unmet[0].missing)
    late, early = (by_seed(result[name], curve, place)[0] for name in ("l = 2", "l = 4"))
    seeds = sorted(late.keys() & early.keys())
    listed = ", ".join(f"{late[seed]} and {early[seed]}" for seed in seeds)
    later = sum(late[seed] > early[seed] for seed in seeds)
    numbers = f"layer with l = 2 and with l = 4, by seed: {listed}; later in {later} of {len(seeds)}"
    if len(seeds) < 2 or 0 < later < len(seeds):
        return Claim(text, "undecided", numbers)
    return Claim(text, "holds" if later else "does not hold", numbers)


def judge(result: SweepResult) -> list[Claim | str]:
    return [
        claim
        for curve in EVENTS
        for claim in (
            *(there(result, curve, f"l = {l}") for l in GRADIENT_DEPTHS),
            moves(result, curve),
        )
    ]


def table(result: SweepResult) -> list[list[str]]:
    """Of every cell the largest step of both curves, by seed, and the layer that it leads to."""
    rows = [["largest step (to layer), by seed", "trained", "untrained"]]
    for curve, event in EVENTS.items():
        for cell in result.cells:
            sizes, places = by_seed(cell, curve, largest), by_seed(cell, curve, place)
            listed = (
                ", ".join(f"{size[seed]:+.3f} ({at[seed]:g})" for seed in size)
                for size, at in zip(sizes, places, strict=True)
            )
            rows.append([f"{curve} ({event.unit}), {cell.name}", *listed])
    return rows


TRANSITION = Experiment(
    name="transition",
    question="Does something happen at mid-depth, and because the gradient begins there?",
    claim="A spike of drift at layer 4 of 8, and a fall of the logit lens at mid-depth.",
    cells=cells,
    verdict=judge,
    axis="layers in the gradient (l)",
    measures=("profiles",),
    compares=False,
    statistics=table,
)
