"""TensorBoard and Weights & Biases: what a run is, what it writes and how it routes; one run, however often
it is resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_runs import GPT2, MODEL, small_config

import srmlab
from srmlab.data import byte_tokenizer, open_tokens
from srmlab.errors import UserError
from srmlab.storage import read_metrics
from srmlab.training import resume, train
from srmlab.training.metrics import WANDB_ID, WeightsAndBiases, wandb_id
from srmlab.training.run import RunConfig
from srmlab.training.samples import routing_figure, written_text


def plan(data: Path, model=MODEL) -> RunConfig:
    opened = open_tokens(data)
    return RunConfig(model, small_config(), data, opened.fingerprint, "srm-nano")


def test_what_is_written_begins_with_unseen_text_and_is_the_same_every_time(data):
    model, tokenizer = srmlab.build(MODEL), byte_tokenizer()
    window = srmlab.load_tokenizer(data)("alpha beta gamma").tokens[0]
    text = written_text(model, tokenizer, window)
    assert text == written_text(model, tokenizer, window)
    assert text.startswith("alpha be ▸")  # half of its context of 16
    assert len(tokenizer.encode(text)) > 16
    assert model.training


def test_the_routing_figure_is_that_of_models_with_a_pattern(data):
    window = srmlab.load_tokenizer(data)("alpha beta gamma").tokens[0]
    figure = routing_figure(srmlab.build(MODEL), window, 1)
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes[:3]] == ["layer 0*", "layer 1", "layer 2"]
    assert routing_figure(srmlab.build(GPT2), window, 1) is None


def test_an_id_is_drawn_once_for_every_run_and_old_runs_keep_theirs(tmp_path):
    first, second, old = (tmp_path / name / "nano" for name in ("a", "b", "c"))
    for run in (first, second):
        run.mkdir(parents=True)
    (old / "wandb").mkdir(parents=True)
    assert wandb_id(first) == wandb_id(first) != wandb_id(second)
    assert wandb_id(old) == "nano"


def test_tensorboard_has_the_config_the_samples_and_the_routing(data, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(small_config(tensorboard=True), MODEL, data, tmp_path / "run", preset="srm-nano", show=False)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    (config,) = events.Tensors("config/text_summary")
    lines = config.tensor_proto.string_val[0].decode().splitlines()
    content = json.loads("\n".join(line.removeprefix("    ") for line in lines))
    assert content["model"] == MODEL.to_dict()
    assert content["preset"] == "srm-nano"
    assert content["data"]["fingerprint"] == open_tokens(data).fingerprint
    evaluated = [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "val_loss" in row]
    assert [event.step for event in events.Tensors("written/text_summary")] == evaluated == [5, 10, 12]
    assert "▸" in events.Tensors("written/text_summary")[0].tensor_proto.string_val[0].decode()
    assert [event.step for event in events.Images("routing")] == evaluated


def test_writers_change_no_number_of_a_run(data, tmp_path):
    pytest.importorskip("tensorboard")
    for name, on in (("with", True), ("without", False)):
        train(small_config(tensorboard=on), MODEL, data, tmp_path / name, show=False)
    with_it, without = (
        [row.get("loss", row.get("val_loss")) for row in read_metrics(tmp_path / name / "metrics.jsonl")]
        for name in ("with", "without")
    )
    assert with_it == without


def test_weights_and_biases_keeps_one_run_over_resuming(data, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = tmp_path / "run"
    train(small_config(wandb="project", steps=5), MODEL, data, run, show=False)
    drawn = (run / WANDB_ID).read_text()
    resume(run, show=False)
    folders = [folder.name for folder in (run / "wandb").glob("offline-run-*")]
    assert folders
    assert {name.rsplit("-", 1)[1] for name in folders} == {drawn}
    writer = WeightsAndBiases("project", run, plan(data))
    try:
        assert writer._run.id == drawn
        kept = dict(writer._run.config)
        assert kept["model"] == json.loads(json.dumps(MODEL.to_dict()))
        assert kept["preset"] == "srm-nano"
        assert kept["data"]["path"] == str(data)
    finally:
        writer.close()
    assert wandb.run is None


def test_without_a_login_weights_and_biases_is_refused_in_one_line(data, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")

    def init(**_):
        raise wandb.errors.UsageError("No API key configured.\nUse `wandb login` to log in.")

    monkeypatch.setattr(wandb, "init", init)
    run = tmp_path / "run"
    with pytest.raises(UserError, match=f"No API key configured.*WANDB_MODE=offline.*srmlab resume {run}"):
        train(small_config(wandb="project", steps=5), MODEL, data, run, show=False)
    monkeypatch.undo()
    assert resume(run, wandb=None, show=False).step == 5
