"""`srmlab compare`: runs of several architectures on the same tokens, and what it refuses."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import srmlab
from srmlab.cli import main
from srmlab.cli.compare import shown_names
from srmlab.experiments import Cell, SweepResult
from srmlab.experiments.rates import Search
from srmlab.experiments.results import Run
from srmlab.experiments.runs import cell_result
from srmlab.models import OuroConfig
from srmlab.storage import read_metrics
from srmlab.training import TrainConfig, train
from srmlab.training.evaluation import evaluate
from srmlab.training.run import RunConfig
from srmlab.training.run_text import open_text
from subjects import OF_BYTES, trained_run

OURO = OuroConfig(vocab_size=257, context=12, dim=8, heads=2, head_dim=4, mlp_dim=12, blocks=1, loops=2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    srm = trained_run(folder)
    short = TrainConfig(steps=3, checkpoint_every=2, batch_size=2, warmup=1, eval_tokens=64, device="cpu")
    train(short, OURO, folder / "data", folder / "ouro", show=False)
    return str(srm), str(folder / "ouro")


def call(*args) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["compare", *map(str, args)])
    return int(stopped.value.code or 0)


def test_the_table_has_a_line_a_run_and_json_the_same_numbers(runs, capsys):
    assert call(*runs) == 0
    shown = capsys.readouterr().out
    assert call(*runs, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    first, second = answer["models"]
    assert f"{first['loss']['mean']:.4f}" in shown
    assert f"{second['difference']['mean']:+.4f}" in shown
    assert (first["depth"], first["unit"], first["streams"]) == (3, "layers", 3)
    assert (second["depth"], second["unit"], second["streams"]) == (2, "loops", 1)
    assert first["parameters"] == srmlab.build(OF_BYTES).num_parameters()
    assert second["training_flops"] == 3 * 2 * 12 * srmlab.build(OURO).flops_per_token(12).training
    assert first["difference"] is None
    gap = second["loss"]["mean"] - first["loss"]["mean"]
    assert second["difference"]["mean"] == pytest.approx(gap)
    assert -1 <= second["inside"]["collapse"]["value"] <= 1
    assert len(second["inside"]["collapse"]["twins"]) == 3
    assert "windows of 12 tokens" in answer["read"]  # the shorter of the two contexts


def test_what_is_inside_is_shown_where_it_is_defined(runs, capsys):
    assert call(*runs, "--null", "2") == 0
    shown = capsys.readouterr().out
    srm, ouro = shown.split("at twice the depth")[1].splitlines()[1:3]
    assert srm.split()[0] == "run"
    assert ouro.split()[:1] + ouro.split()[3:4] == ["ouro", "–"]  # collapse and its twins, and no streams
    assert "loops 1" in shown.split("What exit gates know")[1]
    assert call(*runs, "--null", "-1") == 2
    assert "--null -1: must be at least 0" in capsys.readouterr().err


def sweep(folder: Path, cells: dict[str, str]) -> Path:
    """The result folder of a sweep that has these runs, by the name of the cell."""
    results = []
    for name, path in cells.items():
        saved = RunConfig.read(path)
        cell = Cell(name=name, model=saved.model, training=saved.training)
        place = cell.run_folder(folder.parent, 0)
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            place.symlink_to(path)
        results.append(cell_result(cell, Search({}), [Run(0, 1.0, 1.0, 1.0, [])], []))
    folder.mkdir(parents=True)
    result = SweepResult("family", "mini", len(cells), {}, {}, results).to_dict()
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def test_the_folder_of_a_sweep_stands_for_its_runs(runs, tmp_path, capsys):
    sweep(tmp_path / "family-mini", dict(zip(("srm", "ouro"), runs, strict=True)))
    assert call(tmp_path / "family-mini", "--null", "0", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert call(*runs, "--null", "0", "--json") == 0
    named = json.loads(capsys.readouterr().out)
    assert [model["name"] for model in answer["models"]] == ["srm", "ouro"]
    assert [m["loss"] for m in answer["models"]] == [m["loss"] for m in named["models"]]
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    assert call(tmp_path / "family-mini") == 2
    assert "is not next to its runs" in capsys.readouterr().err


def test_two_sweeps_that_call_different_runs_the_same_keep_all_of_them(runs, tmp_path, capsys):
    srm, ouro = runs
    a = sweep(tmp_path / "a-mini", {"model": srm, "shared": ouro})
    b = sweep(tmp_path / "b-mini", {"model": ouro})
    assert call(a, b, "--null", "0") == 2  # a run under two names
    assert "a run is given twice" in capsys.readouterr().err
    a = sweep(tmp_path / "one" / "a-mini", {"model": srm})
    b = sweep(tmp_path / "other" / "b-mini", {"model": ouro})
    assert call(a, b, "--null", "0", "--json") == 0
    models = json.loads(capsys.readouterr().out)["models"]
    assert [(m["name"], m["architecture"]) for m in models] == [(f"{a}/model", "srm"), (f"{b}/model", "ouro")]
    assert call(a, b, "--null", "0") == 0
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:3]]
    assert shown == ["a-mini/model", "b-mini/model"]


def test_a_cell_with_a_slash_in_its_name_is_shown_by_all_of_it(tmp_path):
    for run in ("a/run", "b/run"):
        (tmp_path / run).mkdir(parents=True)
    names = [str(tmp_path / "a/run"), str(tmp_path / "b/run"), "n = 8", "grow:2/1"]
    assert list(shown_names(names).values()) == ["a/run", "b/run", "n = 8", "grow:2/1"]
    assert list(shown_names(["n = 8", "grow:2/1"]).values()) == ["n = 8", "grow:2/1"]  # not "1"


def test_a_run_that_two_sweeps_share_is_compared_once(runs, tmp_path, capsys):
    srm, ouro = runs
    a = sweep(tmp_path / "a-mini", {"srm": srm, "ouro": ouro})
    b = sweep(tmp_path / "b-mini", {"srm": srm})
    assert call(a, b, "--null", "0", "--json") == 0
    assert [m["name"] for m in json.loads(capsys.readouterr().out)["models"]] == ["srm", "ouro"]


def test_a_checkpoint_is_charged_with_the_steps_it_has_taken(runs, capsys):
    assert call(runs[1], f"{runs[1]}/checkpoints/step-2", "--null", "0", "--json") == 0
    whole, part = (model["training_flops"] for model in json.loads(capsys.readouterr().out)["models"])
    assert part / whole == pytest.approx(2 / 3)


def test_an_unfinished_run_is_charged_with_the_steps_of_its_last_checkpoint(runs, tmp_path, capsys):
    begun = tmp_path / "begun"
    shutil.copytree(runs[1], begun)
    shutil.rmtree(begun / "checkpoints/step-3")
    assert call(runs[1], begun, "--null", "0", "--json") == 0
    whole, part = (model["training_flops"] for model in json.loads(capsys.readouterr().out)["models"])
    assert part / whole == pytest.approx(2 / 3)


def test_a_growing_depth_is_charged_as_far_as_it_has_grown(runs, tmp_path, capsys):
    config = TrainConfig(
        steps=4, checkpoint_every=2, batch_size=2, warmup=1, eval_tokens=64, device="cpu",
        depth_schedule="grow:1",
    )  # fmt: skip
    train(config, OURO, Path(runs[1]).parent / "data", tmp_path / "run", show=False)
    logged = [row["flops"] for row in read_metrics(tmp_path / "run/metrics.jsonl") if "flops" in row]
    assert logged[0] < logged[-1]
    assert call(tmp_path / "run", tmp_path / "run/checkpoints/step-2", "--null", "0", "--json") == 0
    charged = [model["training_flops"] for model in json.loads(capsys.readouterr().out)["models"]]
    assert charged == [sum(logged), sum(logged[:2])]


def test_a_run_differs_from_itself_by_nothing(runs, tmp_path, capsys):
    again = tmp_path / "again"
    again.symlink_to(runs[0])
    assert call(runs[0], again, "--json") == 0
    difference = json.loads(capsys.readouterr().out)["models"][1]["difference"]
    assert difference == {"mean": 0.0, "half": 0.0}


def test_part_of_the_text_is_read_in_windows_from_all_over_it(runs, capsys):
    assert call(runs[0], runs[1], "--context", 12, "--tokens", 480, "--null", 0, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    text = open_text(runs[0], context=12, spread=True)
    batches = text.batches(8, 480)
    assert answer["models"][0]["loss"]["mean"] == pytest.approx(
        evaluate(text.model, batches).loss.mean, abs=1e-6
    )
    head = evaluate(text.model, replace(text, spread=False).batches(8, 480)).loss.mean
    assert answer["models"][0]["loss"]["mean"] != pytest.approx(head, abs=1e-6)


def test_the_loss_is_that_of_evaluate(runs, capsys):
    assert call(runs[0], runs[1], "--context", 12, "--json") == 0  # all of the text
    answer = json.loads(capsys.readouterr().out)
    with pytest.raises(SystemExit):
        main(["evaluate", runs[0], "--context", "12", "--json"])
    expected = json.loads(capsys.readouterr().out)["loss"]
    assert answer["models"][0]["loss"]["mean"] == pytest.approx(expected["mean"], abs=1e-6)
    assert np.isfinite(answer["models"][0]["loss"]["half"])


def test_twins_are_explained_where_there_are_some(runs, capsys):
    for twins in (0, 1):
        assert call(*runs, "--null", twins) == 0
        assert ("mean of untrained twins" in capsys.readouterr().out) == bool(twins)


def test_only_the_first_run_needs_its_data(runs, tmp_path, capsys):
    assert call(*runs, "--json") == 0
    expected = json.loads(capsys.readouterr().out)
    alone = shutil.copytree(runs[1], tmp_path / "alone")
    about = json.loads((alone / "run.json").read_text())
    about["data"]["path"] = str(tmp_path / "gone")
    (alone / "run.json").write_text(json.dumps(about))
    (alone / "run.sha256").unlink()
    export = srmlab.save(srmlab.load(runs[1]), tmp_path / "export")  # without a tokenizer
    assert call(runs[0], alone, export, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    for model in answer["models"][1:]:
        assert model["loss"] == expected["models"][1]["loss"]
        assert model["difference"] == expected["models"][1]["difference"]
    assert call(alone, runs[0]) == 2
    assert "gone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda runs: runs[:1], "give at least two runs"),
        (lambda runs: (runs[0], runs[0]), "a run is given twice"),
        (lambda runs: (*runs, "--context", "14"), "has a context of"),
        (lambda runs: (runs[0], "nowhere"), "nowhere"),
        (
            lambda runs: (runs[0], "--pretrained"),
            "different tokenizers: compare runs trained on the same data",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(runs, change, words, capsys):
    assert call(*change(runs)) == 2
    error = capsys.readouterr().err.strip()
    assert words in error
    assert len(error.splitlines()) == 1
