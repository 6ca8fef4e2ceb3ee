"""From runs to a result: what has finished, here or on another machine, at which rate, with what losses."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import srmlab
from srmlab.errors import UserError
from srmlab.experiments.experiment import Cell, Experiment, Scale
from srmlab.experiments.rates import FIRST_SEED, Search
from srmlab.experiments.results import CellResult, Run, SweepResult
from srmlab.models import outline
from srmlab.storage.metrics_file import LAST_STEPS, is_step, iter_metrics, training_loss

CURVE_POINTS = 60


@dataclass(frozen=True)
class Records:
    """Every run that is known of: in the folder `out` of this machine, or in the tables of others. A table
    holds a cell's runs at its best rate and the losses of its search: all that a sweep needs to go on.
    """

    out: Path
    tables: tuple[SweepResult, ...] = ()
    fingerprint: str = ""  # of the data

    @classmethod
    def of(cls, out: Path, results: Path | None, fingerprint: str, shared: str) -> Records:
        """With the tables in the folder `results` of runs on the same data, which they name by `shared`."""
        files = sorted(results.glob("*/result.json")) if results else []
        tables = [SweepResult.load(file.parent) for file in files]
        same = tuple(table for table in tables if table.data.get("fingerprint") == shared)
        return cls(out, same, fingerprint)

    @cached_property
    def rows(self) -> list[tuple[Cell, CellResult]]:
        """The rows of the tables, each with what was trained."""
        return [(row.cell, row) for table in self.tables for row in table.cells]

    def runs(self, cell: Cell, measures: Sequence[str] = ()) -> dict[int, Run]:
        """All finished runs of a cell at its rate, by seed, from here and from elsewhere."""
        here = (read_run(self.folder(cell, seed), cell, seed, measures) for seed in self.seeds(cell))
        known = self.elsewhere(cell, measures) | {run.seed: run for run in here if run}
        return dict(sorted(known.items()))

    def elsewhere(self, cell: Cell, measures: Sequence[str] = ()) -> dict[int, Run]:
        """Those in the tables."""
        return {run.seed: run for row in self.rows_of(cell) for run in row.runs if run.has(measures)}

    def diverged(self, cell: Cell) -> list[int]:
        """The seeds of a cell at its rate whose loss was not finite."""
        here = {seed for seed in self.seeds(cell) if diverged(self.folder(cell, seed))}
        return sorted(here.union(*(row.diverged for row in self.rows_of(cell))))

    def rows_of(self, cell: Cell) -> list[CellResult]:
        return [row for trained, row in self.rows if trained.folder == cell.folder]

    def seeds(self, cell: Cell) -> list[int]:
        """Those that a run was begun with here."""
        folders = cell.run_folder(self.out, 0).parent.glob("seed-*")
        return sorted(int(folder.name.removeprefix("seed-")) for folder in folders)

    def folder(self, cell: Cell, seed: int) -> Path:
        """Where its run is, or is to be. One on other data is refused: it is not what is asked for."""
        folder = cell.run_folder(self.out, seed)
        data = record_of(folder).get("data", {}).get("fingerprint", self.fingerprint)
        if self.fingerprint and data != self.fingerprint:
            raise UserError(f"{folder} is a run on other data: choose another --out for this data")
        return folder

    def search(self, cell: Cell) -> Search:
        """What is known of a tuned cell's rates. A rate is looked for only if the search would come to it."""
        known = {
            rate: loss
            for trained, row in self.rows
            if trained.folder == cell.at(trained.training.lr).folder
            for rate, loss in row.rates.items()
        }
        search = Search({})
        while missing := search.missing(cell.training.lr):
            losses = dict(search.losses)
            for rate in missing:
                if (loss := self.first_loss(cell.at(rate), known)) is not None:
                    losses[rate] = loss
            if any(rate not in losses for rate in missing):
                return Search(losses)
            search = Search(losses)
        return search

    def first_loss(self, cell: Cell, known: dict[float, float]) -> float | None:
        """The validation loss of the first seed; inf if training diverged, None if it has not finished."""
        folder = self.folder(cell, FIRST_SEED)
        if run := read_run(folder, cell, FIRST_SEED):
            return run.val_loss if math.isfinite(run.val_loss) else math.inf
        return math.inf if diverged(folder) else known.get(cell.training.lr)


def collect(
    experiment: Experiment,
    scale: Scale,
    cells: list[Cell],
    records: Records,
    seeds: int,
    data: dict[str, Any],
) -> SweepResult:
    """Everything that has finished so far; of a tuned cell, at the best rate so far."""
    found, planned = [], 0
    for cell in cells:
        search = records.search(cell) if cell.tuned else Search({})
        chosen = cell.at(search.best) if search.losses else cell
        runs, failed = records.runs(chosen, experiment.measures), records.diverged(chosen)
        planned += len(runs.keys() | {*failed, *range(seeds)})
        if runs:
            found.append(cell_result(chosen, search, list(runs.values()), failed))
    return SweepResult(experiment.name, scale, planned, data, {"srmlab": srmlab.__version__}, found)


def cell_result(cell: Cell, search: Search, runs: list[Run], diverged: list[int]) -> CellResult:
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
        diverged=diverged,
    )


def read_run(folder: Path, cell: Cell, seed: int, measures: Sequence[str] = ()) -> Run | None:
    """A run's record, if it has finished and what is asked for has been measured."""
    metrics = folder / "metrics.jsonl"
    if not metrics.is_file():
        return None
    losses: list[float] = []
    val_loss, solved, seconds = None, None, 0.0
    for row in iter_metrics(metrics):
        if is_step(row):
            losses.append(training_loss(row))
            seconds += cell.training.tokens_per_step(cell.model.context) / row["tokens_per_second"]
        if row["step"] == cell.training.steps:
            val_loss, solved = row.get("val_loss", val_loss), row.get("val_solved", solved)
    files = {name: folder / f"{name}.json" for name in measures}
    if val_loss is None or not all(file.is_file() for file in files.values()):
        return None
    # the paper's training loss, here of a fifth of the run at most
    last = losses[-min(LAST_STEPS, max(1, len(losses) // 5)) :]
    measured = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items()}
    return Run.of(
        {"seed": seed, "loss": float(np.mean(last)), "val_loss": val_loss, "seconds": seconds}
        | {"curve": thinned(losses), "solved": solved, "machine": record_of(folder).get("machine")}
        | measured
    )


def record_of(folder: Path) -> dict[str, Any]:
    """What a run says of itself: its data, the machine. Runs of earlier versions do not say all of it."""
    file = folder / "run.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


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
