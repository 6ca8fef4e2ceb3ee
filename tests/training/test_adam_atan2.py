"""Adam-atan2 against its formulas, written out in numpy with double precision."""

import math

import numpy as np
import pytest
import torch

from srmlab.models import HyperConfig, TransformerConfig, build
from srmlab.training import AdamAtan2, TrainConfig
from srmlab.training.optimizer import build_optimizer

SIZES = {"vocab_size": 11, "context": 6, "dim": 8, "heads": 2, "head_dim": 4, "mlp_dim": 8}
TRANSFORMER, HYPER = TransformerConfig(**SIZES, blocks=1), HyperConfig(**SIZES, blocks=1, streams=2)


def reference(form: str, weight, grads, lr, beta1, beta2, decay):
    p, m, v = weight.copy(), np.zeros_like(weight), np.zeros_like(weight)
    for t, g in enumerate(grads, start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        p *= 1 - lr * decay
        if form == "hrm":
            p -= lr / (1 - beta1**t) * np.arctan2(m, np.sqrt(v) / np.sqrt(1 - beta2**t))
        else:
            p -= lr * 1.27 * np.arctan2(m / (1 - beta1**t), np.sqrt(v / (1 - beta2**t)))
    return p


@pytest.mark.parametrize("form", ["hrm", "published"])
def test_it_is_the_published_mathematics(form):
    generator = np.random.default_rng(0)
    shapes, steps = [(3, 4), (7,)], 20
    weights = [generator.normal(size=shape) for shape in shapes]
    grads = [[generator.normal(size=shape) for _ in range(steps)] for shape in shapes]
    parameters = [torch.nn.Parameter(torch.tensor(weight)) for weight in weights]
    optimizer = AdamAtan2(parameters, lr=0.03, betas=(0.9, 0.95), weight_decay=0.1, form=form)
    for step in range(steps):
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = torch.tensor(grad[step])
        optimizer.step()
    for parameter, weight, grad in zip(parameters, weights, grads, strict=True):
        expected = reference(form, weight, grad, 0.03, 0.9, 0.95, 0.1)
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-12, atol=1e-14)


def test_the_two_forms_differ_by_27_percent_once_warm():
    moved = {}
    for form in ("hrm", "published"):
        parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = AdamAtan2([parameter], lr=1.0, weight_decay=0.0, form=form)
        for _ in range(500):
            before = parameter.item()
            parameter.grad = torch.ones(1, dtype=torch.float64)
            optimizer.step()
        moved[form] = before - parameter.item()
    assert moved["hrm"] == pytest.approx(math.pi / 4)
    assert moved["published"] / moved["hrm"] == pytest.approx(1.27)


def test_a_step_does_not_depend_on_the_scale_of_the_gradient():
    def weight_after(scale):
        parameter = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
        optimizer = AdamAtan2([parameter], lr=0.1)
        for grad in ([1.0, -2.0, 0.5], [0.3, 0.1, -4.0]):
            parameter.grad = scale * torch.tensor(grad, dtype=torch.float64)
            optimizer.step()
        return parameter.detach()

    torch.testing.assert_close(weight_after(1.0), weight_after(1e-9))
    assert weight_after(0.0).equal(torch.zeros(3, dtype=torch.float64))  # 0/0 is no angle, and no NaN


def test_a_parameter_without_gradient_waits_and_its_count_too():
    used, unused = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = AdamAtan2([used, unused], lr=0.1)
    used.grad = torch.ones(2)
    optimizer.step()
    assert unused.equal(torch.ones(2))
    assert [int(optimizer.state[p]["step"]) for p in (used, unused)] == [1, 0]
    late, alone = torch.nn.Parameter(torch.ones(2)), AdamAtan2([unused], lr=0.1)
    unused.grad = late.grad = torch.full((2,), 0.5)
    optimizer.step()
    AdamAtan2([late], lr=0.1).step()
    assert unused.equal(late)
    assert alone.param_groups[0]["form"] == "hrm"


def test_adamw_with_its_state_made_early_is_torchs_adamw():
    torch.manual_seed(0)
    models = [build(TRANSFORMER) for _ in range(2)]
    config = TrainConfig(optimizer="adamw", lr=0.01, weight_decay=0.1)
    ours = build_optimizer(config, models[0])
    theirs = torch.optim.AdamW(models[1].parameters(), 0.01, (0.9, 0.95), weight_decay=0.1)
    for _ in range(5):
        tokens = torch.randint(0, 11, (4, 6))
        for model, optimizer in zip(models, (ours, theirs), strict=True):
            optimizer.zero_grad()
            model(tokens, tokens).backward()
            optimizer.step()
    assert all(a.equal(b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))


@pytest.mark.parametrize("optimizer", ["adamw", "adam-atan2"])
def test_the_weights_that_do_not_decay_are_those_the_model_names(optimizer):
    """A hyper-connection starts as the residual stream; decay would take that away, not a complexity."""
    config = TrainConfig(optimizer=optimizer, lr=0.1, weight_decay=0.5)
    model = build(HYPER)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    build_optimizer(config, model).step()
    kept = {name for name, value in model.named_parameters() if value.equal(before[name])}
    static = {name for name in before if name.endswith((".read", ".mix", ".write"))}
    still_zero = {name for name, value in before.items() if not value.any()}
    assert static
    assert kept - still_zero == static
    decayed = before["embedding.weight"] * 0.95
    torch.testing.assert_close(dict(model.named_parameters())["embedding.weight"], decayed)


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="form = 'atan'"):
        AdamAtan2([torch.nn.Parameter(torch.zeros(1))], form="atan")  # pyright: ignore
    with pytest.raises(ValueError, match="lr = -1"):
        AdamAtan2([torch.nn.Parameter(torch.zeros(1))], lr=-1)
