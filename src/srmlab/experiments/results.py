"""What came out of an experiment: every run's losses, one table over the seeds, and claims that are decided
by numbers (evidence.py) or left undecided.

Losses are in nats per token, on validation text. A claim that compares cells is undecided, whatever the
numbers, where the comparison breaks a rule: rates that were not searched or are best at the edge of the grid,
or a validation that read only the head of the text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from srmlab.errors import UserError
from srmlab.experiments.evidence import LEVEL, MARGIN, Claim, Difference, Verdict, paired
from srmlab.experiments.experiment import Cell, Experiment, Scale
from srmlab.experiments.rates import Search
from srmlab.files import write_file
from srmlab.models import config_from_dict, outline
from srmlab.progress import duration

FORMAT = 1
UNSEARCHED = "rates were not searched"
EQUAL = 1.03  # sizes within 3 % of each other are called equal


@dataclass(frozen=True)
class Run:
    seed: int
    loss: float  # the mean of the last steps
    val_loss: float
    seconds: float  # of training alone
    curve: list[tuple[int, float]]  # step and smoothed training loss
    depths: dict[int, float] | None = None  # validation loss by layers run, where it was measured
    exits: list[dict[str, Any]] | None = None  # and with early exit or routing: see analysis.spending
    learned: dict[str, tuple[float, float]] | None = None  # statistics, trained and untrained
    profiles: dict[str, tuple[list[float], list[float]]] | None = None  # curves over layers, both too
    solved: float | None = None  # of puzzles: the share of the test boards, after the last segment
    machine: str | None = None  # what it was run on, if known

    @classmethod
    def of(cls, content: dict[str, Any]) -> Run:
        """What was saved of one: JSON has no tuples, and no numbers as keys."""
        read: dict[str, Any] = {"curve": [(int(step), float(loss)) for step, loss in content["curve"]]}
        if depths := content.get("depths"):
            read["depths"] = {int(depth): float(loss) for depth, loss in depths.items()}
        if learned := content.get("learned"):
            read["learned"] = {name: (float(a), float(b)) for name, (a, b) in learned.items()}
        return cls(**content | read)

    def has(self, measures: Iterable[str]) -> bool:
        return all(getattr(self, name) is not None for name in measures)


@dataclass(frozen=True)
class CellResult:
    """A cell with its runs."""

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
    rates: dict[float, float] = field(default_factory=dict)  # rate → the first seed's loss, if searched
    diverged: list[int] = field(default_factory=list)  # seeds at this rate whose loss was not finite

    @property
    def cell(self) -> Cell:
        """What was trained."""
        return Cell.of(self.name, self.model, self.training)

    @property
    def losses(self) -> np.ndarray:
        return np.array([run.val_loss for run in self.runs])

    @property
    def by_seed(self) -> dict[int, float]:
        return {run.seed: run.val_loss for run in self.runs}

    @property
    def mean(self) -> float:
        return float(self.losses.mean())

    @property
    def std(self) -> float:
        """Over seeds; nan for one."""
        return float(self.losses.std(ddof=1)) if len(self.runs) > 1 else math.nan

    @property
    def solved(self) -> float | None:
        """The share of the test boards, mean over seeds; None unless it is known of every run."""
        known = [run.solved for run in self.runs if run.solved is not None]
        return float(np.mean(known)) if known and len(known) == len(self.runs) else None

    @property
    def flops(self) -> int:
        """Of the whole run."""
        return self.tokens * self.training_flops_per_token

    @property
    def rate(self) -> str:
        known = f"{self.training['lr']:g}" if "lr" in self.training else "?"
        if not self.rates:
            return f"{known}, given"
        return known if Search(self.rates).interior else f"{known}, edge"

    @property
    def breaches(self) -> list[str]:
        """The rules of evidence that its runs do not keep."""
        found = []
        if not self.rates:
            found.append(UNSEARCHED)
        elif not Search(self.rates).interior:
            found.append(f"the best rate of {self.name} is at the edge of its grid")
        if self.training.get("eval_windows", "first") != "spread":
            found.append("validation read the head of the text")
        if self.diverged:
            found.append(f"{self.name} diverged with seed {', '.join(map(str, self.diverged))}")
        return found


@dataclass(frozen=True)
class SweepResult:
    """What came out of an experiment: its cells, their runs, and what follows from them."""

    experiment: str
    scale: Scale
    planned: int  # runs
    data: dict[str, Any]
    versions: dict[str, str]
    cells: list[CellResult]  # those with at least one finished run

    def __contains__(self, name: object) -> bool:
        return any(cell.name == name for cell in self.cells)

    def __getitem__(self, name: str) -> CellResult:
        for cell in self.cells:
            if cell.name == name:
                return cell
        raise KeyError(f"{name!r} has not been run; there are {[cell.name for cell in self.cells]}")

    @property
    def finished(self) -> int:
        return sum(len(cell.runs) for cell in self.cells)

    @property
    def tokens(self) -> str:
        """What a run has seen, in words; from the least to the most, where cells differ."""
        seen = sorted({cell.tokens for cell in self.cells}) or [0]
        return f"{seen[0]:,} tokens" if len(seen) == 1 else f"{seen[0]:,} to {seen[-1]:,} tokens"

    @property
    def machines(self) -> list[str]:
        """What the runs were made on, as far as that was recorded."""
        return sorted({run.machine for cell in self.cells for run in cell.runs if run.machine})

    def breaches(self, experiment: Experiment) -> list[str]:
        """The rules that some cell does not keep; where cells are not compared they need no search."""
        found = dict.fromkeys(breach for cell in self.cells for breach in cell.breaches)
        return [breach for breach in found if experiment.compares or breach != UNSEARCHED]

    # --- claims -------------------------------------------------------------------------------------------

    def difference(self, a: str, b: str, level: float = LEVEL) -> Difference | None:
        """a's loss less b's, paired by seed; None if a cell or a second pair is missing."""
        if a not in self or b not in self:
            return None
        return paired(self[a].by_seed, self[b].by_seed, level)

    def claim(
        self,
        text: str,
        test: Callable[[Difference | None, float], Verdict],
        a: str,
        b: str,
        of: int = 1,
    ) -> Claim:
        """`test` of a against b, and the number that decides it. One of several claims that are made
        together (`of` them) has a wider interval, Bonferroni's, so that all hold at once.
        """
        level = 1 - (1 - LEVEL) / of
        numbers = f"{self.compare(a, b, level).removesuffix('.')}; margin {MARGIN:g}"
        return self.decide(text, test(self.difference(a, b, level), MARGIN), (a, b), numbers)

    def decide(self, text: str, verdict: Verdict, cells: Iterable[str], numbers: str) -> Claim:
        """The claim with that verdict, if the cells have been run and keep the rules."""
        names = list(cells)
        if missing := [name for name in names if name not in self]:
            return Claim(text, "undecided", f"{missing[0]} has not been run", missing[0])
        if broken := list(dict.fromkeys(breach for name in names for breach in self[name].breaches)):
            return Claim(text, "undecided", f"{', '.join(broken)} ({numbers})")
        return Claim(text, verdict, numbers)

    # --- sentences; empty where a cell is missing ---------------------------------------------------------

    def compare(self, a: str, b: str, level: float = LEVEL) -> str:
        """a's loss against b's, over the seeds that both have, and what is equal between them."""
        if a not in self or b not in self:
            return ""
        found = self.difference(a, b, level)
        ours, theirs = self[a].by_seed, self[b].by_seed
        both = ours.keys() & theirs.keys() if found else ()
        mean_a, mean_b = (float(np.mean([of[s] for s in both or of])) for of in (ours, theirs))
        size = found or f"{mean_a - mean_b:+.3f} (no two seeds in common: no interval)"
        percent = "" if level == LEVEL or found is None else f" ({100 * level:.1f} % interval)"
        losses = f"{a} at {mean_a:.3f} against {b} at {mean_b:.3f}"
        return f"{losses}: {size}{percent}, at {self.equalities(a, b)}."

    def equalities(self, a: str, b: str) -> str:
        """Which of parameters, tokens and FLOP two cells have in common, and how the others compare."""
        sizes = {
            "parameters": self[a].parameters / self[b].parameters,
            "tokens": self[a].tokens / self[b].tokens,
            "FLOP": self[a].flops / self[b].flops,
        }
        equal = [name for name, ratio in sizes.items() if 1 / EQUAL <= ratio <= EQUAL]
        other = [f"{ratio:.3g} × the {name}" for name, ratio in sizes.items() if name not in equal]
        listed = " and ".join([", ".join(equal[:-1]), equal[-1]] if len(equal) > 1 else equal)
        return ", ".join([*([f"equal {listed}"] if equal else []), *other])

    def ranking(self) -> str:
        known = sorted((cell.mean, cell.name) for cell in self.cells)
        return " < ".join(f"{name} {mean:.3f}" for mean, name in known) + "." if len(known) > 1 else ""

    def spread(self, *names: str) -> str:
        known = sorted((self[name].mean, name) for name in names if name in self)
        if len(known) < 2:
            return ""
        (low, best), (high, worst) = known[0], known[-1]
        return f"From {low:.3f} ({best}) to {high:.3f} ({worst}), a spread of {high - low:.3f}."

    def share(self, first: str, middle: str, last: str) -> str:
        """How much of the way from `first` down to `last` is done at `middle`, if that way is clear."""
        whole = self.difference(last, first)
        if middle not in self or whole is None or whole.high >= 0:
            return ""
        part = self[first].mean - self[middle].mean
        return (
            f"{middle} has {100 * part / -whole.mean:.0f} % of the {-whole.mean:.3f} gained from {first} to "
            f"{last}."
        )

    def best_of(self, series: str) -> str:
        """Where on the axis a series has its least loss."""
        known = [cell for cell in self.cells if cell.series == series]
        if len(known) < 2:
            return ""
        best = min(known, key=lambda cell: cell.mean)
        values = ", ".join(f"{cell.x:g}: {cell.mean:.3f}" for cell in known)
        edge = ", at the edge of the grid" if best in (known[0], known[-1]) else ""
        return f"{series}: best {best.mean:.3f} at {best.x:g}{edge} ({values})."

    def depth_line(self, name: str) -> str:
        """The loss at other depths than the trained one."""
        if name not in self:
            return ""
        measured = [run.depths for run in self[name].runs if run.depths]
        if not measured:
            return ""
        trained, unit = levels(self[name])
        mean = {d: float(np.mean([depths[d] for depths in measured])) for d in measured[0]}
        best, last = min(mean, key=lambda d: mean[d]), max(mean)
        half = max(1, trained // 2)
        beyond = f", {mean[last]:.3f} at {last}" if last > trained else ""
        return (
            f"{name}: {mean[half]:.3f} at {half} {unit if half > 1 else unit.removesuffix('s')}, "
            f"{mean[trained]:.3f} at the trained {trained}{beyond}; least at {best}."
        )

    # --- tables -------------------------------------------------------------------------------------------

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows, as text, the best first unless the cells lie on an axis. The columns training,
        validation and paper are losses; tokens, FLOP and time are those of a whole run. Boards are those
        solved, of puzzles.
        """
        heads = ["", "parameters", "tokens", "FLOP", "rate", "time", "training", "validation", "seeds"]
        ranked = all(cell.x is None for cell in self.cells)
        cells = sorted(self.cells, key=lambda cell: cell.mean) if ranked else self.cells
        rows = [table_row(cell) for cell in cells]
        if any(cell.solved is not None for cell in cells):
            heads = [*heads, "boards"]
            shares = ["" if cell.solved is None else f"{100 * cell.solved:.1f} %" for cell in cells]
            rows = [[*row, share] for row, share in zip(rows, shares, strict=True)]
        if any(cell.paper is not None for cell in cells):
            heads = [*heads, "paper"]
            printed = ["" if cell.paper is None else f"{cell.paper:.2f}" for cell in cells]
            rows = [[*row, paper] for row, paper in zip(rows, printed, strict=True)]
        return heads, rows

    def markdown(self, experiment: Experiment) -> str:
        heads, rows = self.table()
        margin = ""
        if experiment.compares:
            margin = (
                "; that there is no difference holds if the whole interval is within "
                f"±{MARGIN:g} nats, the margin named beforehand"
            )
        unit = "Training and validation are losses in nats per token"
        if any(cell.paper is not None for cell in self.cells):
            unit += ", as is paper (on OpenWebText)"
        if "depths" in experiment.measures:
            unit += "; those at other depths are measured on fewer tokens"
        if experiment.puzzles:
            unit = (
                "Validation is the loss in nats per cell, after the last segment; training is the "
                "objective, which adds half of the loss of halting"
            )
            if any(cell.solved is not None for cell in self.cells):
                unit += "; boards are the test boards solved, mean over seeds"
        lines = [f"# {experiment.name}, {self.scale}", "", experiment.question, ""]
        if experiment.claim:
            lines += [f"The paper: {experiment.claim}", ""]
        lines += markdown_table([heads, *rows], numbers=True)
        if experiment.statistics:
            lines += ["", *markdown_table(experiment.statistics(self))]
        lines += ["", "What came out:", "", *(f"- {line}" for line in self.verdict(experiment)), ""]
        if broken := self.breaches(experiment):
            lines += [
                f"**These runs do not meet the rules of evidence** ({'; '.join(broken)}): they are a "
                "record of what was run, and decide nothing.",
                "",
            ]
        counted = ", ".join(f"{name} {loss:.3f}" for name, loss in self.data.get("references", {}).items())
        machines = f" Known to have run on: {'; '.join(self.machines)}." if self.machines else ""
        lines += [
            f"{self.finished} of {self.planned} runs, each on {self.tokens} of {self.data['source']} "
            f"({self.data['vocab_size']} token ids). {unit}; ± is the standard deviation over seeds; tokens, "
            "FLOP and time ([h:]min:s) are those of one whole run. Differences are paired by "
            f"seed, with a 95 % interval where no other is given{margin}.",
            "",
            *([f"For comparison, on the same data: {counted}.", ""] if counted else []),
            f"Made by {self.command}.{machines}",
        ]
        return "\n".join(lines) + "\n"

    @property
    def command(self) -> str:
        """What makes this table."""
        seeds = sorted({len(cell.runs) for cell in self.cells}, reverse=True) or [0]
        data = f" --data {self.data['folder']}" if "folder" in self.data else ""
        command = f"`srmlab sweep {self.experiment} --scale {self.scale}{data} --seeds {seeds[0]}`"
        fewer = " or ".join(f"`--seeds {count}`" for count in seeds[1:])
        return f"{command}, with {fewer} and `--only` for the cells that have fewer" if fewer else command

    def verdict(self, experiment: Experiment) -> list[str]:
        """What came out, line by line; claims that wait for other cells share the last."""
        lines = [line for line in experiment.verdict(self) if str(line)]
        waiting = [line for line in lines if isinstance(line, Claim) and line.missing]
        said = [str(line) for line in lines if line not in waiting]
        if waiting:
            cells = "; ".join(dict.fromkeys(claim.missing for claim in waiting))
            claims = ", ".join(f"“{claim.text}”" for claim in waiting)
            said.append(f"Open, because these have not been run ({cells}): {claims}.")
        return said or ["Not enough runs for a verdict yet."]

    # --- on disk ------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        content = {"format": FORMAT, **asdict(self)}
        for cell in content["cells"]:  # JSON has no infinity
            cell["rates"] = {
                str(rate): loss if math.isfinite(loss) else None for rate, loss in cell["rates"].items()
            }
        return content

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
                raise UserError(f"{file} has another format: write it again with `srmlab sweep`")
            return cls(**(content | {"cells": [_cell(cell) for cell in content["cells"]]}))
        except UserError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{file} cannot be read ({error}): write it again with `srmlab sweep`") from None


def levels(cell: CellResult) -> tuple[int, str]:
    """The depth a cell was trained at, and what it counts."""
    if "depth" in cell.model:
        return int(cell.model["depth"]), "layers"
    model = outline(config_from_dict(cell.model))
    return model.depth, model.level_name


def table_row(cell: CellResult) -> list[str]:
    spread = "" if math.isnan(cell.std) else f" ± {cell.std:.3f}"
    return [
        cell.name,
        f"{cell.parameters:,}",
        short(cell.tokens),
        short(cell.flops),
        cell.rate,
        duration(float(np.mean([run.seconds for run in cell.runs]))),
        f"{float(np.mean([run.loss for run in cell.runs])):.3f}",
        f"{cell.mean:.3f}{spread}",
        f"{len(cell.runs)}{f', {len(cell.diverged)} diverged' if cell.diverged else ''}",
    ]


def markdown_table(rows: list[list[str]], numbers: bool = False) -> list[str]:
    """The lines of a table, whose first row is its head; `numbers` in all columns but the first."""
    head, *others = (f"| {' | '.join(row)} |" for row in rows)
    return [head, f"|---|{('--:|' if numbers else '---|') * (len(rows[0]) - 1)}", *others]


def short(number: float) -> str:
    """
    >>> short(307_200), short(4_990_000), short(1.23e9), short(2.6e13), short(9.98e13)
    ('0.31M', '5.0M', '1.2G', '26T', '100T')
    """
    units = {"M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
    unit = next((unit for unit, size in reversed(units.items()) if number >= size), "M")
    value = number / units[unit]
    return f"{value:.0f}{unit}" if value >= 99.5 else f"{value:#.2g}".removesuffix(".") + unit


def _cell(content: dict[str, Any]) -> CellResult:
    rates = {
        float(rate): math.inf if loss is None else float(loss)
        for rate, loss in content.get("rates", {}).items()
    }
    return CellResult(**(content | {"runs": [Run.of(run) for run in content["runs"]], "rates": rates}))
