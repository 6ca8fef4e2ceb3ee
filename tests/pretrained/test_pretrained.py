"""The model that comes with the package: whole, small, trained, and ready for every tool."""

import json
import tomllib

import pytest
import torch

import srmlab
from srmlab.analysis import load as load_result
from srmlab.cli import main
from srmlab.cli.train import defaults
from srmlab.data import Batch
from srmlab.storage import load_tokenizer
from srmlab.training.config import identity
from srmlab.training.evaluation import token_losses
from srmlab.training.run import RunConfig

FOLDER = srmlab.pretrained.folder()


def test_it_is_small_and_names_no_machine():
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 8_000_000
    assert json.loads((FOLDER / "run.json").read_text())["data"]["path"] == "data/sotu"


def test_it_has_learned():
    """On text it was not trained on it is far better than counting pairs (3.49 nats)."""
    model, tokenizer = srmlab.load(FOLDER), load_tokenizer(FOLDER)
    assert tokenizer is not None
    ids = tokenizer.encode((FOLDER / "validation.txt").read_text(encoding="utf-8"))
    windows = torch.tensor(ids[: 4 * 257]).view(4, 257)
    with torch.no_grad():
        loss = token_losses(model, Batch(windows[:, :-1], windows[:, 1:])).mean()
    assert loss < 2.8


def test_its_record_is_that_of_its_recipe():
    """`srmlab train --config train.toml` begins the run that run.json tells of."""
    again = defaults(["--config", str(FOLDER / "train.toml")])
    saved = RunConfig.read(FOLDER)
    assert again.model == saved.model
    assert identity(again.training) == identity(saved.training)
    assert tomllib.loads((FOLDER / "train.toml").read_text())["preset"] == "srm-nano"
    last = json.loads((FOLDER / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == saved.training.steps


@pytest.mark.parametrize("name", ["routing", "alignment", "drift", "ablation", "logit_lens"])
def test_its_analyses_are_there(name):
    assert load_result(FOLDER / "analysis" / name).headline()


def test_the_explorer_opens_it_with_its_text_and_an_early_checkpoint():
    from srmlab.explorer.opening import open_run

    session = open_run(FOLDER)
    assert session.reference is not None
    assert list(session.checkpoints) == ["step-250"]
    assert len(session.prompts) == 3
    assert session.checkpoints["step-250"]().config == session.model.config


def test_it_writes(capsys):
    with pytest.raises(SystemExit):
        main(
            [
                "generate",
                str(FOLDER),
                "--prompt",
                "My fellow citizens",
                "--max-new-tokens",
                "8",
                "--seed",
                "0",
            ]
        )
    assert "My fellow citizens" in capsys.readouterr().out


def test_a_report_about_it(tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        main(
            [
                "report",
                "--pretrained",
                "--prompt",
                "The state of the Union",
                "--out",
                str(tmp_path / "r.html"),
            ]
        )
    assert left.value.code == 0
    assert "r.html" in capsys.readouterr().out
    assert "Training loss goes from" in (tmp_path / "r.html").read_text()


def test_a_circuit_of_it_at_once_with_the_transcoders_it_comes_with(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # where transcoders of one's own would be
    options = ["--prompt", "the United", "--nodes", "4", "--no-check", "--out", "graph.json"]
    with pytest.raises(SystemExit) as left:
        main(["circuit", "--pretrained", *options])
    assert not left.value.code
    assert "' States'" in capsys.readouterr().out
    nodes = json.loads((tmp_path / "graph.json").read_text())["nodes"]
    features = [node for node in nodes if node["feature_type"] == "cross layer transcoder"]
    assert all(node["srmlab"]["raises"] for node in features if "examples" in node["srmlab"])
    assert any(node["srmlab"].get("examples") for node in features)


def test_a_circuit_that_cannot_be_written_is_one_line_with_the_fix(capsys):
    options = ["--prompt", "the United", "--nodes", "4", "--no-check", "--out", "/proc/graph.json"]
    with pytest.raises(SystemExit) as left:
        main(["circuit", "--pretrained", *options])
    assert left.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("srmlab circuit: cannot write /proc/graph.json (")
    assert said.endswith("): choose another --out")
