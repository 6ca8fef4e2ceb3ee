"""`srmlab demo`: the whole path, by the commands a user would type."""

from __future__ import annotations

import pytest

from srmlab.cli import COMMANDS, main, parse
from srmlab.cli.demo import Command


def test_every_stage_is_a_command_with_options_that_exist(tmp_path):
    for stage in Command(out=tmp_path).stages():
        name, *arguments = stage.arguments
        assert name in COMMANDS
        module = __import__(f"srmlab.cli.{name}", fromlist=["Command"])
        defaults = module.defaults(arguments) if hasattr(module, "defaults") else None
        assert parse(module.Command, f"srmlab {name}", arguments, defaults) is not None


def test_the_tokenizer_of_the_text_fits_the_model():
    import srmlab

    prepare = Command().stages()[0].arguments
    assert prepare[prepare.index("--tokenizer") + 1] == f"bpe:{srmlab.preset('srm-nano').vocab_size}"


def test_zero_steps_are_refused_in_one_line(capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--steps", "0", "--out", str(tmp_path / "demo")])
    assert stop.value.code == 2
    assert capsys.readouterr().err == "srmlab demo: --steps 0: must be at least 1\n"
    assert not (tmp_path / "demo").exists()


def test_a_folder_of_something_else_is_not_written_into(capsys, tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--out", str(tmp_path)])
    out, err = capsys.readouterr()
    assert (stop.value.code, out, err.count("\n")) == (2, "", 1)
    assert "choose another --out" in err
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


@pytest.mark.slow
def test_a_short_demo_ends_with_a_report_and_a_second_one_keeps_what_is_there(tmp_path, capsys):
    out = tmp_path / "demo"
    Command(out=out, steps=2, tokens=512).run()
    told = capsys.readouterr().out
    report = out / "run" / "report.html"
    assert str(report) in told
    assert report.read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>")
    assert "bigram" in told
    assert (out / "run" / "analysis").is_dir()
    weights = sorted((out / "run" / "checkpoints").rglob("model*.safetensors"))
    before = [path.read_bytes() for path in weights]
    Command(out=out, steps=2, tokens=512).run()
    assert "already done" in capsys.readouterr().out
    assert [path.read_bytes() for path in weights] == before
