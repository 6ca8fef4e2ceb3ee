"""From the runs on disk to a result: what has finished, at which rate, with what losses."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import srmlab
from srmlab.experiments.experiment import Cell, Experiment, Scale
from srmlab.experiments.rates import FIRST_SEED, Search
from srmlab.experiments.results import CellResult, Run, SweepResult
from srmlab.models import outline
from srmlab.storage.metrics_file import LAST_STEPS, is_step, iter_metrics

CURVE_POINTS = 60
DEPTHS, EXITS = "depths.json", "exits.json"  # beside a run's log: what was measured after training


def collect(
    experiment: Experiment, scale: Scale, cells: list[Cell], out: Path, seeds: int, data: dict[str, Any]
) -> SweepResult:
    """Everything that has finished so far; of a tuned cell, at the best rate so far."""
    found = []
    for cell in cells:
        search = read_search(cell, out) if cell.tuned else Search({})
        chosen = cell.at(search.best) if search.losses else cell
        runs = [
            read_run(chosen.run_folder(out, seed), chosen, seed, experiment.test_depth)
            for seed in range(seeds)
        ]
        if finished := [run for run in runs if run is not None]:
            found.append(cell_result(chosen, search, finished))
    versions = {"srmlab": srmlab.__version__}
    return SweepResult(experiment.name, scale, len(cells) * seeds, data, versions, found)


def with_runs_elsewhere(result: SweepResult, earlier: SweepResult, cells: list[Cell]) -> SweepResult:
    """And of an earlier result the cells with more runs than are here, if they are still trained in that way
    and on that text: a table can be completed on another machine.
    """
    if earlier.data["fingerprint"] != result.data["fingerprint"]:
        return result
    found = []
    for cell in cells:
        here, there = (next((c for c in one.cells if c.name == cell.name), None) for one in (result, earlier))
        if there and there.cell.folder == cell.at(there.training["lr"]).folder:
            here = max(filter(None, (here, there)), key=lambda one: len(one.runs))
        found += [here] if here else []
    return replace(result, cells=found)


def cell_result(cell: Cell, search: Search, runs: list[Run]) -> CellResult:
    return CellResult(
        name=cell.name,
        series=cell.series,
        x=cell.x,
        paper=cell.paper,
        parameters=outline(cell.model).num_parameters(),
        training_flops_per_token=cell.flops_per_token,
        tokens=cell.tokens,
        model=cell.model.to_dict(),
        training=cell.training.to_dict(),
        runs=runs,
        rates=search.losses,
    )


def read_search(cell: Cell, out: Path) -> Search:
    """What is known of a tuned cell's rates. A rate is looked for only if the search would come to it."""
    search = Search({})
    while missing := search.missing(cell.training.lr):
        losses = dict(search.losses)
        for rate in missing:
            tried = cell.at(rate)
            folder = tried.run_folder(out, FIRST_SEED)
            if run := read_run(folder, tried, FIRST_SEED):
                losses[rate] = run.val_loss if math.isfinite(run.val_loss) else math.inf
            elif diverged(folder):
                losses[rate] = math.inf
        if losses == search.losses or len(losses) < 3:
            return Search(losses)
        search = Search(losses)
    return search


def read_run(folder: Path, cell: Cell, seed: int, test_depth: int = 0) -> Run | None:
    """A run's record, if it has finished and, where asked for, been measured at other depths."""
    metrics = folder / "metrics.jsonl"
    if not metrics.is_file():
        return None
    losses: list[float] = []
    val_loss, seconds = None, 0.0
    for row in iter_metrics(metrics):
        if is_step(row):
            losses.append(row.get("parts", {}).get("cross_entropy", row["loss"]))
            seconds += cell.training.tokens_per_step(cell.model.context) / row["tokens_per_second"]
        if row["step"] == cell.training.steps:
            val_loss = row.get("val_loss", val_loss)
    depths = read_measured(folder / DEPTHS)
    if val_loss is None or (test_depth and depths is None):
        return None
    # the paper's training loss, here of a fifth of the run at most
    last = losses[-min(LAST_STEPS, max(1, len(losses) // 5)) :]
    run = Run(seed, float(np.mean(last)), val_loss, seconds, thinned(losses))
    if not test_depth:
        return run
    measured = {int(depth): float(loss) for depth, loss in depths.items()}
    return replace(run, depths=measured, exits=read_measured(folder / EXITS))


def diverged(folder: Path) -> bool:
    """Whether a run ended because its loss was not finite."""
    metrics = folder / "metrics.jsonl"
    return metrics.is_file() and any(row.get("event") == "nonfinite" for row in iter_metrics(metrics))


def thinned(losses: list[float]) -> list[tuple[int, float]]:
    """The curve at about 60 steps, evenly spaced on a log axis; each the mean of the steps around it."""
    steps = np.unique(np.geomspace(1, len(losses), CURVE_POINTS).round().astype(int))
    values = np.array(losses)
    return [
        (int(step), round(float(values[max(0, step - 1 - step // 20) : step + step // 20].mean()), 4))
        for step in steps
    ]


def read_measured(file: Path) -> Any:
    """What was measured after training, if it was."""
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
