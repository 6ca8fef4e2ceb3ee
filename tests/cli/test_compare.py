"""`srmlab compare`: runs of several architectures on the same tokens, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest

import srmlab
from srmlab.cli import main
from srmlab.models import OuroConfig
from srmlab.training import TrainConfig, train
from subjects import OF_BYTES, trained_run

OURO = OuroConfig(vocab_size=257, context=12, dim=8, heads=2, head_dim=4, mlp_dim=12, blocks=1, loops=2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    srm = trained_run(folder)
    short = TrainConfig(steps=3, batch_size=2, warmup=1, eval_tokens=64, device="cpu")
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
    assert -1 <= second["collapse"] <= 1
    assert "windows of 12 tokens" in answer["read"]  # the shorter of the two contexts


def test_a_run_differs_from_itself_by_nothing(runs, tmp_path, capsys):
    again = tmp_path / "again"
    again.symlink_to(runs[0])
    assert call(runs[0], again, "--json") == 0
    difference = json.loads(capsys.readouterr().out)["models"][1]["difference"]
    assert difference == {"mean": 0.0, "half": 0.0}


def test_the_loss_is_that_of_evaluate(runs, capsys):
    assert call(runs[0], runs[1], "--context", 12, "--limit-tokens", 480, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    with pytest.raises(SystemExit):
        main(["evaluate", runs[0], "--context", "12", "--limit-tokens", "480", "--json"])
    expected = json.loads(capsys.readouterr().out)["loss"]
    assert answer["models"][0]["loss"]["mean"] == pytest.approx(expected["mean"], abs=1e-6)
    assert np.isfinite(answer["models"][0]["loss"]["half"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda runs: runs[:1], "give two runs or more"),
        (lambda runs: (runs[0], runs[0]), "a run is named twice"),
        (lambda runs: (*runs, "--context", "14"), "--context 14: that of"),
        (lambda runs: (runs[0], "nowhere"), "nowhere"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(runs, change, words, capsys):
    assert call(*change(runs)) == 2
    error = capsys.readouterr().err.strip()
    assert words in error
    assert len(error.splitlines()) == 1
