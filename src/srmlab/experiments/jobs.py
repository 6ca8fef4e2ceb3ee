"""Jobs: one run of one cell with one seed, written to a plan that any process on any machine can take up.

    python -m srmlab.experiments.jobs PLAN 3      does the plan's job 3, or what is left of it

A job that was stopped goes on where it was, and one that is done does nothing: whoever dispatches them needs
no memory.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from srmlab.errors import UserError
from srmlab.experiments.experiment import Cell, Experiment
from srmlab.experiments.results import depths_file, read_run
from srmlab.files import write_file
from srmlab.models import config_from_dict
from srmlab.training.config import TrainConfig

DEPTH_WINDOWS = 64  # of validation text, for the loss at other depths


@dataclass(frozen=True)
class Job:
    label: str  # "ABCABC, seed 1"
    run: str  # folder
    data: str
    model: dict[str, Any]
    training: dict[str, Any]
    test_depth: int

    def cell(self) -> Cell:
        training = TrainConfig.from_dict(self.training)
        return Cell(name=self.label, model=config_from_dict(self.model), training=training)

    @property
    def done(self) -> bool:
        cell = self.cell()
        return read_run(Path(self.run), cell, cell.training.seed, self.test_depth) is not None


def make_jobs(experiment: Experiment, cells: list[Cell], seeds: int, out: Path, data: Path) -> list[Job]:
    """Seed by seed, so that every cell has a run before any has two; cells that are the same share theirs."""
    jobs: dict[str, Job] = {}
    for seed in range(seeds):
        for cell in cells:
            seeded, run = cell.seeded(seed), str(cell.run_folder(out, seed).absolute())
            if run not in jobs:
                jobs[run] = Job(
                    label=f"{cell.name}, seed {seed}",
                    run=run,
                    data=str(data.absolute()),
                    model=seeded.model.to_dict(),
                    training=seeded.training.to_dict(),
                    test_depth=experiment.test_depth,
                )
    return list(jobs.values())


def write_plan(path: Path, jobs: list[Job]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps([asdict(job) for job in jobs], indent=1) + "\n")


def read_plan(path: str | Path) -> list[Job]:
    try:
        return [Job(**job) for job in json.loads(Path(path).read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} is no plan of a sweep ({error}): start `srmlab sweep` again") from None


def run_job(plan: str, number: int) -> int:
    """Train and measure what job `number` still lacks; the exit code of a shell."""
    from srmlab.training.start import train

    job = read_plan(plan)[number]
    cell, run = job.cell(), Path(job.run)
    if read_run(run, cell, cell.training.seed) is None:
        result = train(cell.training, cell.model, job.data, run, resume=True)
        if result.signal:
            return result.exit_code
    if job.test_depth and not depths_file(run).is_file():
        measure_depths(run, job.data, job.test_depth)
    return 0


def measure_depths(run: Path, data: str, max_depth: int) -> None:
    """Validation loss of the trained weights at 1 … max_depth layers, to RUN/depths.json."""
    from srmlab.analysis import depth
    from srmlab.data import evaluation_batches, open_tokens
    from srmlab.storage import load

    model = load(run)
    tokens = open_tokens(data).val
    context = model.config.context
    batches = list(evaluation_batches(tokens, context, 8, DEPTH_WINDOWS * context))
    found = depth(model, batches, max_depth=max_depth)
    losses = {int(d): float(loss) for d, loss in zip(found.depths, found.loss, strict=True)}
    write_file(depths_file(run), json.dumps(losses) + "\n")


if __name__ == "__main__":
    try:
        sys.exit(run_job(sys.argv[1], int(sys.argv[2])))
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
