"""One flipped bit anywhere in a checkpoint, a truncated or missing file: found every time, and by name."""

import random
import re
import shutil
from pathlib import Path

import pytest
from small_runs import MODEL, loss_log, small_config, state, stop_after

from srmlab.errors import Notice, UserError
from srmlab.storage import load
from srmlab.storage.weights import CheckpointError, latest_checkpoint, verify
from srmlab.training import resume, train


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("damage") / "run"
    train(small_config(), MODEL, data, run, show=False)
    return run


@pytest.fixture
def run(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def flip_bits(run: Path, count: int) -> int:
    """Flip one bit at a time, evenly over all bytes of the last checkpoint (and often in its small files)."""
    folder, choose = run / "checkpoints", random.Random(0)
    last = folder / "step-12"
    files = sorted(path for path in last.rglob("*") if path.is_file())
    found = 0
    for number in range(count):
        sizes = [path.stat().st_size for path in files] if number % 2 else None
        path = choose.choices(files, sizes)[0]
        original = path.read_bytes()
        changed = bytearray(original)
        changed[choose.randrange(len(changed))] ^= 1 << choose.randrange(8)
        path.write_bytes(changed)
        reports: list[str] = []
        assert latest_checkpoint(folder, reports.append) == folder / "step-8"
        assert len(reports) == 1
        named = path.relative_to(last).as_posix() in reports[0]
        assert named or path.name == "SHA256SUMS"  # a changed hash makes the file it is of look changed
        found += 1
        path.write_bytes(original)
    verify(last)
    return found


def test_a_flipped_bit_is_found_and_the_checkpoint_before_is_taken(run):
    assert flip_bits(run, 60) == 60


@pytest.mark.soak
def test_a_thousand_flipped_bits_are_found(run):
    assert flip_bits(run, 1000) == 1000


@pytest.mark.parametrize(
    "name", ["model.safetensors", "SHA256SUMS", "training.json", "tokenizer/tokenizer.json"]
)
def test_truncated_missing_and_added_files_are_found(run, name):
    path = run / "checkpoints/step-12" / name
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=r"SHA256SUMS|" + name):
        verify(run / "checkpoints/step-12")
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=name):
        verify(run / "checkpoints/step-12")
    path.unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        verify(run / "checkpoints/step-12")
    path.write_bytes(content)
    (run / "checkpoints/step-12/extra").touch()
    with pytest.raises(CheckpointError, match="extra is not listed"):
        verify(run / "checkpoints/step-12")


def test_a_damaged_run_resumes_from_the_checkpoint_before_says_so_and_ends_equal(finished, run, capsys):
    path = run / "checkpoints/step-12/optimizer.safetensors"
    changed = bytearray(path.read_bytes())
    changed[1000] ^= 4
    path.write_bytes(changed)
    assert resume(run).step == 12
    said = capsys.readouterr().out
    assert "step-12: optimizer.safetensors is damaged" in said
    assert "resuming after step 8" in said
    assert state(run) == state(finished)
    assert loss_log(run) == loss_log(finished)


def test_a_run_with_no_whole_checkpoint_is_refused_and_left_alone(run):
    for step in ("step-8", "step-12"):
        (run / "checkpoints" / step / "model.safetensors").unlink()
    before = sorted(path.name for path in (run / "checkpoints").iterdir())
    with pytest.raises(UserError, match="all of its 2 checkpoints are damaged"):
        resume(run, show=False)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == before


def test_a_checkpoint_under_another_steps_name_is_refused(run):
    (run / "checkpoints/step-12").rename(run / "checkpoints/step-11")
    with pytest.raises(CheckpointError, match=r"training\.json is of step 12"):
        verify(run / "checkpoints/step-11")


def test_a_torn_last_line_of_the_metrics_does_no_harm(data, finished, tmp_path, monkeypatch):
    run = tmp_path / "torn"
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        train(small_config(), MODEL, data, run, show=False)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 8, "lo')
    resume(run, show=False)
    assert loss_log(run) == loss_log(finished)


def test_only_the_last_checkpoints_are_kept_and_nothing_half_done_stays(finished):
    names = {path.name for path in (finished / "checkpoints").iterdir()}
    assert names == {"step-8", "step-12"}


def test_a_run_whose_checkpoints_are_all_damaged_says_so_and_what_to_do(run):
    for weights in run.glob("checkpoints/*/model.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-1])
    count = len(list(run.glob("checkpoints/step-*")))
    says = f"{run} cannot be used: all of its {count} checkpoints are damaged; restore one from a backup"
    with pytest.warns(Notice) as notices, pytest.raises(UserError, match=re.escape(says)):
        load(run)
    assert len(notices) == count
    assert "before it" not in str(notices[-1].message)  # there is none
    with pytest.raises(UserError, match=re.escape(says)):
        resume(run, show=False)
