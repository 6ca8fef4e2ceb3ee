"""The run directory: one folder holds all there is to know about a run.

    RUN/run.json          model, training and data config, versions; written once
    RUN/tokenizer/        the data's tokenizer; puzzles have none
    RUN/run.sha256        the checksums of these: `sha256sum -c run.sha256`; every read checks them
    RUN/metrics.jsonl     one line a step
    RUN/checkpoints/      step-N folders, the last few
    RUN/.lock             held by the process that trains

The first two never change; the rest may grow, and so may what analyses add beside it. A second process on the
same run is refused. The system lets go of the lock even after a kill. Runs from before there was a seal are
read without one.

What `run.json` means is for `srmlab.training.run` to say: here it is a mapping.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from srmlab.errors import UserError, reason
from srmlab.files import DamagedFile, check_files, files_in, occupied, seal_files, sync, umask, write_file

FORMAT = 1
RECORD, SEAL = "run.json", "run.sha256"


class RunDirectory:
    """The folder of a run, and where in it things are."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.tokenizer = self.path / "tokenizer"
        self.metrics = self.path / "metrics.jsonl"

    @classmethod
    def find(cls, path: str | Path) -> RunDirectory | None:
        """The run behind a path, if there is one: the path itself, or the one a checkpoint belongs to."""
        return next((run for run in map(cls, homes(path)) if run.exists()), None)

    def exists(self) -> bool:
        return (self.path / RECORD).is_file()

    def refuse_occupied(self) -> None:
        if self.exists():
            raise UserError(
                f"{self.path} is already a run: continue it with `srmlab resume {self.path}`, "
                "or choose another --out"
            )
        if occupied(self.path):
            raise UserError(f"{self.path} exists and is not empty: choose another --out")

    def create(self, record: Mapping[str, Any], tokenizer: Path | None) -> None:
        """Make the folder, under another name until it is complete: half a run is never called a run."""
        temporary: Path | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=f".writing-{self.path.name}-", dir=self.path.parent))
            temporary.chmod(0o777 & ~umask())
            (temporary / "checkpoints").mkdir()
            if tokenizer is not None:
                shutil.copytree(tokenizer, temporary / "tokenizer")
            (temporary / "metrics.jsonl").touch()
            write_file(temporary / RECORD, json.dumps({"format": FORMAT, **record}, indent=2) + "\n")
            seal_files(temporary, [temporary / RECORD, *files_in(temporary / "tokenizer")], SEAL)
            temporary.rename(self.path)
            sync(self.path.parent)
        except OSError as error:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
            raise UserError(f"cannot write {self.path} ({reason(error)}): choose another --out") from None

    def record(self) -> dict[str, Any]:
        """What `run.json` says, as it was written."""
        file = self.path / RECORD
        try:
            text = file.read_bytes()
            self.check_seal()
            content = json.loads(text)
            if content["format"] > FORMAT:
                raise UserError(
                    f"{file}: format {content['format']}: this version reads {FORMAT}; upgrade srmlab"
                )
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(
                f"{self.path} is not a run (it has no run.json): give the --out of an `srmlab train`"
            ) from None
        except UserError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{file} cannot be read ({error!r}): restore it from a backup") from None
        return content

    def check_seal(self) -> None:
        """Refuse a changed bit in `run.json` or the tokenizer, if there is a seal."""
        if (self.path / SEAL).exists():
            try:
                check_files(self.path, SEAL)
            except DamagedFile as error:
                raise UserError(
                    f"{self.path}: {error}: restore it from a backup, "
                    f"or delete {SEAL} if you changed it on purpose"
                ) from None

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for this process alone."""
        try:
            file = open(self.path / ".lock", "w")  # noqa: SIM115
        except OSError as error:
            raise UserError(
                f"cannot write to {self.path} ({error.strerror}): fix its permissions, or copy the run"
            ) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"{self.path} is being trained by another process: wait for it to end"
                ) from None
            yield


def homes(path: str | Path) -> Iterator[Path]:
    """The folders that may hold what belongs to a model: its own and, for a checkpoint, the run's."""
    yield Path(path)
    if (checkpoints := Path(path).absolute().parent).name == "checkpoints":
        yield checkpoints.parent
