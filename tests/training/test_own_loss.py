"""A model that minimises more than the cross-entropy: its parts are logged, its stages follow, it resumes."""

from __future__ import annotations

import pytest
import torch
from small_runs import VOCAB, loss_log, small_config, state, train_twice

import srmlab
from srmlab.models import HuginnConfig, ModelConfig, MoRConfig, Ouro, OuroConfig
from srmlab.storage import read_metrics
from srmlab.training import train

OURO = OuroConfig(vocab_size=VOCAB, context=16, dim=8, heads=2, head_dim=4, mlp_dim=12, blocks=1, loops=3)
HUGINN = HuginnConfig(
    vocab_size=VOCAB, context=16, dim=8, heads=2, head_dim=4, mlp_dim=12,
    prelude=1, core=1, coda=1, steps=3, gradient_depth=2,
)  # fmt: skip
MOR = MoRConfig(
    vocab_size=VOCAB, context=16, dim=8, heads=2, kv_heads=2, head_dim=4, mlp_dim=12, core=1, recursions=2
)
MODELS: dict[str, tuple[ModelConfig, set[str]]] = {
    "ouro": (OURO, {"expected", "entropy", "exit_loop", "cross_entropy"}),
    "mor": (MOR, {"cross_entropy", "router", "recursions"}),
    "mor by token": (MOR.replace(choice="token"), {"cross_entropy", "balance", "z", "recursions"}),
    "huginn": (HUGINN, set()),  # minimises the cross-entropy, from random states at drawn depths
}


@pytest.mark.parametrize("name", MODELS)
def test_it_resumes_bitwise_and_logs_its_parts(name, data, tmp_path, monkeypatch):
    model, parts = MODELS[name]
    drawn = "poisson" if name == "huginn" else "constant"
    config = small_config(steps=6, accumulate=2, depth_schedule=drawn)
    whole, stopped = train_twice(config, model, data, tmp_path, monkeypatch)
    assert state(stopped) == state(whole)
    assert loss_log(stopped) == loss_log(whole)
    rows = [row for row in read_metrics(tmp_path / "stopped" / "metrics.jsonl") if "loss" in row]
    assert all(set(row.get("parts", ())) == parts for row in rows)


def test_what_is_logged_does_not_depend_on_the_order_of_the_parts(data, tmp_path, monkeypatch):
    train(small_config(steps=3), OURO, data, tmp_path / "first", show=False)
    training_loss = Ouro.training_loss

    def loss_last(*given):
        found = training_loss(*given)
        return {name: found[name] for name in reversed(found)}

    monkeypatch.setattr(Ouro, "training_loss", loss_last)
    train(small_config(steps=3), OURO, data, tmp_path / "last", show=False)
    assert loss_log(tmp_path / "last") == loss_log(tmp_path / "first")


def test_the_second_stage_of_ouro_trains_the_gate_alone_on_the_weights_of_the_first(data, tmp_path):
    train(small_config(steps=3), OURO, data, tmp_path / "first", show=False)
    second = OURO.replace(trains="gate")
    train(small_config(steps=3), second, data, tmp_path / "second", init_from=tmp_path / "first", show=False)
    before, after = (srmlab.load(tmp_path / name).state_dict() for name in ("first", "second"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"gate.weight", "gate.bias"}
