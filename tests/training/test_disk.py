"""Disk full, read-only folder, no permission: the old checkpoint is intact, the error is one clear line."""

import contextlib
import os
import resource
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from small_runs import MODEL, small_config, stop_after

from srmlab.errors import UserError
from srmlab.storage import RunDirectory
from srmlab.storage.weights import verify
from srmlab.training import resume, train


@pytest.fixture
def stopped(data, tmp_path, monkeypatch) -> Path:
    """A run that was stopped after step 5; its last checkpoint is step-5."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        train(small_config(), MODEL, data, run, show=False)
    return run


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A disk that is full after `size` bytes of any file (Python turns the signal into an OSError)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def without_permission(folder: Path, data: Path) -> Iterator[None]:
    """Somebody who may read `folder` but not write to it; root, who may always, becomes somebody else."""
    user = os.geteuid()
    locked = dict.fromkeys((folder, folder / "checkpoints", folder / ".lock"), 365)
    private = [path for path in (*folder.parents, *data.parents) if not path.stat().st_mode & 0o001]
    modes = {path: path.stat().st_mode for path in (*locked, *private)}
    for path in modes:
        path.chmod(locked.get(path, 0o755))
    try:
        if user == 0:
            os.seteuid(65534)
        yield
    finally:
        os.seteuid(user)
        for path, mode in modes.items():
            path.chmod(mode)


def check_refused_and_intact(run: Path, reason: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with pytest.raises(UserError, match=reason) as refused:
        resume(run, show=False)
    assert "\n" not in str(refused.value)
    verify(run / "checkpoints/step-5")
    left = {path: path.stat().st_mtime_ns for path in (run / "checkpoints").rglob("*")}
    assert left == {path: time for path, time in before.items() if path in left}


def test_a_full_disk_leaves_the_checkpoint_before(stopped):
    with files_of_at_most(8000):  # metrics fit, weights do not
        check_refused_and_intact(
            stopped, r"cannot write .*step-8 \(.*\): the checkpoints before it are intact"
        )
    assert resume(stopped, show=False).step == 12


def test_without_permission_nothing_is_touched(stopped, data):
    with without_permission(stopped, data):
        check_refused_and_intact(stopped, r"cannot write to .* \(Permission denied\)")
    assert resume(stopped, show=False).step == 12


def test_a_folder_that_cannot_be_written_is_refused_in_one_line(data, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*file/run \((File exists|Not a directory)\)"):
        train(small_config(), MODEL, data, tmp_path / "file/run", show=False)


def test_a_save_that_fails_half_way_leaves_nothing_behind(stopped, monkeypatch):
    import srmlab.training.checkpoint as checkpoint

    save_file, calls = checkpoint.save_file, []

    def second_write_fails(tensors, path):
        calls.append(path)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        save_file(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", second_write_fails)
    with pytest.raises(UserError, match=r"cannot write .*step-8 \(No space left on device\)"):
        resume(stopped, show=False)
    assert sorted(path.name for path in (stopped / "checkpoints").iterdir()) == ["step-4", "step-5"]


def test_a_disk_that_is_full_when_the_tokenizer_is_copied_is_one_plain_reason(
    stopped, data, tmp_path, monkeypatch
):
    def full(source, target):
        raise OSError(28, "No space left on device", str(source), None, str(target))

    monkeypatch.setattr("shutil.copytree", partial(shutil.copytree, copy_function=full))
    why = r"\(\[Errno 28\] No space left on device: [^()]*\)"
    with pytest.raises(UserError, match=rf"cannot write .*step-8 {why}"):
        resume(stopped, show=False)
    with pytest.raises(UserError, match=rf"cannot write .*other {why}"):
        train(small_config(), MODEL, data, tmp_path / "other", show=False)


def test_a_second_process_on_one_run_is_refused(stopped):
    with RunDirectory(stopped).lock(), pytest.raises(UserError, match="is being trained by another process"):
        resume(stopped, show=False)
    assert resume(stopped, show=False).step == 12
