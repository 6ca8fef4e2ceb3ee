"""Which checkpoint a run is continued from: the last that is whole, if it was made by this very run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from srmlab.errors import UserError
from srmlab.files import sweep_leftovers
from srmlab.storage.run_directory import RunDirectory
from srmlab.storage.weights import (
    CheckpointError,
    checkpoint_steps,
    latest_checkpoint,
    no_checkpoint,
    read_json,
)
from srmlab.training.config import TrainConfig, identity, refuse_changes
from srmlab.training.run import RunConfig


def choose_checkpoint(run: RunDirectory, plan: RunConfig, report: Callable[[str], None]) -> Path | None:
    """None if there is none yet; `report` gets one line for every damaged one that is passed over."""
    sweep_leftovers(run.checkpoints)
    found = latest_checkpoint(run.checkpoints, report)
    if found is not None:
        refuse_foreign(found, run, plan)
    elif checkpoint_steps(run.checkpoints):
        raise CheckpointError(no_checkpoint(run.path))
    return found


def refuse_foreign(checkpoint: Path, run: RunDirectory, plan: RunConfig) -> None:
    about = read_json(checkpoint / "training.json")
    model = read_json(checkpoint / "config.json")["model"]
    training = TrainConfig.from_dict(about["training"])
    fix = (
        f"{checkpoint} was made by something else than {run.path / 'run.json'} says; restore one or the other"
    )
    refuse_changes("the model", model, plan.model.to_dict(), fix)
    refuse_changes("the training config", identity(training), identity(plan.training), fix)
    if about["data"]["fingerprint"] != plan.data_fingerprint:
        raise UserError(f"the data has changed since {checkpoint} was saved: {fix}")
