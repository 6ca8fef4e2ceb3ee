"""`srmlab resume RUN`: continue a run where it was stopped."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated

import tyro

from srmlab.errors import UserError
from srmlab.training.config import Computation, Execution


@dataclass
class Command:
    """Continue a stopped run from its last good checkpoint. The result is that of an uninterrupted run.

    Settings that affect the result cannot be changed. Those that only affect how it is computed can: the
    options below, which default to the run's values.

    Example:
        srmlab resume runs/nano
        srmlab resume runs/nano --on-nonfinite skip --checkpoint-every 50
        torchrun --nproc-per-node 2 --no-python srmlab resume runs/nano --strategy fsdp
    """

    run_directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run: the --out folder of `srmlab train`."""
    data: Path | None = None
    """Where the data is now, if it has moved."""
    execution: tyro.conf.OmitArgPrefixes[Execution] = field(default_factory=Execution)
    first: tyro.conf.Suppress[Path | None] = None  # the run that `execution` is of

    def run(self) -> None:
        from srmlab.cli.train import finish
        from srmlab.training.start import resume

        if self.first is not None and self.run_directory != self.first:
            raise UserError(f"give the run first: srmlab resume {self.run_directory} …")
        finish(resume(self.run_directory, data_dir=self.data, **vars(self.execution)))


def refuse_other_result(run: Path | None, arguments: list[str]) -> None:
    """Options of training that decide the result, as more steps would: what to do instead."""
    decide = {field.name for field in fields(Computation)}
    for option in (argument.partition("=")[0] for argument in arguments if argument.startswith("--")):
        if option.removeprefix("--").replace("-", "_") in decide or option.startswith("--model."):
            begin = f"`srmlab train --init-from {run or 'RUN'} {option} …` starts a new run from its weights"
            raise UserError(f"{option} would change the result of a run that is resumed: {begin}")


def defaults(arguments: list[str]) -> Command:
    """The command before its options: as the run was executed so far."""
    from srmlab.storage import RunDirectory
    from srmlab.training.config import execution
    from srmlab.training.run import RunConfig

    runs = (Path(argument) for argument in arguments if not argument.startswith("-"))
    first = next((path for path in runs if RunDirectory(path).exists()), None)
    refuse_other_result(first, arguments)
    saved = Execution() if first is None else execution(RunConfig.read(first).training)
    return Command(run_directory=tyro.MISSING, execution=saved, first=first)
