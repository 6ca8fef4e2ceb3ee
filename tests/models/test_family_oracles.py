"""The looped models are what `oracle.family` writes out: logits, training losses and every gradient."""

from __future__ import annotations

import pytest
import torch
from small_models import HUGINN_TINY, HYPER_TINY, MOR_TINY, OURO_TINY, gradients, small, some_tokens

from oracle import family
from srmlab.models import LanguageModel
from srmlab.models.loss import IGNORE

TOLERANCE = {"rtol": 0, "atol": 1e-10}
TOKENS, TARGETS = some_tokens(2, 5), some_tokens(2, 5, seed=1)
TARGETS[0, 3] = IGNORE


def shaken(model: LanguageModel) -> LanguageModel:
    """With no weight at zero, where a gate would not show what it reads."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator)
    return model


def assert_same(model: LanguageModel, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
    found, expected = gradients(model, ours.square().sum()), gradients(model, theirs.square().sum())
    for name in expected:
        torch.testing.assert_close(
            found[name], expected[name], **TOLERANCE, msg=lambda m, n=name: f"{n}: {m}"
        )


OUROS = {
    "around": OURO_TINY,
    "before": OURO_TINY.replace(norms="before", gated=False, tied=True),
    "one loop": OURO_TINY.replace(loops=1),
}


@pytest.mark.parametrize("name", OUROS)
def test_ouro_is_the_written_out_loop(name):
    model = shaken(small(OUROS[name]))
    assert_same(
        model, model(TOKENS), family.ouro_logits(dict(model.named_parameters()), model.config, TOKENS)
    )


@pytest.mark.parametrize(("progress", "beta"), [(0.0, 0.3), (0.38, 0.3), (0.4, 0.1), (1.0, 0.1)])
def test_ouros_training_loss_is_the_written_out_sum_with_the_stages_own_beta(progress, beta):
    model = shaken(small(OURO_TINY.replace(beta=0.3, beta_end=0.1)))
    ours = model(TOKENS, TARGETS, progress=progress)
    theirs = family.ouro_loss(dict(model.named_parameters()), model.config, TOKENS, TARGETS, beta)
    assert_same(model, ours["loss"], theirs)
    torch.testing.assert_close(ours["loss"], ours["expected"] - beta * ours["entropy"])
    torch.testing.assert_close(ours["cross_entropy"], model(TOKENS, TARGETS))


def test_ouros_second_stage_is_the_written_out_one_and_moves_the_gate_alone():
    model = shaken(small(OURO_TINY.replace(trains="gate", gain=0.02)))
    ours = model(TOKENS, TARGETS, progress=0.5)["loss"]
    theirs = family.ouro_gate_loss(dict(model.named_parameters()), model.config, TOKENS, TARGETS)
    assert_same(model, ours, theirs)
    assert set(gradients(model, model(TOKENS, TARGETS, progress=0.5)["loss"])) == {"gate.weight", "gate.bias"}


@pytest.mark.parametrize("connection", ["static", "dynamic"])
@pytest.mark.parametrize("loops", [0, 3])
def test_hyper_connections_are_the_written_out_mixing(connection, loops):
    model = shaken(small(HYPER_TINY.replace(connection=connection, loops=loops)))
    theirs = family.hyper_logits(dict(model.named_parameters()), model.config, TOKENS)
    assert_same(model, model(TOKENS), theirs)


@pytest.mark.parametrize("gradient_depth", [1, 3])
@pytest.mark.parametrize("training", [False, True])
def test_huginn_is_the_written_out_recursion(gradient_depth, training):
    model = shaken(small(HUGINN_TINY.replace(gradient_depth=gradient_depth))).train(training)
    state = model.start_generator.get_state()
    start = model.first_state(torch.zeros(2, 5, HUGINN_TINY.dim, dtype=torch.float64))
    model.start_generator.set_state(state)
    theirs = family.huginn_logits(dict(model.named_parameters()), model.config, TOKENS, start)
    assert_same(model, model(TOKENS), theirs)


@pytest.mark.parametrize("choice", ["expert", "token"])
@pytest.mark.parametrize("keys", ["own", "shared"])
def test_mixture_of_recursions_is_the_written_out_routing(choice, keys):
    model = shaken(small(MOR_TINY.replace(choice=choice, keys=keys, router_loss=0.1, z_loss=0.01)))
    weights = dict(model.named_parameters())
    rows = [family.mor_row(weights, model.config, row, best=False) for row in TOKENS]
    assert_same(model, model(TOKENS), torch.stack([logits for logits, _, _ in rows]))
    _, cache = model.run_with_cache(TOKENS, names_filter=list(model.route_sites))
    for r, site in enumerate(model.route_sites):
        for b, (_, kept, _) in enumerate(rows):
            assert set(cache[site][b, :, 0].nonzero().flatten().tolist()) == kept[r]
    ours = model(TOKENS, TARGETS, progress=0.5)["loss"]
    assert_same(model, ours, family.mor_loss(weights, model.config, TOKENS, TARGETS))
