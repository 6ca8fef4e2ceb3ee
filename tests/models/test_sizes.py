"""Parameter counts to the digit, and arithmetic as torch counts it."""

from __future__ import annotations

import math

import pytest
import torch
from small_models import ONE_OF_EACH, SMALL, VOCAB, small, some_tokens
from torch.utils.flop_counter import FlopCounterMode

from srmlab.models import PRESETS, SWEEP_PRESETS, build, preset
from srmlab.models.srm_config import SWEEP_STREAMS

V_TIMES_E = 25_731_584


def count(name: str, **changes) -> int:
    return build(preset(name, **changes), device="meta").num_parameters()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("srm-base", 67_674_624),
        ("srm-med", 134_783_488),
        ("srm-large", 453_550_592),
        ("hrm", 109_376_256),
        ("gpt2", 124_439_808),
        ("ouro", 1_434_454_017),  # without weights in its norms; published as 1.4B
        ("huginn", 3_564_718_080),  # published as 3.5B
        ("mor", 165_153_600),  # 117,967,680 without its embedding, published as 118M
        ("hyper", 1_177_158_464),  # OLMo-1B's 1,176,764,416, and what 32 connections of 4 streams add
        ("hyper-static", 1_176_764_416 + 32 * (4 * 4 + 2 * 4)),
        ("ouro-2.6b", 2_667_579_393),
    ],
)
def test_each_model_of_the_paper_has_exactly_its_parameters(name, parameters):
    assert count(name) == parameters


@pytest.mark.parametrize(
    ("name", "parameters"), [("srm-base", 93_406_208), ("srm-med", 160_515_072), ("srm-large", 479_282_176)]
)
def test_untying_adds_one_vocabulary_matrix(name, parameters):
    assert count(name, tied=False) == parameters == count(name) + V_TIMES_E


PRINTED = {  # the paper's table, in millions
    "parameter": (85, 85, 85, 85, 85, 85, 85),
    "width": (839, 463, 261, 161, 110, 85, 72),
    "stream": (53, 54, 56, 60, 68, 85, 119),
}
SLIP = ("width", 1)  # printed as 839, the tied count; every other cell is counted untied


@pytest.mark.parametrize("kind", PRINTED)
@pytest.mark.parametrize("streams", SWEEP_STREAMS)
def test_each_cell_of_the_sweep_has_the_millions_the_paper_prints(kind, streams):
    printed = PRINTED[kind][SWEEP_STREAMS.index(streams)]
    untied = count("srm-sweep", set=kind, streams=streams)
    if (kind, streams) == SLIP:
        assert round(untied / 1e6) == 865
        assert round(count("srm-sweep", set=kind, streams=streams, tied=True) / 1e6) == printed
    else:
        assert round(untied / 1e6) == printed
    assert count(f"srm-sweep-{kind}-{streams}") == untied


def test_the_texts_stream_dimension_of_256_does_not_give_the_printed_counts():
    counts = [count("srm-sweep", set="stream", streams=s, stream_dim=256) for s in SWEEP_STREAMS]
    assert [round(c / 1e6) for c in counts][0::6] == [54, 186]
    assert [round(c / 1e6) for c in counts] != list(PRINTED["stream"])


def test_the_sweep_has_twenty_one_cells():
    assert len(SWEEP_PRESETS) == 21


@pytest.mark.parametrize(
    "name",
    ["srm-nano", "hrm-nano", "trm-nano", "gpt2-nano", "ouro-nano", "hyper-nano", "huginn-nano", "mor-nano"],
)
def test_nano_models_are_small(name):
    assert count(name) < 3_000_000


def test_a_learned_first_state_counts_and_a_fixed_one_does_not():
    fixed = SMALL["srm"].replace(gradient_depth=3)
    learned = fixed.replace(z0="learned")
    assert small(learned).num_parameters() - small(fixed).num_parameters() == fixed.width


@pytest.mark.parametrize("name", [name for name in SMALL if not name.startswith("mor")])
def test_the_forward_arithmetic_is_what_torch_counts(name):
    """Attention counted as it is needed: every query with itself and with what came before."""
    config = SMALL[name]
    model = small(config, torch.float32)
    T = 16
    formulas = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention}
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter, torch.no_grad():
        if name.startswith(
            "srm"
        ):  # z_0 is one state for all tokens, and its connection is computed only once
            model.first_state = lambda x, tap=None: model.z0[:, None, None, :].expand_as(x)  # noqa: ARG005
        model(some_tokens(1, T))
    assert counter.get_total_flops() == pytest.approx(model.flops_per_token(T).forward * T, rel=1e-6)


def _attention(q, k, _v, _dropout=0.0, is_causal=False, *_, **__) -> int:
    B, H, T, K = q
    pairs = T * (T + 1) // 2 if is_causal else T * k[2]
    return 2 * 2 * B * H * pairs * K


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_training_costs_three_forwards_when_everything_is_differentiated(name):
    config = ONE_OF_EACH[name]
    if name in ("srm", "huginn"):
        config = config.at_depth(3, 3)
    elif config.architecture == "hrm":
        config = config.replace(high_cycles=1, gradient="last-cycle")
    flops = small(config).flops_per_token(64)
    if name == "ouro":  # its training reads every loop and its gate
        once_more = 2 * config.dim * ((config.loops - 1) * VOCAB + config.loops)
        assert flops.training == 3 * (flops.forward + once_more)
        return
    assert flops.training == pytest.approx(3 * flops.forward, rel=1e-6)


def test_a_layer_without_gradient_costs_a_third_of_one_with():
    def layers_cost(n: int, l: int) -> int:
        return (
            build(preset("srm-med", depth=n, gradient_depth=l), device="meta").flops_per_token(512).training
        )

    one_more_without = layers_cost(9, 4) - layers_cost(8, 4)
    one_more_with = layers_cost(9, 5) - layers_cost(8, 4)
    assert one_more_with == pytest.approx(3 * one_more_without, rel=1e-6)


OF_ONE_SIZE = {"trm-sudoku"}  # its MLP over positions has weights for one board


@pytest.mark.parametrize("name", sorted(PRESETS.keys() - OF_ONE_SIZE))
def test_longer_contexts_cost_more_per_token(name):
    model = build(preset(name), device="meta")
    assert model.flops_per_token(256).forward > model.flops_per_token(128).forward
    assert math.isclose(model.flops_per_token(1).forward, 2 * _matmul_parameters(name), rel_tol=0.05)


def _matmul_parameters(name: str) -> float:
    """Weights times the calls they serve: a context of one token leaves next to nothing else to compute."""
    config = preset(name)
    model = build(config, device="meta")
    added = ("positions.weight", "puzzle.places")  # to embeddings, and multiplied by nothing
    per_call = {name: p.numel() for name, p in model.named_parameters() if name not in added}
    if config.architecture == "srm":
        step = sum(p.numel() for p in model.layer.steps[0].parameters())
        connection = sum(p.numel() for p in model.layer.connection.parameters())
        outside = sum(per_call.values()) - sum(p.numel() for p in model.layer.parameters())
        return outside + config.depth * (connection + config.calls_per_layer * step)
    if config.architecture == "hrm":
        block = sum(p.numel() for p in model.low[0].parameters())
        return model.unembedding.numel() + config.sizes.layers * block
    if config.architecture in ("gpt2", "transformer"):
        return sum(per_call.values())
    used: list[float] = [model.unembedding.numel()]
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda linear, _i, _o: used.append(linear.weight.numel()))
    model(torch.zeros(1, 1, dtype=torch.long, device="meta"))
    return sum(used)
