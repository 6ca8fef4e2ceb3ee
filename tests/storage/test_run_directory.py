"""The run directory: `run.json` and the tokenizer never change, and a changed bit in them is noticed."""

import random
import subprocess
from pathlib import Path

import pytest

from srmlab.data import byte_tokenizer
from srmlab.errors import UserError
from srmlab.storage import RunDirectory, load_tokenizer

RECORD = {"model": {"architecture": "srm"}, "training": {"lr": 0.001}}


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    byte_tokenizer().save(tmp_path / "tokenizer")
    run = RunDirectory(tmp_path / "run")
    run.create(RECORD, tmp_path / "tokenizer")
    return run


def test_a_run_says_what_was_written_and_has_its_tokenizer(run):
    assert run.record() == {"format": 1, **RECORD}
    assert load_tokenizer(run.path) == byte_tokenizer()


def flip_a_bit(path: Path, choose: random.Random) -> bytes:
    """What was in the file before."""
    original = path.read_bytes()
    changed = bytearray(original)
    changed[choose.randrange(len(changed))] ^= 1 << choose.randrange(8)
    path.write_bytes(changed)
    return original


@pytest.mark.parametrize("name", ["run.json", "tokenizer/tokenizer.json", "tokenizer/about.json"])
@pytest.mark.parametrize("read", [RunDirectory.record, lambda run: load_tokenizer(run.path)])
def test_a_flipped_bit_is_noticed_by_every_read_and_the_file_is_named(run, name, read):
    choose = random.Random(0)
    for _ in range(20):
        original = flip_a_bit(run.path / name, choose)
        with pytest.raises(
            UserError, match=rf"run: {name} is damaged \(its sha256 differs\): restore it"
        ) as error:
            read(run)
        assert "\n" not in str(error.value)
        (run.path / name).write_bytes(original)
    read(run)


def test_a_flipped_bit_in_the_seal_itself_is_noticed(run):
    choose = random.Random(0)
    for _ in range(20):
        original = flip_a_bit(run.path / "run.sha256", choose)
        with pytest.raises(UserError, match=r"is damaged|is missing"):
            run.record()
        (run.path / "run.sha256").write_bytes(original)


def test_a_missing_file_of_the_tokenizer_is_noticed(run):
    (run.tokenizer / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer/tokenizer\.json is missing"):
        run.record()


def test_what_may_grow_grows(run):
    run.metrics.write_text('{"step": 1}\n')
    (run.checkpoints / "step-1").mkdir()
    (run.path / "analysis").mkdir()
    (run.path / "analysis/routing.json").write_text("{}")
    (run.path / "report.html").touch()
    assert run.record()["format"] == 1


def test_a_run_from_before_there_was_a_seal_is_read(run):
    (run.path / "run.sha256").unlink()
    file = run.path / "run.json"
    file.write_text(file.read_text().replace("0.001", "0.002"))
    assert run.record()["training"] == {"lr": 0.002}
    assert load_tokenizer(run.path) == byte_tokenizer()


def test_the_seal_is_in_the_format_of_sha256sum(run):
    subprocess.run(["sha256sum", "-c", "--quiet", "run.sha256"], cwd=run.path, check=True)


def test_the_run_behind_a_path_is_the_path_or_that_of_a_checkpoint(run):
    for path in (run.path, run.checkpoints / "step-3"):
        found = RunDirectory.find(path)
        assert found is not None
        assert found.path == run.path
    assert RunDirectory.find(run.path.parent) is None


def test_a_record_that_cannot_be_read_is_refused_in_one_line(run):
    (run.path / "run.sha256").unlink()
    for content, message in (
        ("{", r"run\.json cannot be read .*restore it from a backup"),
        ('{"format": 99}', "format 99: this version reads 1; upgrade srmlab"),
        ("[]", r"run\.json cannot be read"),
    ):
        (run.path / "run.json").write_text(content)
        with pytest.raises(UserError, match=message) as error:
            run.record()
        assert "\n" not in str(error.value)
