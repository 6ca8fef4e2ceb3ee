"""What a run is: the model, how it is trained, on which data, from which weights; a typed `run.json`.

    run = RunConfig.read("runs/nano")
    run.training.lr

`srmlab.storage.run_directory` has the folder around it.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import srmlab
from srmlab.errors import UserError
from srmlab.files import sweep_leftovers
from srmlab.models import ModelConfig, config_from_dict
from srmlab.storage import weights
from srmlab.storage.run_directory import RunDirectory
from srmlab.training.config import TrainConfig, computation, refuse_changes


@dataclass(frozen=True)
class InitialWeights:
    """What a run begins with instead of random weights; see `srmlab.training.initial`."""

    path: Path  # a checkpoint or an export
    sha256: str  # of its SHA256SUMS, and so of all that is in it


@dataclass(frozen=True)
class RunConfig:
    """What `run.json` says."""

    model: ModelConfig
    training: TrainConfig
    data: Path
    data_fingerprint: str
    preset: str | None = None
    init_from: InitialWeights | None = None
    puzzles: str | None = None  # the kind of puzzle, if it is not text

    def to_dict(self) -> dict[str, Any]:
        start = self.init_from
        return {
            "preset": self.preset,
            "init_from": {"path": str(start.path), "sha256": start.sha256} if start else None,
            "model": self.model.to_dict(),
            "training": self.training.to_dict(),
            "data": {"path": str(self.data), "fingerprint": self.data_fingerprint}
            | ({"puzzles": self.puzzles} if self.puzzles else {}),
            "versions": {
                "srmlab": srmlab.__version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> RunConfig:
        start = content.get("init_from")
        return cls(
            model=config_from_dict(content["model"]),
            training=TrainConfig.from_dict(content["training"]),
            data=Path(content["data"]["path"]),
            data_fingerprint=content["data"]["fingerprint"],
            preset=content.get("preset"),
            init_from=InitialWeights(Path(start["path"]), start["sha256"]) if start else None,
            puzzles=content["data"].get("puzzles"),
        )

    @classmethod
    def read(cls, path: str | Path) -> RunConfig:
        """What a run was started as."""
        run = RunDirectory(path)
        record = run.record()
        try:
            return cls.from_dict(record)
        except UserError as error:
            raise UserError(f"{run.path / 'run.json'}: {error}") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{run.path / 'run.json'} cannot be read ({error!r}): restore it from a backup"
            ) from None

    def create(self, run: RunDirectory) -> None:
        """Begin the run on disk."""
        created = {"created": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine()}
        run.create(self.to_dict() | created, None if self.puzzles else self.data / "tokenizer")

    def refuse_other(self, other: RunConfig, fix: str) -> None:
        """A run continues as what it was started as: only the fields of execution may differ in `other`."""
        refuse_changes("the model", self.model.to_dict(), other.model.to_dict(), fix)
        refuse_changes("the training config", computation(self.training), computation(other.training), fix)
        if self.data_fingerprint != other.data_fingerprint:
            raise UserError(f"the data has changed ({other.data} is not what the run started on): {fix}")
        if self.init_from != other.init_from:
            was, given = (start.path if start else "none" for start in (self.init_from, other.init_from))
            raise UserError(f"init_from has changed ({was} → {given}): {fix}")


def run_config(path: str | Path) -> RunConfig | None:
    """The run behind the path, if there is one: the path itself, or two folders above a checkpoint."""
    run = RunDirectory.find(path)
    return RunConfig.read(run.path) if run else None


def machine() -> str:
    """What computes here: the processor, its cores, the graphics cards and torch. No name of a host."""
    names = [platform.processor() or platform.machine()]
    if (about := Path("/proc/cpuinfo")).is_file():
        lines = about.read_text(encoding="utf-8", errors="replace").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")] or names
    cores = os.cpu_count() or 1
    parts = [names[0], f"{cores} core{'s' * (cores > 1)}"]
    if torch.cuda.is_available():
        parts.append(f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}")
    return ", ".join([*parts, f"torch {torch.__version__}"])


def choose_checkpoint(run: RunDirectory, plan: RunConfig, report: Callable[[str], None]) -> Path | None:
    """The last checkpoint that is whole, if it was made by this very run; None if there is none yet.

    `report` gets one line for every damaged one that is passed over.
    """
    sweep_leftovers(run.checkpoints)
    found = weights.latest_checkpoint(run.checkpoints, report)
    if found is None:
        if weights.checkpoint_steps(run.checkpoints):
            raise weights.CheckpointError(weights.no_checkpoint(run.path))
        return None
    about = weights.read_json(found / "training.json")
    saved = replace(
        plan,
        model=config_from_dict(weights.read_json(found / "config.json")["model"]),
        training=TrainConfig.from_dict(about["training"]),
        data_fingerprint=about["data"]["fingerprint"],
    )
    record = run.path / "run.json"
    saved.refuse_other(plan, f"{found} belongs to another run than {record}; restore one or the other")
    return found
