"""`srmlab resume RUN`: go on where a run was stopped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass
class Command:
    """Go on with a stopped run, from its last good checkpoint, to the same result as if it had never stopped.

    What decides the result is fixed by the run. How it is computed may change:

    Example:
        srmlab resume runs/nano
        srmlab resume runs/nano --on-nonfinite skip --checkpoint-every 50
        torchrun --nproc-per-node 2 --no-python srmlab resume runs/nano --strategy fsdp
    """

    run_directory: tyro.conf.Positional[Path]
    """The --out of an `srmlab train`."""
    data: Path | None = None
    """Where the data is now, if it has moved."""
    device: str | None = None
    strategy: Literal["auto", "single", "ddp", "fsdp"] | None = None
    accumulate: int | None = None
    compile: bool | None = None
    activation_checkpointing: bool | None = None
    on_nonfinite: Literal["stop", "skip", "rewind"] | None = None
    eval_every: int | None = None
    checkpoint_every: int | None = None
    keep_checkpoints: int | None = None
    log_every: int | None = None

    def run(self) -> None:
        from srmlab.cli.train import finish
        from srmlab.training.loop import resume

        options = {name: value for name, value in vars(self).items() if name not in ("run_directory", "data")}
        changes = {name: value for name, value in options.items() if value is not None}
        finish(resume(self.run_directory, data_dir=self.data, **changes))
