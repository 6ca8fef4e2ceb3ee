"""Training depth as a function of the step: the schedules, the passes they lead to, and their arithmetic."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from itertools import product

import pytest
import torch
from small_runs import GPT2, MODEL, RANDOM_ORDER, TRM, loss_log, losses, small_config

from srmlab.errors import UserError
from srmlab.models import build
from srmlab.storage import read_metrics
from srmlab.training import TrainConfig, train
from srmlab.training.config import identity
from srmlab.training.depth import TrainingDepth, depth_at

LEARNED = MODEL.replace(z0="learned", gradient_depth=3)
SR2 = TRM.replace(gradient="all")


def depths(schedule, steps=12, seed=0, depth=4, gradient_depth=2):
    return [
        depth_at(schedule, step, steps=steps, seed=seed, depth=depth, gradient_depth=gradient_depth)
        for step in range(1, steps + 1)
    ]


def test_a_constant_depth_is_the_models():
    assert set(depths("constant")) == {(4, None)}


def test_a_growing_depth_takes_equal_stretches_and_ends_at_the_models():
    assert depths("grow:2") == [(2, None)] * 4 + [(3, None)] * 4 + [(4, None)] * 4
    assert depths("grow:1/1") == [(1, 1)] * 3 + [(2, 1)] * 3 + [(3, 2)] * 3 + [(4, 2)] * 3
    assert depths("grow:4") == [(4, None)] * 12


def test_a_drawn_depth_is_uniform_and_a_function_of_seed_and_step():
    drawn = depths("draw:2", steps=3000)
    assert drawn == depths("draw:2", steps=3000)
    assert drawn != depths("draw:2", steps=3000, seed=1)
    counts = Counter(n for n, _ in drawn)
    assert set(counts) == {2, 3, 4}
    assert all(abs(count - 1000) < 120 for count in counts.values())


def test_a_drawn_gradient_is_never_deeper_than_the_pass():
    drawn = set(depths("draw:1/1", steps=500, gradient_depth=4))
    assert all(1 <= l <= n <= 4 for n, l in drawn)
    assert len(drawn) == 10


@pytest.mark.parametrize("model", [MODEL, TRM], ids=["SRM", "TRM"])
@pytest.mark.parametrize("gradient_depth", [None, 1])
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_pass_at_another_depth_is_the_model_of_that_depth(model, depth, gradient_depth):
    ours = build(model).train()
    theirs = build(model.at_depth(depth, gradient_depth)).train()
    tokens = torch.randint(257, (2, 16), generator=torch.Generator().manual_seed(0))
    ours(tokens, tokens, depth=depth, gradient_depth=gradient_depth).backward()
    theirs(tokens, tokens).backward()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine.grad, other.grad)


def test_random_orders_are_drawn_for_as_many_layers_as_are_run():
    ours, theirs = build(RANDOM_ORDER), build(RANDOM_ORDER.at_depth(2))
    tokens = torch.arange(16)[None]
    for mode in (True, False):
        assert torch.equal(ours.train(mode)(tokens, depth=2), theirs.train(mode)(tokens))


@pytest.mark.parametrize("changes", [{}, {"accumulate": 2}, {"activation_checkpointing": True}])
def test_a_run_of_one_scheduled_depth_has_the_losses_of_the_model_of_that_depth(changes, data, tmp_path):
    config = small_config(steps=4, **changes)
    train(config, MODEL, data, tmp_path / "constant", show=False)
    train(config.replace(depth_schedule="grow:3"), MODEL, data, tmp_path / "grow", show=False)
    assert losses(tmp_path / "grow") == losses(tmp_path / "constant")


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about its own doings
def test_compiling_changes_no_loss_of_a_scheduled_run(data, tmp_path):
    config = small_config(steps=4, depth_schedule="draw:1/1")
    train(config, MODEL, data, tmp_path / "plain", show=False)
    train(config.replace(compile=True), MODEL, data, tmp_path / "compiled", show=False)
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "plain"), rel=1e-4)


@pytest.mark.parametrize("model", [MODEL, TRM], ids=["SRM", "TRM"])
def test_the_log_has_the_depth_and_the_arithmetic_of_every_step(model, data, tmp_path):
    config = small_config(steps=6, depth_schedule="grow:1")
    train(config, model, data, tmp_path, show=False)
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if "loss" in row]
    n = build(model, device="meta").depth
    expected = [1 + (n * i) // 6 for i in range(6)]
    assert [row["depth"] for row in rows] == expected
    for row in rows:
        at = build(model.at_depth(row["depth"]), device="meta").flops_per_token(16).training
        assert row["flops"] == at * 4 * 16
        assert row["mfu"] == pytest.approx(row["flops"] / 1e11 * row["tokens_per_second"] / (4 * 16))
    depth = TrainingDepth(TrainConfig(depth_schedule="grow:1", steps=6, warmup=0, context=16), model)
    assert depth.mean_flops() * 6 * 64 == pytest.approx(sum(row["flops"] for row in rows))


def test_without_a_schedule_the_log_is_as_it_was(data, tmp_path):
    train(small_config(steps=3), MODEL, data, tmp_path, show=False)
    assert not any("depth" in row or "flops" in row for row in loss_log(tmp_path))


def test_the_schedule_decides_the_result():
    assert identity(TrainConfig(depth_schedule="draw:2"))["depth_schedule"] == "draw:2"


@pytest.mark.parametrize("schedule", ["grow", "draw:0", "grow:2/0", "draw:1/1/1", "shrink:2"])
def test_an_unknown_schedule_is_refused(schedule):
    with pytest.raises(
        UserError, match=r'depth_schedule = .*: must be "constant", "poisson", or such as "grow:2"'
    ):
        TrainConfig(depth_schedule=schedule)


@pytest.mark.parametrize(
    ("model", "schedule", "message"),
    [
        (MODEL, "grow:4", "the model has 3 levels; start from at most that"),
        (MODEL, "draw:3/3", "the model has 2 levels in the gradient; start from at most that"),
        (GPT2, "grow:1", "gpt2 cannot run at another depth"),
        (SR2, "draw:2/1", r"use draw:2 \(gradient_depth = 1: the gradient of hrm goes through 2 of 2 levels"),
        (SR2, "grow:2/1", r"use grow:2 \(gradient_depth = 1"),
        (SR2, "draw:1/1", r"use draw:1 \(gradient_depth = 1"),  # of the one level at first, later of two
        (LEARNED, "draw:1/1", r"use draw:1 \(.*z0"),
    ],
)
def test_a_schedule_that_the_model_cannot_follow_is_refused_before_anything_is_written(
    model, schedule, message, data, tmp_path
):
    with pytest.raises(UserError, match=message):
        train(small_config(depth_schedule=schedule), model, data, tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["grow", "draw"])
@pytest.mark.parametrize("model", [MODEL, LEARNED, TRM, SR2], ids=["SRM", "learned z0", "TRM", "SR2"])
def test_a_schedule_is_refused_exactly_if_one_of_its_steps_would_be(model, kind):
    n, l = (3, model.gradient_depth) if model in (MODEL, LEARNED) else (2, 2 if model is SR2 else 1)
    outcomes = set()
    for least, least_gradient in product(range(1, n + 1), range(1, l + 1)):
        config = small_config(steps=60, depth_schedule=f"{kind}:{least}/{least_gradient}")
        asked = depths(config.depth_schedule, 60, depth=n, gradient_depth=l)
        refused = not all(accepts(model, *at) for at in asked)
        with pytest.raises(UserError) if refused else nullcontext():
            TrainingDepth(config, model)
        outcomes.add(refused)
    assert outcomes == ({False} if model in (MODEL, TRM) else {False, True})


def accepts(model, *depth) -> bool:
    try:
        return bool(model.at_depth(*depth))
    except UserError:
        return False


@pytest.mark.parametrize("options", [{}, {"targets": torch.arange(4)[None], "progress": 0.5}], ids=str)
@pytest.mark.parametrize("depth", [2, 5])
def test_hooks_at_another_depth_are_refused(depth, options):
    model = build(MODEL)
    with (
        model.hooks([("layers.0.out", lambda z, hook: None)]),  # noqa: ARG005
        pytest.raises(UserError, match="hooks need every site"),
    ):
        model(torch.arange(4)[None], depth=depth, **options)
