"""Jobs: one run of one cell with one seed, written to a plan that any process on any machine can take up.

    python -m srmlab.experiments.jobs PLAN 3      does the plan's job 3, or what is left of it

A job that was stopped goes on where it was, and one that is done does nothing: whoever dispatches them needs
no memory. A plan is named by what is in it and never changes, so several sweeps can share a folder, and a job
that waits in a queue finds what it was submitted for.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from srmlab.errors import UserError
from srmlab.experiments.experiment import Cell, Experiment
from srmlab.experiments.rates import FIRST_SEED
from srmlab.experiments.runs import Records, diverged, read_run
from srmlab.files import write_file


@dataclass(frozen=True)
class Job:
    label: str  # "ABCABC, seed 1"
    run: str  # folder
    data: str
    model: dict[str, Any]
    training: dict[str, Any]
    measures: tuple[str, ...]

    def cell(self) -> Cell:
        return Cell.of(self.label, self.model, self.training)

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do: it has finished, or its loss was not finite."""
        cell, run = self.cell(), Path(self.run)
        return read_run(run, cell, cell.training.seed, self.measures) is not None or diverged(run)


def make_jobs(
    experiment: Experiment, cells: list[Cell], seeds: int, records: Records, data: Path
) -> list[Job]:
    """What can be done now, seed by seed, so that every cell has a run before any has two; cells that are the
    same share theirs. Of a tuned cell, first the rates that its search lacks, then the seeds at the best.
    What was run elsewhere is not run again.
    """
    jobs: dict[str, Job] = {}

    def add(cell: Cell, seed: int, measures: tuple[str, ...], rate: str = "") -> None:
        seeded, run = cell.seeded(seed), str(records.folder(cell, seed).absolute())
        jobs.setdefault(
            run,
            Job(
                label=f"{cell.name}{rate}, seed {seed}",
                run=run,
                data=str(data.absolute()),
                model=seeded.model.to_dict(),
                training=seeded.training.to_dict(),
                measures=measures,
            ),
        )

    ready: list[Cell] = []
    for cell in cells:
        search = records.search(cell) if cell.tuned else None
        missing = search.missing(cell.training.lr) if search else []
        for rate in missing:
            add(cell.at(rate), FIRST_SEED, (), f", rate {rate:g}")
        if not missing:
            ready.append(cell.at(search.best) if search else cell)
    for seed in range(seeds):
        for cell in ready:
            if seed not in records.elsewhere(cell, experiment.measures):
                add(cell, seed, experiment.measures)
    return list(jobs.values())


def write_plan(folder: Path, name: str, jobs: list[Job]) -> Path:
    """The file of the plan: FOLDER/NAME-HASH.json."""
    content = json.dumps([asdict(job) for job in jobs], indent=1) + "\n"
    path = folder / f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:8]}.json"
    folder.mkdir(parents=True, exist_ok=True)
    write_file(path, content)
    return path


def read_plan(path: str | Path) -> list[Job]:
    try:
        return [
            Job(**job | {"measures": tuple(job["measures"])})
            for job in json.loads(Path(path).read_text(encoding="utf-8"))
        ]
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} is not the plan of a sweep ({error}): start `srmlab sweep` again") from None


def run_job(plan: str, number: int) -> int:
    """Train and measure what job `number` still lacks; the exit code of a shell."""
    from srmlab.experiments.measures import measure
    from srmlab.training.nonfinite import NonfiniteLoss
    from srmlab.training.start import train

    job = read_plan(plan)[number]
    cell, run = job.cell(), Path(job.run)
    if read_run(run, cell, cell.training.seed) is None:
        try:
            result = train(cell.training, cell.model, job.data, run, resume=True)
        except NonfiniteLoss as error:  # as an outcome: too high a rate is what a search looks for
            print(error, file=sys.stderr)
            return 0
        if result.signal:
            return result.exit_code
    measure(run, job.data, job.measures)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(run_job(sys.argv[1], int(sys.argv[2])))
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
