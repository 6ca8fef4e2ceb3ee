from __future__ import annotations

import json
from pathlib import Path

import pytest

import srmlab.analysis
import srmlab.dictionaries
from srmlab.cli import main
from srmlab.cli.evaluate import Command as Evaluate
from srmlab.data import PrepareConfig, prepare
from srmlab.tasks import TaskCorpus
from srmlab.training import TrainConfig, train
from subjects import OF_BYTES, trained_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    return trained_run(tmp_path_factory.mktemp("dictionary"))


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["dictionary", *map(str, arguments)])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


SHORT = ("--tokens", 2048, "--eval-tokens", 512, "--batch-size", 8)


def test_a_dictionary_from_a_run_to_its_page(trained, capsys, tmp_path):
    code, out, err = run(capsys, trained, *SHORT)
    assert code == 0
    folder = trained / "dictionaries" / "last-64-1"
    assert "Dictionaries of 64 features, at most 1 active (512 tokens in 32 sequences" in out
    assert f"{folder}/features.html" in out
    assert "learning: 16 of 16 steps" in err
    found = srmlab.analysis.load(folder / "quality")
    dictionary = srmlab.dictionaries.load(folder)
    assert dictionary.config.points == ("layers.2.out",)
    assert found.evidence.tokens == 512
    features = srmlab.analysis.load(folder / "features")
    assert features.fired.shape == (3, 64)
    page = (folder / "features.html").read_text()
    assert "Stream 2:" in page
    assert (folder / "figures" / "dictionary.png").is_file()
    assert (folder / "summary.txt").read_text().startswith("Dictionaries of 64 features")

    code, _, err = run(capsys, trained, *SHORT)  # nothing is overwritten
    assert code == 2
    assert "exists and is not overwritten" in err

    code, out, _ = run(
        capsys, trained, *SHORT, "--layers", 0, 1, "--k", 2, "--out", tmp_path / "early", "--json"
    )
    answer = json.loads(out)
    assert answer["points"] == ["layers.0.out", "layers.1.out"]
    assert answer["k"] == 2
    assert answer["explained"] < 1


def test_a_dictionary_follows_how_its_run_was_trained(capsys, tmp_path):
    """On answers, with attention within documents: the loss is that of `srmlab evaluate`."""
    spec = "task:addition:1-2:2000"
    prepare(PrepareConfig(spec, tmp_path / "data", "byte", val_fraction=0.2), source=TaskCorpus.parse(spec))
    settings = TrainConfig(
        steps=6, batch_size=4, warmup=2, eval_tokens=128, device="cpu", document_mask=True, answers_only=True
    )
    train(settings, OF_BYTES.replace(context=32), tmp_path / "data", tmp_path / "run", show=False)
    whole = ("--eval-tokens", "100000")
    code, out, _ = run(capsys, tmp_path / "run", *SHORT, *whole, "--layers", "every", "--json")
    assert code == 0
    expected = Evaluate(path=tmp_path / "run").result()["loss"]["mean"]
    assert json.loads(out)["loss"] == pytest.approx(expected, rel=1e-5)


def test_a_part_of_the_text_is_windows_from_all_of_it_as_in_evaluate(trained, capsys, tmp_path):
    code, out, _ = run(capsys, trained, *SHORT, "--eval-tokens", 64, "--out", tmp_path / "new", "--json")
    assert code == 0
    expected = Evaluate(path=trained, tokens=64).result()["loss"]["mean"]
    assert json.loads(out)["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--layers", "first"), "--layers first: give last, every, or layer numbers from 0"),
        (("--layers", "7"), "layers = [7]"),
        (("--k", "0"), "k = 0: give 1 to 64"),
        (("--examples", "0"), "--examples 0: must be at least 1"),
        (("--seed", "-1"), "--seed -1: must be at least 0"),
        (("--lr", "-1"), "lr = -1.0: must be positive"),
        (("--features", "0"), "features = 0: give 1 or more"),
        (("--tokens", "10"), "--tokens 10: give at least a batch, 128"),
        (("--eval-tokens", "3"), "3 tokens are fewer than one window"),
        (("--data", "nowhere"), "nowhere"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(trained, capsys, tmp_path, options, message):
    code, out, err = run(capsys, trained, *SHORT, *options, "--out", tmp_path / "never")
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "never").exists()


def test_an_export_does_not_say_its_data(trained, capsys, tmp_path):
    export = srmlab.save(srmlab.load(trained), tmp_path / "export")
    code, _, err = run(capsys, export, *SHORT)
    assert code == 2
    assert "give --data DIR" in err
    code, _, _ = run(capsys, export, *SHORT, "--data", trained.parent / "data")
    assert code == 0
    assert (tmp_path / "export-dictionaries" / "last-64-1" / "quality.npz").is_file()
