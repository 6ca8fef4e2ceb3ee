"""The run directory: one folder holds all there is to know about a run.

    RUN/run.json          model, training and data config, versions; written once
    RUN/metrics.jsonl     one line a step
    RUN/checkpoints/      step-N folders, the last few
    RUN/tokenizer/        the data's tokenizer
    RUN/.lock             held by the process that trains

A second process on the same run is refused. The system lets go of the lock even after a kill.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import platform
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import srmlab
from srmlab.data import TokenData
from srmlab.errors import UserError
from srmlab.models import ModelConfig, config_from_dict
from srmlab.training.config import TrainConfig, identity, refuse_changes
from srmlab.training.files import sync, umask, write_file

FORMAT = 1


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

    def to_dict(self) -> dict[str, Any]:
        start = self.init_from
        return {
            "format": FORMAT,
            "preset": self.preset,
            "init_from": {"path": str(start.path), "sha256": start.sha256} if start else None,
            "model": self.model.to_dict(),
            "training": self.training.to_dict(),
            "data": {"path": str(self.data), "fingerprint": self.data_fingerprint},
            "versions": {
                "srmlab": srmlab.__version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
        }

    def refuse_other(self, other: RunConfig, run: Path) -> None:
        """A run goes on as what it was begun as: only the fields of execution may differ in `other`."""
        fix = f"resume with what {run / 'run.json'} says, or start a new run"
        refuse_changes("the model", self.model.to_dict(), other.model.to_dict(), fix)
        refuse_changes("the training config", identity(self.training), identity(other.training), fix)
        if self.data_fingerprint != other.data_fingerprint:
            raise UserError(f"the data has changed ({other.data} is not what the run was begun on): {fix}")
        if self.init_from != other.init_from:
            was, given = (start.path if start else "none" for start in (self.init_from, other.init_from))
            raise UserError(f"init_from has changed ({was} → {given}): {fix}")


class RunDirectory:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.tokenizer = self.path / "tokenizer"
        self.metrics = self.path / "metrics.jsonl"

    def exists(self) -> bool:
        return (self.path / "run.json").is_file()

    def refuse_occupied(self) -> None:
        if self.exists():
            raise UserError(
                f"{self.path} is a run already: continue it with `srmlab resume {self.path}`, "
                "or choose another --out"
            )
        if self.path.is_file() or (self.path.is_dir() and any(self.path.iterdir())):
            raise UserError(f"{self.path} exists and is not empty: choose another --out")

    def create(self, config: RunConfig, data: TokenData) -> None:
        """Make the folder, under another name until it is complete: half a run is never called a run."""
        content = config.to_dict() | {"created": datetime.now(UTC).isoformat(timespec="seconds")}
        temporary: Path | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=f".writing-{self.path.name}-", dir=self.path.parent))
            temporary.chmod(0o777 & ~umask())
            (temporary / "checkpoints").mkdir()
            shutil.copytree(data.path / "tokenizer", temporary / "tokenizer")
            (temporary / "metrics.jsonl").touch()
            write_file(temporary / "run.json", json.dumps(content, indent=2) + "\n")
            temporary.rename(self.path)
            sync(self.path.parent)
        except OSError as error:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
            raise UserError(f"cannot write {self.path} ({error.strerror}): choose another --out") from None

    def read(self) -> RunConfig:
        file = self.path / "run.json"
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content["format"] > FORMAT:
                raise UserError(f"format {content['format']}: this version reads {FORMAT}; upgrade srmlab")
            start = content.get("init_from")
            return RunConfig(
                model=config_from_dict(content["model"]),
                training=TrainConfig.from_dict(content["training"]),
                data=Path(content["data"]["path"]),
                data_fingerprint=content["data"]["fingerprint"],
                preset=content.get("preset"),
                init_from=InitialWeights(Path(start["path"]), start["sha256"]) if start else None,
            )
        except FileNotFoundError:
            raise UserError(
                f"{self.path} is no run (it has no run.json): give the --out of an `srmlab train`"
            ) from None
        except UserError as error:
            raise UserError(f"{file}: {error}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{file} cannot be read ({error!r}): restore it from a backup") from None

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for this process alone."""
        try:
            file = open(self.path / ".lock", "w")  # noqa: SIM115
        except OSError as error:
            raise UserError(
                f"cannot write to {self.path} ({error.strerror}): give yourself permission, or copy the run"
            ) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"{self.path} is being trained by another process: wait for it to end"
                ) from None
            yield


def run_config(path: Path) -> RunConfig | None:
    """The run behind the path, if there is one: the path itself, or two folders above a checkpoint."""
    for folder in (path, path.parent.parent):
        if RunDirectory(folder).exists():
            return RunDirectory(folder).read()
    return None
