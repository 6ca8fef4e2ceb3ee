"""Configs: what cannot work is refused in one line that names the field, the value and the fix."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import GPT2_TINY, HRM_TINY, HUGINN_TINY, SMALL, SRM_TINY

from srmlab.errors import UserError
from srmlab.models import (
    PRESETS,
    SWEEP_PRESETS,
    ConfigError,
    LanguageModel,
    SRMConfig,
    build,
    config_from_dict,
    preset,
    register,
)
from srmlab.models.ordering import LETTERS, StepOrder

REFUSED = [
    (SRM_TINY, {"streams": 0}, "streams = 0: must be at least 1"),
    (SRM_TINY, {"stream_dim": 0}, "stream_dim = 0: must be at least 1"),
    (SRM_TINY, {"embedding_dim": -3}, "embedding_dim = -3: must be at least 1"),
    (SRM_TINY, {"stream_heads": 0}, "stream_heads = 0: must be at least 1"),
    (SRM_TINY, {"token_heads": 0}, "token_heads = 0: must be at least 1"),
    (SRM_TINY, {"mlp_dim": 0}, "mlp_dim = 0: must be at least 1"),
    (SRM_TINY, {"vocab_size": 0}, "vocab_size = 0: must be at least 1"),
    (SRM_TINY, {"init_seed": 2**64}, f"init_seed = {2**64}: must be from −2^63 to 2^63 − 1"),
    (SRM_TINY, {"order_seed": -(2**64)}, f"order_seed = {-(2**64)}: must be from −2^63 to 2^63 − 1"),
    (HUGINN_TINY, {"start_seed": 2**64}, f"start_seed = {2**64}: must be from −2^63 to 2^63 − 1"),
    (SRM_TINY, {"context": 0}, "context = 0: must be at least 1"),
    (SRM_TINY, {"depth": 0}, "depth = 0: must be at least 1"),
    (SRM_TINY, {"step_functions": 0}, "step_functions = 0: must be at least 1"),
    (SRM_TINY, {"head_dim": 5}, "head_dim = 5: must be even for RoPE; use 6"),
    (SRM_TINY, {"gradient_depth": 4}, "gradient_depth = 4: must be between 1 and depth = 3"),
    (SRM_TINY, {"gradient_depth": 0}, "gradient_depth = 0: must be between 1 and depth = 3"),
    (SRM_TINY, {"pre_steps": -1}, "pre_steps = -1: must be 0 or more"),
    (SRM_TINY, {"post_steps": -1}, "post_steps = -1: must be 0 or more"),
    (SRM_TINY, {"rope_theta": 1.0}, "rope_theta = 1.0: must be greater than 1"),
    (SRM_TINY, {"norm_eps": 0.0}, "norm_eps = 0.0: must be positive"),
    (SRM_TINY, {"norm_eps": float("nan")}, "norm_eps = nan: must be a number"),
    (SRM_TINY, {"rope_theta": float("inf")}, "rope_theta = inf: must be a number"),
    (SRM_TINY, {"z0": "random"}, "z0 = 'random': must be 'fixed' or 'learned' or 'zero' or 'input'"),
    (SRM_TINY, {"z0": "learned"}, 'set gradient_depth = 3, or z0 = "fixed"'),
    (SRM_TINY, {"post_input": "z"}, "post_input = 'z': must be 'state' or 'state+update'"),
    (
        SRM_TINY,
        {"order": "ABCD"},
        "no step function D; use letters A to C, or set step_functions = 4",
    ),
    (SRM_TINY, {"order": "AB"}, "C is never called; add it to the order, or set step_functions = 2"),
    (
        SRM_TINY,
        {"order": "CAC"},
        "B is never called; add it to the order, or set step_functions = 2 and",
    ),
    (SRM_TINY, {"order": ""}, "order = '': write capital letters such as ABC, or random:6"),
    (SRM_TINY, {"order": "abc"}, "order = 'abc': write capital letters such as ABC, or random:6"),
    (SRM_TINY, {"order": "A B C"}, "order = 'A B C': write capital letters"),
    (SRM_TINY, {"order": "AÄ"}, "order = 'AÄ': write capital letters"),
    (SRM_TINY, {"order": "random:0"}, "order = 'random:0': write random:K with K steps a layer"),
    (SRM_TINY, {"order": "random:"}, "order = 'random:': write random:K"),
    (SRM_TINY, {"order": "random:-2"}, "order = 'random:-2': write random:K"),
    (SRM_TINY, {"order": "random"}, "order = 'random': write capital letters such as ABC, or random:6"),
    (SRM_TINY, {"step_functions": 27}, "step_functions = 27: at most 26"),
    (SRM_TINY, {"streams": 2.0}, "streams = 2.0: must be a whole number"),
    (SRM_TINY, {"streams": True}, "streams = True: must be a whole number"),
    (SRM_TINY, {"streams": "8"}, "streams = '8': must be a whole number"),
    (SRM_TINY, {"tied": 1}, "tied = 1: must be true or false"),
    (SRM_TINY, {"rope_theta": "1e4"}, "rope_theta = '1e4': must be a number"),
    (SRM_TINY, {"order": 3}, "order = 3: must be text"),
    (SRM_TINY, {"order": "two\nlines"}, r"order = 'two\nlines': write capital letters"),
    (SRM_TINY, {"stream": 4}, "stream: not a field of SRMConfig; did you mean 'streams'?"),
    (SRM_TINY, {"zzz": 4}, "zzz: not a field of SRMConfig; its fields are vocab_size, context"),
    (HRM_TINY, {"head_dim": 3}, "head_dim = 3: must be even for RoPE; use 4"),
    (HRM_TINY, {"low_cycles": 0}, "low_cycles = 0: must be at least 1"),
    (HRM_TINY, {"high_blocks": -1}, "high_blocks = -1: must be 0 (a single stream) or more"),
    (HRM_TINY, {"shared_net": True}, "one net has one depth; set low_blocks = high_blocks"),
    (HRM_TINY, {"gradient": "some"}, "gradient = 'some': must be 'last-call' or 'last-cycle' or 'all'"),
    (GPT2_TINY, {"heads": 3}, "heads = 3: must divide dim = 8"),
    (GPT2_TINY, {"dropout": 1.0}, "dropout = 1.0: must be in [0, 1)"),
    (GPT2_TINY, {"dropout": -0.1}, "dropout = -0.1: must be in [0, 1)"),
    (GPT2_TINY, {"blocks": 0}, "blocks = 0: must be at least 1"),
    (GPT2_TINY, {"norm_eps": -1.0}, "norm_eps = -1.0: must be positive"),
]


@pytest.mark.parametrize(("config", "change", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_work_is_refused_in_one_line_that_names_field_value_and_fix(config, change, words):
    with pytest.raises(ConfigError) as refusal:
        config.replace(**change)
    message = str(refusal.value)
    assert words in message
    assert message.startswith(next(iter(change)))
    assert "\n" not in message
    assert isinstance(refusal.value, UserError)


def test_every_integer_field_of_a_config_is_bounded():
    free = {"init_seed", "order_seed"}
    for config in (SRM_TINY, HRM_TINY, GPT2_TINY):
        for field in dataclasses.fields(config):
            if field.type == "int" and field.name not in free:
                with pytest.raises(ConfigError, match=field.name):
                    config.replace(**{field.name: -1})


def test_the_fix_a_refusal_names_works():
    for order in ("CAC", "CB", "AAC", "BB"):
        with pytest.raises(ConfigError) as refusal:
            SRM_TINY.replace(order=order)
        fix = str(refusal.value).split("or set ")[1].replace(" and ", ", ")
        SRM_TINY.replace(**eval(f"dict({fix})"))
    assert SRM_TINY.replace(head_dim=6).head_dim == 6


def test_a_config_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SRM_TINY.streams = 9  # pyright: ignore


@pytest.mark.parametrize("name", [*PRESETS, *SWEEP_PRESETS])
def test_a_config_survives_json(name):
    config = preset(name)
    assert config_from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "architecture = None: must be one of srm, hrm, gpt2"),
        ({"architecture": "bert"}, "architecture = 'bert': must be one of srm, hrm, gpt2"),
        (
            {"architecture": "srm", "head_dims": 4},
            "head_dims: not a field of SRMConfig; did you mean 'head_dim'?",
        ),
        ({"architecture": "srm", "streams": None}, "streams = None: must be a whole number"),
    ],
)
def test_a_dictionary_that_is_no_config_is_refused(fields, words):
    with pytest.raises(ConfigError) as refusal:
        config_from_dict(fields)
    assert words in str(refusal.value)


def test_reading_a_dictionary_leaves_it_alone():
    fields = SRM_TINY.to_dict()
    before = dict(fields)
    config_from_dict(fields)
    assert fields == before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("srm-bse", "no preset is called 'srm-bse'; did you mean 'srm-base'?"),
        ("xyz", "no preset is called 'xyz'; `srmlab presets` lists them"),
    ],
)
def test_an_unknown_preset_gets_the_nearest(name, words):
    with pytest.raises(ConfigError) as refusal:
        preset(name)
    assert str(refusal.value) == words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"streams": 8}, "srm-sweep needs 'set'"),
        ({"set": "width"}, "srm-sweep needs 'streams'"),
        ({"set": "depth", "streams": 8}, "set = 'depth': must be one of parameter, width, stream"),
        ({"set": "width", "streams": 3}, "streams = 3: the sweep has 1, 2, 4, 8, 16, 32, 64"),
    ],
)
def test_a_cell_the_sweep_does_not_have_is_refused(changes, words):
    with pytest.raises(ConfigError) as refusal:
        preset("srm-sweep", **changes)
    assert words in str(refusal.value)


def test_a_preset_takes_changes_and_checks_them():
    assert preset("srm-nano", streams=4, depth=4).streams == 4
    with pytest.raises(ConfigError, match="did you mean 'streams'"):
        preset("srm-nano", steams=4)


def test_the_defaults_are_the_papers():
    base, med, large = (preset(name) for name in ("srm-base", "srm-med", "srm-large"))
    assert med == SRMConfig()
    assert (base.calls_per_layer, base.step_functions, base.post_steps) == (6, 3, 1)
    assert (large.calls_per_layer, large.step_functions, large.streams) == (6, 6, 16)
    assert all(
        (c.depth, c.gradient_depth, c.head_dim, c.tied) == (8, 4, 64, True) for c in (base, med, large)
    )


@settings(max_examples=50)
@given(functions=st.integers(1, 5), data=st.data())
def test_an_order_calls_its_letters_in_turn(functions, data):
    letters = LETTERS[:functions]
    word = data.draw(st.permutations(letters)).copy() + list(data.draw(st.text(letters, max_size=5)))
    order = StepOrder.parse("".join(word), functions)
    assert order.calls == tuple(letters.index(letter) for letter in word)
    assert order.length == len(word)
    assert not order.random


@pytest.mark.parametrize("name", SMALL)
def test_a_config_that_exists_can_be_built(name):
    assert build(SMALL[name]).config == SMALL[name]


def test_an_architecture_takes_no_name_of_another():
    with pytest.raises(UserError, match="there is already an architecture called 'srm': give SRMConfig"):

        @register
        class Mine(LanguageModel[SRMConfig]):  # pyright: ignore[reportUnusedClass]
            pass

    assert type(build(SRM_TINY)).__name__ == "SRM"
