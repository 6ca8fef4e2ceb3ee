"""bf16 autocast, and models without memory on the meta device."""

from __future__ import annotations

import pytest
import torch
from small_models import HRM_TINY, ONE_OF_EACH, SMALL, SRM_TINY, TRANSFORMER_TINY, gradients, some_tokens

from srmlab.models import build, preset

PUZZLES = {
    f"{name}, puzzles": config.replace(causal=False, puzzle_positions=1, learned_positions=True)
    for name, config in (("srm", SRM_TINY), ("hrm", HRM_TINY), ("transformer", TRANSFORMER_TINY))
}
NANO = ["srm-nano", "hrm-nano", "trm-nano", "gpt2-nano"]


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a.float() - b).norm() / b.norm()).item()


@pytest.mark.parametrize("name", NANO)
def test_bf16_autocast_is_finite_and_close_forward_and_backward(name):
    model = build(preset(name))
    tokens = some_tokens(2, 32, vocab=512)
    targets = tokens.roll(-1, 1)
    logits, loss = model(tokens), model(tokens, targets)
    exact = gradients(model, loss)
    with torch.autocast("cpu", torch.bfloat16):
        low_logits, low_loss = model(tokens), model(tokens, targets)
    rough = gradients(model, low_loss)

    assert low_logits.isfinite().all()
    assert relative(low_logits, logits) < 0.03
    assert low_loss.dtype == torch.float32
    assert low_loss.item() == pytest.approx(loss.item(), rel=0.003)
    for parameter in exact:
        assert rough[parameter].dtype == torch.float32
        assert rough[parameter].isfinite().all()
        assert relative(rough[parameter], exact[parameter]) < 0.15, parameter


@pytest.mark.parametrize("name", NANO)
def test_looking_under_autocast_is_as_close(name):
    model = build(preset(name))
    tokens = some_tokens(1, 16, vocab=512)
    logits = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        watched, cache = model.run_with_cache(tokens)
    assert relative(watched, logits) < 0.03
    assert all(value.isfinite().all() for value in cache.values())


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_model_cast_to_bf16_runs_and_keeps_exact_positions(name):
    model = build(ONE_OF_EACH[name], dtype=torch.bfloat16)
    loss = model(some_tokens(), some_tokens())
    assert loss.isfinite()
    loss.backward()
    if hasattr(model, "rotary"):
        assert {table.dtype for table in model.rotary.ready.values()} == {torch.float32}


def test_norms_are_computed_wider_than_their_input():
    model = build(SRM_TINY)
    x = torch.full((3, 1, 1, 8), 300.0, dtype=torch.bfloat16)  # 300² is coarse in bf16, and its mean coarser
    normed = model.layer.norm(x)
    assert normed.dtype == torch.bfloat16
    assert torch.equal(normed, torch.ones_like(x))


@pytest.mark.parametrize("name", ["srm-large", "srm-base", "hrm", "gpt2", "srm-sweep-width-1"])
def test_the_large_models_build_without_memory(name):
    model = build(preset(name), device="meta")
    assert all(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    assert model.num_parameters() > 60_000_000


@pytest.mark.parametrize("config", [*SMALL.values(), *PUZZLES.values()], ids=[*SMALL, *PUZZLES])
def test_a_meta_model_filled_later_is_the_model_built_directly(config):
    direct = build(config).state_dict()
    model = build(config, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(torch.nan)  # what to_empty leaves may be anything
    model.initialize()
    filled = model.state_dict()
    assert filled.keys() == direct.keys()
    assert [key for key in direct if not torch.equal(filled[key], direct[key])] == []
    assert torch.equal(model.eval()(some_tokens()), build(config).eval()(some_tokens()))


@pytest.mark.parametrize("z0", ["zero", "input", "learned"])
def test_every_kind_of_first_state_is_filled(z0):
    config = SRM_TINY.replace(z0=z0, gradient_depth=SRM_TINY.depth)
    model = build(config, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        model.z0.fill_(torch.nan)
    model.initialize()
    assert torch.equal(model.z0, build(config).z0)


def test_a_random_order_builds_on_the_meta_device():
    config = SRM_TINY.replace(order="random:3")
    assert build(config, device="meta").evaluation_orders == build(config).evaluation_orders
