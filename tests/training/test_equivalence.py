"""Ways to compute the same: accumulation, activation checkpointing, bfloat16, compiling, document masks."""

import pytest
import torch
from small_runs import GPT2, MODEL, RANDOM_ORDER, TRM, losses, small_config

from srmlab.models import build
from srmlab.storage import read_metrics
from srmlab.training import train
from srmlab.training.recompute import recompute_activations


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory) -> list[float]:
    run = tmp_path_factory.mktemp("plain") / "run"
    train(small_config(), MODEL, data, run, show=False)
    return losses(run)


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        ({"accumulate": 4}, 1e-5),
        ({"activation_checkpointing": True}, 1e-6),
        ({"dtype": "bfloat16"}, 0.05),
        ({"dtype": "bfloat16", "activation_checkpointing": True, "accumulate": 2}, 0.05),
        ({"clip": 1e9}, 1e-6),
        ({"log_every": 1, "keep_checkpoints": 1, "checkpoint_every": 1}, 0.0),
    ],
    ids=["accumulate", "recompute", "bfloat16", "all three", "loose clip", "logging"],
)
def test_the_losses_are_the_same(changes, tolerance, plain, data, tmp_path):
    train(small_config(**changes), MODEL, data, tmp_path / "run", show=False)
    assert losses(tmp_path / "run") == pytest.approx(plain, abs=tolerance)


def test_a_random_order_is_that_of_all_micro_batches(data, tmp_path):
    for accumulate in (1, 2):
        config = small_config(steps=4, accumulate=accumulate)
        train(config, RANDOM_ORDER, data, tmp_path / f"{accumulate}", show=False)
    assert losses(tmp_path / "2") == pytest.approx(losses(tmp_path / "1"), abs=1e-5)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about its own doings
def test_compiling_changes_no_loss(plain, data, tmp_path):
    train(small_config(compile=True), MODEL, data, tmp_path / "run", show=False)
    assert losses(tmp_path / "run") == pytest.approx(plain, abs=1e-4)


def test_bfloat16_reaches_the_gradient_of_every_weight():
    """The layers without gradient must not leave cast copies behind for those with."""
    model = build(MODEL)
    tokens = torch.arange(16)[None]
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        model(tokens, tokens).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize("config", [MODEL, GPT2, TRM], ids=["SRM", "GPT-2 with dropout", "TRM"])
def test_recomputing_gives_the_same_gradients(config):
    tokens = torch.randint(257, (2, 16), generator=torch.Generator().manual_seed(0))
    grads = []
    for recompute in (False, True):
        model = build(config).train()
        names = list(model.state_dict())
        if recompute:
            recompute_activations(model)
        assert list(model.state_dict()) == names
        torch.manual_seed(0)
        model(tokens, tokens).backward()
        grads.append([parameter.grad for parameter in model.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, atol=1e-7, rtol=1e-5)


def test_a_document_mask_changes_what_is_learned(plain, data, tmp_path):
    train(small_config(document_mask=True), MODEL, data, tmp_path / "run", show=False)
    assert losses(tmp_path / "run") != plain


def test_a_tight_clip_bounds_the_gradient_but_reports_its_true_norm(plain, data, tmp_path):
    train(small_config(clip=1e-3, optimizer="adamw"), MODEL, data, tmp_path / "run", show=False)
    norms = [row["grad_norm"] for row in read_metrics(tmp_path / "run/metrics.jsonl") if "loss" in row]
    assert min(norms) > 1e-3
    assert losses(tmp_path / "run")[0] == plain[0]


def test_metrics_hold_what_they_promise(data, tmp_path):
    result = train(small_config(), MODEL, data, tmp_path / "run", show=False)
    rows = read_metrics(tmp_path / "run/metrics.jsonl")
    steps = [row for row in rows if "loss" in row]
    assert [row["tokens"] for row in steps] == [64 * n for n in range(1, 13)]
    assert all(row["mfu"] > 0 and row["tokens_per_second"] > 0 for row in steps)
    evaluations = [row for row in rows if "val_loss" in row]
    assert [row["step"] for row in evaluations] == [5, 10, 12]
    norms = evaluations[-1]["state_norms"]["layers.2.out"]
    assert norms == pytest.approx([8**0.5] * 3, rel=1e-3)  # a state without learned norm weights has rms 1
    assert result.val_loss == evaluations[-1]["val_loss"]
    assert result.loss == pytest.approx(sum(row["loss"] for row in steps) / 12)
