"""`srmlab prepare` on the command line."""

import json

import pytest

from srmlab.cli import main


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["prepare", *arguments])
    return stop.value.code or 0


@pytest.fixture
def text(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i:02}.txt").write_text(f"Document {i}: the quick brown fox and {i} lazy dogs.\n" * 5)
    return folder


def test_a_folder_becomes_shards_and_a_summary(text, tmp_path, capsys):
    out = tmp_path / "data"
    assert call(str(text), "--out", str(out), "--tokenizer", "byte", "--val-fraction", "0.2") == 0
    told = capsys.readouterr().out
    assert "train" in told
    assert "tokenizer byte, 257 ids" in told
    assert (out / "manifest.json").is_file()


def test_json_is_the_manifest(text, tmp_path, capsys):
    assert (
        call(
            str(text), "--out", str(tmp_path / "d"), "--tokenizer", "byte", "--val-fraction", "0.2", "--json"
        )
        == 0
    )
    manifest = json.loads(capsys.readouterr().out)
    on_disk = json.loads((tmp_path / "d" / "manifest.json").read_text())
    del on_disk["sha256"]  # the file's seal on itself
    assert manifest == on_disk
    assert sum(manifest["documents"].values()) == 40


def test_several_sources_are_one_corpus(text, tmp_path, capsys):
    files = [str(text / "00.txt"), str(text / "01.txt"), str(text / "02.txt")]
    assert (
        call(*files, "--out", str(tmp_path / "d"), "--tokenizer", "byte", "--val-fraction", "0", "--json")
        == 0
    )
    assert json.loads(capsys.readouterr().out)["documents"]["train"] == 3


def test_a_task_is_by_default_bytes(tmp_path, capsys):
    assert call("task:addition:2:200", "--out", str(tmp_path / "d"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["tokenizer"] == "byte"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "SOURCE missing"),
        ([""], "SOURCE missing"),
        (["no/such/place"], "no/such/place"),
        (["{text}", "--tokenizer", "gpt3"], "gpt3"),
        (["{text}", "--val-fraction", "1.5"], "val_fraction is 1.5"),
        (["{text}", "--out", "{text}"], "never overwritten"),
        (["{text}", "--count", "5"], "--count is for puzzles"),
        (["{text}", "--column", "body"], "--column body: {text} has no columns; leave it out"),
        (["task:hops", "--column", "body"], "has no columns; leave it out"),
        (["{text}", "sotu"], "'sotu' cannot be combined with others"),
        (["task:hops", "{text}"], "'task:hops' cannot be combined with others"),
        (["sudoku:4x4", "--tokenizer", "byte"], "--tokenizer is for text"),
    ],
)
def test_bad_input_is_one_line_and_touches_nothing(arguments, says, text, tmp_path, capsys):
    arguments = [argument.format(text=text) for argument in arguments]
    if "--out" not in arguments:
        arguments += ["--out", str(tmp_path / "data")]
    before = sorted(tmp_path.rglob("*"))
    assert call(*arguments) == 2
    error = capsys.readouterr().err
    assert says.format(text=text) in error
    assert error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
