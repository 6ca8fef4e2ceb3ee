"""What came out of an experiment: every run's losses, one table over the seeds, and sentences that compare.

Losses are in nats per token. A cell's figure is its mean over seeds; what seeds alone do is the standard
deviation within cells, pooled over the two that are compared or, where one has a single seed, over all. A
difference is clear if seeds alone would make one as large less than once in twenty times (Student's t).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import srmlab
from srmlab.errors import UserError
from srmlab.experiments.experiment import Cell, Experiment, Scale
from srmlab.files import write_file
from srmlab.models import build
from srmlab.progress import duration
from srmlab.storage.metrics_file import iter_metrics

FORMAT = 1
LAST_STEPS = (
    200  # the paper's "training loss" is the mean of the last so many, here at most a fifth of the run
)
CURVE_POINTS = 60
# Standard errors that chance passes once in twenty times, by degrees of freedom from 1; the last also beyond.
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)

Order = Literal["lower", "higher", "within the noise"]


@dataclass(frozen=True)
class Run:
    seed: int
    loss: float  # the mean of the last steps
    val_loss: float
    seconds: float  # of training alone
    curve: list[tuple[int, float]]  # step and smoothed training loss
    depths: dict[int, float] | None = None  # validation loss by layers run, where it was measured


@dataclass(frozen=True)
class CellResult:
    name: str
    series: str
    x: float | None
    paper: float | None
    parameters: int
    training_flops_per_token: int
    tokens: int  # seen by each run
    model: dict[str, Any]
    training: dict[str, Any]
    runs: list[Run]

    @property
    def losses(self) -> np.ndarray:
        return np.array([run.val_loss for run in self.runs])

    @property
    def mean(self) -> float:
        return float(self.losses.mean())

    @property
    def std(self) -> float:
        """Over seeds; nan for one."""
        return float(self.losses.std(ddof=1)) if len(self.runs) > 1 else math.nan


@dataclass(frozen=True)
class SweepResult:
    experiment: str
    scale: Scale
    planned: int  # runs
    data: dict[str, Any]
    versions: dict[str, str]
    cells: list[CellResult]  # those with at least one finished run

    def __contains__(self, name: object) -> bool:
        return any(cell.name == name for cell in self.cells)

    def __getitem__(self, name: str) -> CellResult:
        return next(cell for cell in self.cells if cell.name == name)

    @property
    def finished(self) -> int:
        return sum(len(cell.runs) for cell in self.cells)

    @property
    def tokens(self) -> int:
        """What every run has seen: within an experiment the same."""
        return self.cells[0].tokens if self.cells else 0

    @property
    def noise(self) -> float:
        """The standard deviation over seeds, pooled over all cells; nan if none has two."""
        return pooled(self.cells)[0]

    def order(self, a: str, b: str) -> Order | None:
        """How a's loss lies to b's; None if a cell is missing or no cell has two seeds."""
        if a not in self or b not in self:
            return None
        gain, error, needed = self.difference(a, b)
        if math.isnan(error):
            return None
        if abs(gain) <= needed * error:
            return "within the noise"
        return "lower" if gain > 0 else "higher"

    def difference(self, a: str, b: str) -> tuple[float, float, float]:
        """How much lower a's loss is than b's, its standard error, and how many of those it takes to be
        clear.
        """
        first, second = self[a], self[b]
        own = min(len(first.runs), len(second.runs)) > 1
        noise, freedom = pooled([first, second] if own else self.cells)
        error = noise * math.sqrt(1 / len(first.runs) + 1 / len(second.runs))
        return second.mean - first.mean, error, STUDENT[min(max(freedom, 1), len(STUDENT)) - 1]

    # --- sentences; empty where a cell is missing ---------------------------------------------------------

    def compare(self, a: str, b: str) -> str:
        """Is a's loss lower than b's?"""
        if a not in self or b not in self:
            return ""
        gain, error, _ = self.difference(a, b)
        what = f"{a} {self[a].mean:.3f} against {b} {self[b].mean:.3f}: "
        size = f"{'lower' if gain > 0 else 'higher'} by {abs(gain):.3f}"
        if math.isnan(error):
            return f"{what}{size} (one seed: the noise is not known)."
        clear = "within the noise of the seeds" if self.order(a, b) == "within the noise" else "clear"
        return f"{what}{size} ± {error:.3f}, {clear}."

    def ranking(self, *names: str) -> str:
        known = sorted((self[name].mean, name) for name in names if name in self)
        return " < ".join(f"{name} {mean:.3f}" for mean, name in known) + "." if len(known) > 1 else ""

    def spread(self, *names: str) -> str:
        known = sorted((self[name].mean, name) for name in names if name in self)
        if len(known) < 2:
            return ""
        (low, best), (high, worst) = known[0], known[-1]
        seeds = "" if math.isnan(self.noise) else f"; seeds alone spread by {self.noise:.3f}"
        return f"From {low:.3f} ({best}) to {high:.3f} ({worst}), a spread of {high - low:.3f}{seeds}."

    def share(self, first: str, middle: str, last: str) -> str:
        """How much of the way from `first` down to `last` is done at `middle`, if that way is clear."""
        if middle not in self or self.order(last, first) != "lower":
            return ""
        whole, part = self[first].mean - self[last].mean, self[first].mean - self[middle].mean
        return f"{middle} has {part / whole:.0%} of the {whole:.3f} gained from {first} to {last}."

    def trend(self, label: str, names: Iterable[str]) -> str:
        known = [self[name] for name in names if name in self]
        if len(known) < 2:
            return ""
        best = min(known, key=lambda cell: cell.mean)
        values = ", ".join(f"{cell.x:g}: {cell.mean:.3f}" for cell in known)
        return f"{label}: best {best.mean:.3f} at {best.x:g} ({values})."

    def best(self, series: str) -> str:
        """The name of the series' best cell; empty if there is none."""
        cells = [cell for cell in self.cells if cell.series == series]
        return min(cells, key=lambda cell: cell.mean).name if cells else ""

    def best_of(self, series: str) -> str:
        return self.trend(series, [cell.name for cell in self.cells if cell.series == series])

    def depth_line(self, name: str) -> str:
        """The loss at other depths than the trained one."""
        if name not in self:
            return ""
        measured = [run.depths for run in self[name].runs if run.depths]
        if not measured:
            return ""
        trained = int(self[name].model["depth"])
        mean = {d: float(np.mean([depths[d] for depths in measured])) for d in measured[0]}
        best, last = min(mean, key=lambda d: mean[d]), max(mean)
        half = trained // 2
        return (
            f"{name}: {mean[half]:.3f} at {half} layers, {mean[trained]:.3f} at the trained {trained}, "
            f"{mean[last]:.3f} at {last}; least at {best}."
        )

    # --- tables -------------------------------------------------------------------------------------------

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows, as text, the best first unless the cells lie on an axis. The columns training,
        validation and paper are losses.
        """
        heads = ["", "parameters", "FLOP", "time", "training", "validation", "seeds", "paper"]
        rows = []
        ranked = all(cell.x is None for cell in self.cells)
        for cell in sorted(self.cells, key=lambda cell: cell.mean) if ranked else self.cells:
            training = float(np.mean([run.loss for run in cell.runs]))
            spread = "" if math.isnan(cell.std) else f" ± {cell.std:.3f}"
            rows.append(
                [
                    cell.name,
                    f"{cell.parameters:,}",
                    short(cell.training_flops_per_token),
                    duration(float(np.mean([run.seconds for run in cell.runs]))),
                    f"{training:.3f}",
                    f"{cell.mean:.3f}{spread}",
                    str(len(cell.runs)),
                    "" if cell.paper is None else f"{cell.paper:.2f}",
                ]
            )
        if all(cell.paper is None for cell in self.cells):
            heads, rows = heads[:-1], [row[:-1] for row in rows]
        return heads, rows

    def markdown(self, experiment: Experiment) -> str:
        heads, rows = self.table()
        lines = [f"# {experiment.name}, {self.scale}", "", experiment.question, ""]
        if experiment.claim:
            lines += [f"The paper: {experiment.claim}", ""]
        lines += [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
        lines += [f"| {' | '.join(row)} |" for row in rows]
        lines += ["", "What came out:", "", *(f"- {line}" for line in self.verdict(experiment))]
        lines += [
            "",
            f"{self.finished} of {self.planned} runs, each on {self.tokens:,} tokens of "
            f"{self.data['source']} ({self.data['vocab_size']} token ids). Training, validation and paper "
            "are losses in nats per token (the paper's on OpenWebText), ± the standard deviation over seeds; "
            "FLOP is the arithmetic of training on one token, the time that of one run.",
            "",
            f"Made by `srmlab sweep {self.experiment} --scale {self.scale}`.",
        ]
        return "\n".join(lines) + "\n"

    def verdict(self, experiment: Experiment) -> list[str]:
        return [line for line in experiment.verdict(self) if line] or ["Not enough runs for a verdict yet."]

    # --- on disk ------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    def save(self, folder: Path, experiment: Experiment) -> None:
        """result.json and table.md."""
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / "result.json", json.dumps(self.to_dict(), indent=1) + "\n")
        write_file(folder / "table.md", self.markdown(experiment))

    @classmethod
    def load(cls, folder: str | Path) -> SweepResult:
        file = Path(folder) / "result.json"
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content.pop("format") != FORMAT:
                raise UserError(f"{file} is of another format: make it anew with `srmlab sweep`")
            cells = [
                CellResult(**(cell | {"runs": list(map(_run, cell["runs"]))})) for cell in content["cells"]
            ]
            return cls(**(content | {"cells": cells}))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{file} cannot be read ({error}): make it anew with `srmlab sweep`") from None


def holds(claim: str, true: bool | None) -> str:
    """A claim of the paper, and whether it holds here."""
    said = {True: "holds here", False: "does not hold here", None: "cannot be told from these runs"}
    return f"“{claim}” {said[true]}."


def pooled(cells: list[CellResult]) -> tuple[float, int]:
    """The standard deviation over seeds within cells (nan if none has two), and its degrees of freedom."""
    several = [cell for cell in cells if len(cell.runs) > 1]
    freedom = sum(len(cell.runs) - 1 for cell in several)
    squares = sum((len(cell.runs) - 1) * cell.std**2 for cell in several)
    return (math.sqrt(squares / freedom) if freedom else math.nan), freedom


def short(number: float) -> str:
    """
    >>> short(4_890_000), short(1.23e9)
    ('4.9M', '1.2G')
    """
    size, unit = (1e9, "G") if number >= 1e9 else (1e6, "M")
    return f"{number / size:.2g}{unit}" if number < 100 * size else f"{number / size:.0f}{unit}"


def _run(content: dict[str, Any]) -> Run:
    depths = content.get("depths")
    curve = [(int(step), float(loss)) for step, loss in content["curve"]]
    read = None if depths is None else {int(d): float(loss) for d, loss in depths.items()}
    return Run(**(content | {"curve": curve, "depths": read}))


def collect(
    experiment: Experiment, scale: Scale, cells: list[Cell], out: Path, seeds: int, data: dict[str, Any]
) -> SweepResult:
    """Everything that has finished so far."""
    found = []
    for cell in cells:
        runs = [
            read_run(cell.run_folder(out, seed), cell, seed, experiment.test_depth) for seed in range(seeds)
        ]
        finished = [run for run in runs if run is not None]
        if not finished:
            continue
        model = build(cell.model, device="meta")
        found.append(
            CellResult(
                name=cell.name,
                series=cell.series,
                x=cell.x,
                paper=cell.paper,
                parameters=model.num_parameters(),
                training_flops_per_token=model.flops_per_token(cell.model.context).training,
                tokens=cell.training.steps * cell.training.tokens_per_step(cell.model.context),
                model=cell.model.to_dict(),
                training=cell.training.to_dict(),
                runs=finished,
            )
        )
    versions = {"srmlab": srmlab.__version__}
    return SweepResult(experiment.name, scale, len(cells) * seeds, data, versions, found)


def read_run(folder: Path, cell: Cell, seed: int, test_depth: int = 0) -> Run | None:
    """A run's record, if it has finished and, where asked for, been measured at other depths."""
    metrics = folder / "metrics.jsonl"
    if not metrics.is_file():
        return None
    losses: list[float] = []
    val_loss, seconds = None, 0.0
    for row in iter_metrics(metrics):
        if "loss" in row and "event" not in row:
            losses.append(row["loss"])
            seconds += cell.training.tokens_per_step(cell.model.context) / row["tokens_per_second"]
        if row["step"] == cell.training.steps:
            val_loss = row.get("val_loss", val_loss)
    depths = read_depths(folder)
    if val_loss is None or (test_depth and depths is None):
        return None
    last = losses[-min(LAST_STEPS, max(1, len(losses) // 5)) :]
    return Run(seed, float(np.mean(last)), val_loss, seconds, thinned(losses), depths if test_depth else None)


def thinned(losses: list[float]) -> list[tuple[int, float]]:
    """The curve at about 60 steps, evenly spaced on a log axis; each the mean of the steps around it."""
    steps = np.unique(np.geomspace(1, len(losses), CURVE_POINTS).round().astype(int))
    values = np.array(losses)
    return [
        (int(step), round(float(values[max(0, step - 1 - step // 20) : step + step // 20].mean()), 4))
        for step in steps
    ]


def depths_file(folder: Path) -> Path:
    return folder / "depths.json"


def read_depths(folder: Path) -> dict[int, float] | None:
    try:
        content = json.loads(depths_file(folder).read_text(encoding="utf-8"))
    except OSError:
        return None
    return {int(depth): float(loss) for depth, loss in content.items()}
