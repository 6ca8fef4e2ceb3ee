"""`srmlab prepare task:…`, `srmlab train` and `srmlab solve`, as a user types them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from srmlab.cli import main
from srmlab.tasks import TASKS

SMALL = (
    *("--model.context", "64", "--model.depth", "4", "--model.gradient-depth", "2"),
    *("--model.vocab-size", "257", "--model.streams", "2", "--model.stream-dim", "16"),
    *("--model.mlp-dim", "16", "--model.head-dim", "8", "--model.embedding-dim", "16"),
    *("--context", "32", "--steps", "3", "--warmup", "1", "--batch-size", "2", "--eval-tokens", "64"),
    *("--peak-flops", "1e11", "--answers-only", "--device", "cpu"),
)
SMALL_GPT2 = (
    *("--model.vocab-size", "257", "--model.dim", "16", "--model.blocks", "2", "--model.mlp-dim", "16"),
    *("--context", "32", "--steps", "2", "--warmup", "1", "--batch-size", "2", "--eval-tokens", "64"),
    *("--peak-flops", "1e11", "--document-mask", "--device", "cpu"),
)


def call(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared sums, an SRM, a GPT-2 and an export of the SRM, all by the command line."""
    folder = tmp_path_factory.mktemp("sums")
    data = folder / "data"
    assert (
        call(
            "prepare", "task:addition:1-2:600", "--out", data, "--tokenizer", "byte", "--val-fraction", "0.2"
        )
        == 0
    )
    assert call("train", "srm-nano", "--data", data, "--out", folder / "srm", *SMALL) == 0
    assert call("train", "gpt2-nano", "--data", data, "--out", folder / "gpt2", *SMALL_GPT2) == 0
    assert call("export", folder / "srm", "--to", "safetensors", "--out", folder / "export") == 0
    return folder


def solve(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict:
    assert call("solve", *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_accuracy_comes_by_difficulty_and_depth(folder, capsys):
    answer = solve(capsys, folder / "srm", "--problems", "5")
    assert (answer["task"], answer["trained_depth"]) == ("addition", 4)
    cells = [(row["depth"], row["difficulty"]) for row in answer["results"]]
    assert cells == [(depth, difficulty) for depth in (1, 2, 4, 8) for difficulty in (1, 2)]
    for row in answer["results"]:
        assert row["problems"] == 5
        assert row["accuracy"] == row["right"] / 5
        assert row["low"] <= row["accuracy"] <= row["high"]


def test_the_table_shows_every_difficulty_and_marks_the_trained_depth(folder, capsys):
    assert call("solve", folder / "srm", "--difficulty", "2", "--depth", "4", "3", "--problems", "4") == 0
    title, row, note = capsys.readouterr().out.splitlines()
    assert title.split() == ["digits", "problems", "depth", "3", "depth", "4", "(trained)"]
    assert row.split()[:2] == ["2", "4"]
    assert row.count("%") == 2
    assert note == "addition: new problems whose whole answer is right [95 % interval]; seed 1"


def test_a_small_task_is_examined_on_what_there_is(folder, capsys):
    """Of the 100 sums of single digits about 20 are held out."""
    answer = solve(capsys, folder / "srm", "--difficulty", "1", "--depth", "1", "--problems", "1000")
    assert 5 < answer["results"][0]["problems"] < 40


def test_another_task_a_model_of_one_depth_and_an_export_can_be_examined_too(folder, capsys):
    answer = solve(capsys, folder / "gpt2", "--problems", "3", "--task", "permutations", "--difficulty", "1")
    assert [row["depth"] for row in answer["results"]] == [answer["trained_depth"]] == [2]
    exported = (folder / "export", "--data", folder / "data", "--problems", "3", "--depth", "4")
    of_run = (folder / "srm", "--problems", "3", "--depth", "4")
    assert solve(capsys, *exported)["results"] == solve(capsys, *of_run)["results"]


def test_evaluate_tells_the_loss_on_answers(folder, capsys):
    assert call("evaluate", folder / "srm") == 0
    told = capsys.readouterr().out
    assert "tokens of answers" in told
    assert "bigram" not in told
    assert call("evaluate", folder / "srm", "--json") == 0
    assert json.loads(capsys.readouterr().out)["references"] is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["srm", "--task", "hosp"], "no task is called 'hosp'; did you mean 'hops'?"),
        (["srm", "--task", "mine"], "for one of your own, srmlab --import its file first"),
        (["srm", "--difficulty", "99"], "addition of difficulty 99: it counts digits, 1 to 32"),
        (["srm", "--difficulty", "32"], "exceeds the model's context of 64"),
        (["srm", "--depth", "0"], "--depth 0: must be at least 1"),
        (["srm", "--problems", "0"], "--problems 0: must be at least 1"),
        (["srm", "--data", "other"], "is not the data"),
        (["srm", "--data", "nowhere"], "is not prepared data"),
        (["gpt2", "--depth", "4"], "gpt2 cannot run at another depth"),
        (["export"], "does not say what it was trained on: give --data"),
        (["export", "--data", "words"], "which is not a task: give --task"),
        (["export", "--data", "all", "--task", "hops"], "no problem is held out"),
        (["missing"], "does not exist"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder, arguments, says, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    if "other" in arguments and not Path("other").exists():
        call(
            "prepare", "task:addition:1:200", "--out", "other", "--tokenizer", "byte", "--val-fraction", "0.3"
        )
    if "all" in arguments and not Path("all").exists():
        call("prepare", "task:addition:1:200", "--out", "all", "--tokenizer", "byte", "--val-fraction", "0")
    if "words" in arguments and not Path("words").exists():
        Path("words.txt").write_text("some words\n")
        call("prepare", "words.txt", "--out", "words", "--tokenizer", "byte", "--val-fraction", "0")
    capsys.readouterr()
    assert call("solve", *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("srmlab solve: ")
    assert says in error
    assert error.count("\n") == 1


def test_a_task_of_ones_own_that_was_not_imported_is_said_to_be_one(folder, monkeypatch, capsys):
    others = {name: task for name, task in TASKS.items() if name != "addition"}
    others["additions"] = TASKS["addition"]  # a likely name, but nobody has typed one
    for module in ("srmlab.tasks", "srmlab.tasks.problems"):  # TASKS itself would come back in another order
        monkeypatch.setattr(sys.modules[module], "TASKS", others)
    assert call("solve", folder / "srm") == 2
    assert capsys.readouterr().err == (
        "srmlab solve: the model was trained on task:addition:1-2:600, a task that is not known: "
        "for one of your own, srmlab --import its file first\n"
    )


def test_a_misspelt_task_is_refused_before_anything_is_touched(tmp_path, capsys):
    assert call("prepare", "task:hosp", "--out", tmp_path / "data") == 2
    assert capsys.readouterr().err == "srmlab prepare: no task is called 'hosp'; did you mean 'hops'?\n"
    assert not list(tmp_path.iterdir())
