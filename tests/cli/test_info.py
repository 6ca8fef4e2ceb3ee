"""`srmlab info`: everything adds up, and everything fits a terminal."""

from __future__ import annotations

import json

import pytest
import torch

import srmlab
from srmlab.cli.export import export_huggingface
from srmlab.cli.info import Command, changed, describe, report, site_scheme
from srmlab.errors import UserError
from srmlab.models import PRESETS, SWEEP_PRESETS
from srmlab.storage.metrics_file import read_metrics
from subjects import trained_run


@pytest.mark.parametrize("name", [*PRESETS, *SWEEP_PRESETS])
def test_the_parts_sum_to_all_parameters_and_the_report_fits_80_columns(name):
    config = srmlab.preset(name)
    answer = describe(config, name)
    assert sum(part["parameters"] for part in answer["parts"]) == answer["parameters"]
    assert sum(part["share"] for part in answer["parts"]) == pytest.approx(1)
    text = report(config, answer)
    assert max(map(len, text.splitlines())) <= 80
    assert all(line == line.rstrip() for line in text.splitlines())


def test_the_parts_of_srm_base_are_the_papers():
    answer = describe(srmlab.preset("srm-base"), "srm-base")
    S, D, E = 32, 128, 512
    step = S * (4 * D * 2 * 64 + 2 * D * 768)
    assert {part["name"]: part["parameters"] for part in answer["parts"]} == {
        "embedding": 50257 * E,
        "to streams": E * S * D,
        "connection": S * 4 * D * 4 * 64,
        "step A": step,
        "step B": step,
        "step C": step,
        "post-step 0": step,
        "from streams": S * D * E,
    }


@pytest.mark.parametrize(
    ("name", "changes", "parts"),
    [
        ("srm-nano", {"norm_affine": True, "pre_steps": 1}, {"pre-step 0", "update norm", "step A"}),
        ("srm-nano", {"tied": False, "z0": "learned", "gradient_depth": 8}, {"unembedding", "z0"}),
        ("hrm-nano", {"tied": False}, {"embedding", "L block 0", "H block 1", "unembedding"}),
        ("gpt2-nano", {"tied": False}, {"embedding", "positions", "block 5", "final norm", "unembedding"}),
    ],
)
def test_options_that_add_parameters_add_parts(name, changes, parts):
    answer = describe(srmlab.preset(name, **changes), name)
    assert parts <= {part["name"] for part in answer["parts"]}
    assert sum(part["parameters"] for part in answer["parts"]) == answer["parameters"]
    assert answer["changed"]
    assert answer["paper"] is None


@pytest.mark.parametrize(
    "name",
    ["srm-nano", "hrm-nano", "trm-nano", "gpt2-nano", "ouro-nano", "hyper-nano", "huginn-nano", "mor-nano"],
)
def test_the_cache_bytes_are_those_of_a_real_cache(name):
    model = srmlab.build(srmlab.preset(name)).eval()
    cache = model.new_cache(capacity=1)
    with torch.no_grad():
        model(torch.zeros(1, 1, dtype=torch.long), cache=cache)
    real = sum(t.nbytes for slot in cache for t in (slot.keys, slot.values) if t is not None)
    assert describe(model.config, name)["cache_bytes_per_token"]["float32"] == real


def test_json_tells_what_the_report_tells(capsys):
    Command("srm-med", json=True).run()
    answer = json.loads(capsys.readouterr().out)
    model = srmlab.build(srmlab.preset("srm-med"), device="meta")
    assert answer["parameters"] == model.num_parameters() == 134_783_488
    assert answer["paper"] == "134M"
    assert answer["flops_per_token"]["training"] == model.flops_per_token(1024).training
    assert answer["weight_bytes"]["float32"] == 4 * 134_783_488
    assert answer["sites"]["count"] == len(model.site_names)
    assert srmlab.config_from_dict(answer["config"]) == model.config


@pytest.mark.parametrize("name", PRESETS)
def test_the_site_scheme_counts_every_site_once(name):
    names = srmlab.build(srmlab.preset(name), device="meta").site_names
    scheme = site_scheme(names)
    assert sum(scheme.values()) == len(names)
    if name == "srm-base":
        assert scheme["layers.{l}.steps.{i}.in|attn|mlp|out"] == 8 * 6 * 4
        assert scheme["layers.{l}.connection.pattern|out"] == 8 * 2


def test_set_reads_each_value_as_the_type_of_its_field():
    config = changed(srmlab.preset("srm-nano"), ("streams=16", "order=ABCCBA", "tied=False", "norm_eps=1e-6"))
    assert config == srmlab.preset("srm-nano", streams=16, order="ABCCBA", tied=False, norm_eps=1e-6)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("streams", "--set streams: write FIELD=VALUE, such as --set context=512"),
        ("strems=3", "strems: not a field of SRMConfig; did you mean 'streams'?"),
        ("streams=many", "streams = 'many': must be a whole number"),
        ("tied=maybe", "tied = 'maybe': must be true or false"),
        ("gradient_depth=9", "gradient_depth = 9: must be between 1 and depth = 8"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_in_one_line(setting, message):
    with pytest.raises(UserError) as refused:
        changed(srmlab.preset("srm-nano"), (setting,))
    assert str(refused.value) == message


def test_changed_fields_are_marked(capsys):
    Command("srm-nano", set=("streams=3",)).run()
    out = capsys.readouterr().out
    assert out.startswith("srm-nano, changed: ")
    assert "* streams           3" in out
    assert "paper" not in out


def test_the_values_of_the_config_are_in_one_column(capsys):
    Command("srm-nano").run()
    out = capsys.readouterr().out
    assert "learned_positions False" in out
    assert "embedding_scale   True" in out


def test_a_model_of_puzzles_has_no_decoding_cache_to_show(capsys):
    Command("srm-sudoku-nano").run()
    assert "decoding cache" not in capsys.readouterr().out
    Command("srm-nano").run()
    assert "decoding cache" in capsys.readouterr().out


def test_the_layer_is_drawn_with_its_steps_in_order():
    lines = srmlab.preset("srm-nano", order="ABCCBA").drawing.splitlines()
    assert max(map(len, lines)) <= 80
    steps = [line for line in lines if line.endswith("(z + y)")]
    assert [line.split()[2][0] for line in steps] == list("ABCCBA")
    assert next(i for i, line in enumerate(lines) if "connection(z)" in line) < lines.index(steps[0])


def test_the_drawing_shows_the_options():
    text = srmlab.preset(
        "srm-nano", order="random:4", pre_steps=1, post_steps=2, post_input="state+update", z0="zero"
    ).drawing
    assert text.count("z = ?(z + y)") == 4
    assert "one of A, B, C, drawn for every step" in text
    assert text.count("x = P0(x)") == 1
    assert "z = Q0(z + y)" in text
    assert "z = Q1(z + y)" in text
    assert "z₀   zero" in text
    assert "gradient through the last 4" in text
    assert "gradient through all" in srmlab.preset("srm-nano", gradient_depth=8).drawing
    assert "c = sum of the others" in srmlab.preset("srm-nano", connection="addition").drawing


def test_the_baselines_have_their_own_drawings():
    assert "L(z_L + z_H + x)" in srmlab.preset("hrm").drawing
    assert "One net plays both parts" in srmlab.preset("trm").drawing
    assert "12 blocks, each with its own weights" in srmlab.preset("gpt2").drawing


def test_a_run_says_how_far_it_was_trained_and_what_it_lost(tmp_path, capsys):
    run = trained_run(tmp_path)
    capsys.readouterr()
    Command(str(run), json=True).run()
    answer = json.loads(capsys.readouterr().out)
    about, log = answer["about"], read_metrics(run / "metrics.jsonl")
    assert answer["parameters"] == srmlab.load(run).num_parameters()
    assert (about["kind"], about["tokenizer"]) == ("run", "byte")
    assert about["loss"]["step"] == about["training"]["steps"] == log[-1]["step"]
    validation = [row["val_loss"] for row in log if "val_loss" in row]
    assert about["loss"]["validation"] == validation[-1]
    assert about["loss"]["lowest_validation"]["loss"] == min(validation)
    Command(str(run)).run()
    text = capsys.readouterr().out
    assert f"{run}: a run" in text
    assert "in validation" in text
    for step in about["checkpoints"]:
        Command(str(run / "checkpoints" / f"step-{step}"), json=True).run()
        checkpoint = json.loads(capsys.readouterr().out)["about"]
        assert (checkpoint["kind"], checkpoint["step"], checkpoint["loss"]["step"]) == (
            "checkpoint",
            step,
            step,
        )


def test_exports_of_both_kinds_and_the_shipped_model_are_described(tmp_path, capsys):
    model = srmlab.build(srmlab.preset("hrm-nano"))
    srmlab.save(model, tmp_path / "ours")
    export_huggingface(model, tmp_path / "theirs", None)
    for name, kind in (("ours", "an export"), ("theirs", "an export for Hugging Face tools")):
        Command(str(tmp_path / name)).run()
        text = capsys.readouterr().out
        assert text.startswith(f"{tmp_path / name}: {kind}\n")
        assert f"hrm: {model.num_parameters():,} parameters" in text
    Command(pretrained=True).run()
    text = capsys.readouterr().out
    assert "4,000 of 4,000 steps" in text
    assert max(map(len, text.splitlines()[1:])) <= 80


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": "runs/nothing"}, "runs/nothing does not exist: give a preset, a run, a checkpoint"),
        ({"name": "."}, "is not a run, checkpoint or export"),
        ({"name": "srm-nano", "pretrained": True}, "give either srm-nano or --pretrained"),
        ({"pretrained": True, "set": ("streams=3",)}, "--set changes a preset"),
        ({}, "NAME missing"),
    ],
)
def test_what_cannot_be_described_is_refused(arguments, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=says):
        Command(**arguments).run()
