"""`srmlab train --init-from`: the model is the source's, and what does not fit is refused in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import srmlab
from srmlab.cli import main
from srmlab.storage import read_metrics
from srmlab.training import recipe
from subjects import OF_BYTES, trained_run

SHORT = ("--steps", 2, "--warmup", 0, "--eval-tokens", 64, "--peak-flops", "1e11", "--device", "cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    return trained_run(tmp_path_factory.mktemp("source"))


@pytest.fixture
def data(trained) -> Path:
    return trained.parent / "data"


def run(*arguments: object) -> int | str | None:
    with pytest.raises(SystemExit) as stop:
        main(["train", *map(str, arguments)])
    return stop.value.code


def told(folder: Path) -> dict:
    return json.loads((folder / "run.json").read_text())


def refused(capsys, message: str) -> bool:
    out, err = capsys.readouterr()
    return out == "" and err.count("\n") == 1 and err.startswith("srmlab train: ") and message in err


@pytest.mark.parametrize("option", ["--init-from", "--init_from"])
def test_no_preset_is_needed_and_the_first_validation_loss_is_the_sources(
    option, trained, data, tmp_path, capsys
):
    assert run(option, trained, "--data", data, "--out", tmp_path / "run", *SHORT) == 0
    assert f"starting from {trained}/checkpoints/step-6\nstep      0   validation" in capsys.readouterr().out
    last = [row["val_loss"] for row in read_metrics(trained / "metrics.jsonl") if "val_loss" in row][-1]
    first = read_metrics(tmp_path / "run/metrics.jsonl")[0]
    assert (first["step"], first["val_loss"]) == (0, pytest.approx(last, abs=1e-6))
    about = told(tmp_path / "run")
    assert about["model"] == OF_BYTES.to_dict()
    assert about["init_from"]["path"] == str(trained / "checkpoints/step-6")
    assert len(about["init_from"]["sha256"]) == 64


def test_the_recipe_is_that_of_the_sources_preset_also_at_second_hand(trained, data, tmp_path):
    source = shutil.copytree(trained, tmp_path / "source")
    (source / "run.json").write_text(json.dumps(told(source) | {"preset": "srm-nano"}))
    (source / "run.sha256").unlink()
    for start, out in ((source, "first"), (tmp_path / "first/checkpoints/step-2", "second")):
        assert run("--init-from", start, "--data", data, "--out", tmp_path / out, *SHORT) == 0
        assert told(tmp_path / out)["training"]["lr"] == recipe("srm-nano").lr
        assert told(tmp_path / out)["preset"] == "srm-nano"


def test_a_field_without_weights_may_be_changed_and_a_file_can_say_it_all(trained, data, tmp_path):
    (tmp_path / "all.toml").write_text(
        f'init_from = "{trained}"\ndata = "{data}"\nout = "{tmp_path / "run"}"\n[model]\ndepth = 5\n'
    )
    assert run("--config", tmp_path / "all.toml", "--model.gradient-depth", 4, *SHORT) == 0
    assert srmlab.load(tmp_path / "run").config == OF_BYTES.replace(depth=5, gradient_depth=4)


def test_a_preset_of_the_same_weights_is_allowed(data, tmp_path):
    nano = srmlab.preset("srm-nano", vocab_size=257)
    source = srmlab.save(srmlab.build(nano), tmp_path / "export")
    options = ("--model.vocab-size", 257, "--model.depth", 2, "--model.gradient-depth", 1, "--context", 16)
    where = ("--init-from", source, "--data", data, "--out", tmp_path / "run")
    assert run("srm-nano", *where, *options, *SHORT) == 0
    assert told(tmp_path / "run")["model"]["depth"] == 2


def test_a_restarted_job_goes_on_without_its_source(trained, data, tmp_path):
    source = shutil.copytree(trained, tmp_path / "source")
    command = ("--init-from", source, "--data", data, "--out", tmp_path / "run", "--resume", *SHORT)
    assert run(*command) == 0
    shutil.rmtree(source)
    assert run(*command) == 0


def test_a_dry_run_refuses_as_the_run_would_and_touches_nothing(trained, data, tmp_path, capsys):
    where = ("--data", data, "--out", tmp_path / "run", "--dry-run", *SHORT)
    assert run("--init-from", trained, *where) == 0
    assert capsys.readouterr().out.startswith("parameters")
    assert run("--init-from", trained, *where, "--model.streams", 4) == 2
    assert refused(capsys, "does not fit the model")
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_a_start_is_refused_in_one_line(trained, data, tmp_path, capsys):
    where = ("--data", data, "--out", tmp_path / "run", *SHORT)
    assert run("--init-from", tmp_path / "none", *where) == 2
    assert refused(capsys, "none does not exist: give the folder of a run, a checkpoint or an export")
    assert run("--init-from", data, *where) == 2
    assert refused(capsys, "is not a run, checkpoint or export")
    assert run("srm-nano", "--init-from", trained, *where) == 2
    assert refused(capsys, "does not fit the model (z0 is [3, 8] there, [8, 32] here): change only what")
    assert run("--init-from", trained, *where, "--model.vocab-size", 300) == 2
    assert refused(capsys, "is [257, 8] there, [300, 8] here")
    damaged = shutil.copytree(trained / "checkpoints/step-6", tmp_path / "damaged")
    with open(damaged / "model.safetensors", "r+b") as file:
        file.truncate(1000)
    assert run("--init-from", damaged, *where) == 2
    assert refused(capsys, "model.safetensors is damaged")
    assert not (tmp_path / "run").exists()


def test_a_preset_that_is_not_the_first_word_is_refused_and_not_taken_for_another(data, tmp_path, capsys):
    assert run("--data", data, "--out", tmp_path / "run", *SHORT, "srm-nano") == 2
    assert refused(capsys, "give the preset first: srmlab train srm-nano …")


def test_a_shipped_model_is_begun_from_by_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = "\n\n".join(f"stream {n} meets step {n * n} of {n % 7}" for n in range(2000))
    Path("notes.txt").write_text(text)
    where = ("--data", "notes.txt", "--out", "runs/notes", "--batch-size", 2, *SHORT)
    assert run("--init-from", "srm-nano", *where) == 0
    assert f"starting from {srmlab.pretrained.folder()}" in capsys.readouterr().out
    about = told(Path("runs/notes"))
    assert about["init_from"]["path"] == str(srmlab.pretrained.folder())
    assert about["model"] == srmlab.load("srm-nano").config.to_dict()
