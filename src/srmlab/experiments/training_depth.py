"""Experiment `training-depth`: how much less arithmetic reaches the loss of the paper's recipe?

The recipe trains at n = 8 layers with gradient through the last l = 4. Here n is smaller, or it grows from
few layers to all, or it is drawn for every batch (`--depth-schedule`): at equal tokens, and with as many
steps more as the recipe's FLOP pay for.
"""

from __future__ import annotations

from dataclasses import replace

from srmlab.experiments.cells import Findings, changed, sweep_model
from srmlab.experiments.evidence import not_above
from srmlab.experiments.experiment import Cell, Experiment, Scale, with_steps
from srmlab.experiments.results import SweepResult

DEPTHS = (1, 2, 3, 4, 6, 8)
SCHEDULES = ("grow:2", "grow:2/1", "draw:2", "draw:2/1")
RECIPE = "n = 8"
LONGER = (2, 4)  # depths that are also trained for the recipe's FLOP


def cells(scale: Scale) -> list[Cell]:
    l = sweep_model(scale).gradient_depth
    fixed = changed(scale, **{f"n = {n}": {"depth": n, "gradient_depth": min(l, n)} for n in DEPTHS})
    fixed = [replace(cell, x=n, series="fixed") for cell, n in zip(fixed, DEPTHS, strict=True)]
    recipe = fixed[-1]
    scheduled = [
        replace(recipe, name=name, training=recipe.training.replace(depth_schedule=name), series="scheduled")
        for name in SCHEDULES
    ]
    longer = [
        replace(
            cell,
            name=f"{cell.name}, FLOP of {RECIPE}",
            training=with_steps(cell.training, steps_for(recipe, cell)),
            series="fixed, equal FLOP",
        )
        for cell in fixed
        if cell.x in LONGER
    ]
    return [*fixed, *scheduled, *longer]


def steps_for(recipe: Cell, cell: Cell) -> int:
    """How long a cell can be trained for the recipe's FLOP."""
    return round(cell.training.steps * recipe.flops_per_token / cell.flops_per_token)


def judge(result: SweepResult) -> Findings:
    """Each with its share of the recipe's FLOP: the question is whether any at half of them or less holds."""
    cheaper = [*(f"n = {n}" for n in DEPTHS[:-1]), *SCHEDULES]
    longer = [f"n = {n}, FLOP of {RECIPE}" for n in LONGER]
    return [
        result.claim(f"{name} reaches the recipe's loss", not_above, name, RECIPE, of=len(names))
        for names in (cheaper, longer)
        for name in names
    ]


EXPERIMENT = Experiment(
    name="training-depth",
    question="How much less compute reaches the loss of eight layers with gradient through four?",
    cells=cells,
    verdict=judge,
    axis="layers in training (n)",
)
