"""Which checkpoint a run is continued from: the last that is whole, if it was made by this very run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from srmlab.files import sweep_leftovers
from srmlab.models import config_from_dict
from srmlab.storage.run_directory import RunDirectory
from srmlab.storage.weights import (
    CheckpointError,
    checkpoint_steps,
    latest_checkpoint,
    no_checkpoint,
    read_json,
)
from srmlab.training.config import TrainConfig
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
    saved = replace(
        plan,
        model=config_from_dict(read_json(checkpoint / "config.json")["model"]),
        training=TrainConfig.from_dict(about["training"]),
        data_fingerprint=about["data"]["fingerprint"],
    )
    record = run.path / "run.json"
    saved.refuse_other(plan, f"{checkpoint} belongs to another run than {record}; restore one or the other")
