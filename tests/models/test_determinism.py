"""The same config gives bitwise the same model; random step orders are part of the training state."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from small_models import (
    GPT2_TINY,
    ONE_OF_EACH,
    SMALL,
    SRM_TINY,
    TRANSFORMER_TINY,
    gradients,
    small,
    some_tokens,
)

from srmlab.models import build, generate

RANDOM = SRM_TINY.replace(order="random:4")


def bitwise(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name", SMALL)
def test_the_same_config_gives_bitwise_the_same_weights_logits_and_gradients(name):
    tokens = some_tokens()
    torch.manual_seed(1)
    one = build(SMALL[name])
    torch.manual_seed(2)  # the global generator has no say
    two = build(SMALL[name])
    assert bitwise(one.state_dict(), two.state_dict())
    logits = one(tokens), two(tokens)
    assert torch.equal(*logits)
    assert bitwise(*(gradients(m, m(tokens, tokens)) for m in (one, two)))


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_another_seed_gives_other_weights(name):
    config = ONE_OF_EACH[name]
    one, two = build(config), build(config.replace(init_seed=1))
    assert not bitwise(one.state_dict(), two.state_dict())


@pytest.mark.parametrize("name", SMALL)
def test_a_state_dict_round_trip_is_bitwise(name, tmp_path):
    model = build(SMALL[name])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other = build(SMALL[name].replace(init_seed=9))
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert bitwise(model.state_dict(), other.state_dict())
    assert torch.equal(model.eval()(some_tokens()), other.eval()(some_tokens()))


def test_the_first_state_travels_with_the_weights():
    model = build(SRM_TINY)
    assert "z0" in model.state_dict()
    assert model.z0.std() > 0.5


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_is_a_whole_model_of_its_own(name, duplicate):
    model = small(SMALL[name])
    twin = duplicate(model)
    tokens = some_tokens()
    assert torch.equal(twin(tokens), model(tokens))
    site = "logits"
    with twin.hooks([(site, lambda value, hook: value * 0)]):  # noqa: ARG005
        assert not twin(tokens).any()
        assert model(tokens).any()


def test_a_random_order_in_training_comes_from_the_order_generator_and_moves_it_on():
    model = build(RANDOM).train()
    state = model.order_generator.get_state()
    first, second = model.draw_orders(), model.draw_orders()
    assert first != second
    assert not torch.equal(model.order_generator.get_state(), state)
    model.order_generator.set_state(state)
    assert (model.draw_orders(), model.draw_orders()) == (first, second)


def test_a_forward_pass_in_training_draws_once():
    model, other = build(RANDOM).train(), build(RANDOM).train()
    model(some_tokens())
    other.draw_orders()
    assert torch.equal(model.order_generator.get_state(), other.order_generator.get_state())


def test_a_random_order_in_evaluation_is_fixed_by_its_seed():
    model = build(RANDOM).eval()
    state = model.order_generator.get_state()
    tokens = some_tokens()
    assert torch.equal(model(tokens), model(tokens))
    assert torch.equal(model.order_generator.get_state(), state)
    assert build(RANDOM).eval().draw_orders() == model.draw_orders()
    assert build(RANDOM.replace(order_seed=1)).eval().draw_orders() != model.draw_orders()


def test_each_layer_draws_its_own_random_order():
    orders = build(RANDOM.replace(depth=8, order="random:6")).eval().draw_orders()
    assert len(orders) == 8
    assert all(len(order) == 6 and set(order) <= {0, 1, 2} for order in orders)
    assert len(set(orders)) > 1


def test_a_fixed_order_draws_nothing():
    model = build(SRM_TINY.replace(order="ABCCBA")).train()
    state = model.order_generator.get_state()
    assert model.draw_orders() == ((0, 1, 2, 2, 1, 0),) * SRM_TINY.depth
    assert torch.equal(model.order_generator.get_state(), state)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_model_first_used_in_inference_mode_can_still_be_trained(name):
    model = build(ONE_OF_EACH[name])
    with torch.inference_mode():
        model(some_tokens())
    model(some_tokens(), some_tokens(), progress=0.5)["loss"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_model_that_has_generated_can_still_be_trained(name):
    model = build(ONE_OF_EACH[name]).train()
    generate(model, some_tokens(), max_new_tokens=2, seed=0)
    assert model.training
    model(some_tokens(), some_tokens(), progress=0.5)["loss"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_gpt2s_weights_can_start_scaled_to_its_width():
    fixed, scaled = (build(GPT2_TINY.replace(init=init)) for init in ("0.02", "width"))
    ratio = (768 / GPT2_TINY.dim) ** 0.5
    for name, p in fixed.named_parameters():
        torch.testing.assert_close(scaled.get_parameter(name), p * (ratio if p.ndim == 2 else 1))


def test_what_a_transformer_adds_to_its_stream_starts_smaller_by_the_root_of_how_often():
    model = build(TRANSFORMER_TINY)
    for name, p in model.blocks.named_parameters():
        scale = (2 * TRANSFORMER_TINY.blocks) ** -0.5 if "attn_out" in name or "mlp_down" in name else 1
        assert 0.6 * scale < p.std() * p.shape[1] ** 0.5 < 1.1 * scale


def test_connections_with_weights_of_their_own_start_neutral():
    gates = build(SMALL["srm with translation"]).layer.connection.gates
    assert torch.equal(gates, torch.zeros_like(gates))
    matrix = build(SMALL["srm with mixing"]).layer.connection.matrix
    torch.testing.assert_close(matrix, (1 - torch.eye(3)) / 2**0.5)


OWN_SCALE = ("gpt2", "transformer", "huginn")  # held in their own tests


@pytest.mark.parametrize("name", [name for name in SMALL if name not in OWN_SCALE])
def test_weights_start_as_a_truncated_normal_of_their_fan_in(name):
    model = build(SMALL[name])
    for parameter_name, p in model.named_parameters():
        if "norm" in parameter_name:
            assert torch.equal(p, torch.ones_like(p))
        elif parameter_name.endswith(("connection.gates", "connection.matrix")):
            continue
        elif parameter_name.startswith("routers."):
            continue  # a row or three: too few numbers for a spread
        elif parameter_name.startswith("gate."):
            assert not p.any()
        elif ".links." in parameter_name:  # an ordinary residual stream, held in test_hyper.py
            continue
        elif name in (
            "ouro with plain blocks",
            "hyper",
            "hyper in a loop",
            "mor",
            "mor by token",
        ) and parameter_name.endswith(("attn_out.weight", "mlp_down.weight")):
            assert p.std() < 0.6 / p.shape[1] ** 0.5  # many of them add up
        else:
            fan_in = p.shape[1] if p.ndim == 3 or "embedding" not in parameter_name else p.shape[-1]
            assert p.abs().max() <= 2 / fan_in**0.5 + 1e-6
            assert p.std() > 0.6 / fan_in**0.5
