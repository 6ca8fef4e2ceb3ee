"""Hyper-connections: where they start, and what their streams say of themselves."""

from __future__ import annotations

import pytest
import torch
from small_models import HYPER_TINY, OURO_TINY, small, some_tokens

from srmlab.errors import UserError
from srmlab.models import HyperConfig


@pytest.mark.parametrize("connection", ["static", "dynamic"])
def test_at_the_start_they_are_an_ordinary_residual_stream(connection):
    """Every stream is the residual stream; their sum is S times it, which the norm takes away."""
    config = HYPER_TINY.replace(connection=connection, norm_eps=1e-14)
    several, one = small(config), small(config.replace(streams=1, connection="static"))
    shared = {name: value for name, value in several.state_dict().items() if ".links." not in name}
    one.load_state_dict(shared, strict=False)
    tokens = some_tokens()
    torch.testing.assert_close(several(tokens), one(tokens), rtol=0, atol=1e-10)
    _, cache = several.run_with_cache(tokens, names_filter="blocks.*.out")
    for streams in cache.values():
        torch.testing.assert_close(streams, streams[:, :, :1].expand_as(streams))


def test_a_pattern_is_how_much_each_stream_takes_of_each():
    model, tokens = small(HYPER_TINY), some_tokens()
    with torch.no_grad():
        model.stack[0].links[0].mix.copy_(torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    exchange = model.exchanges[0]
    _, cache = model.run_with_cache(tokens)
    pattern, message = cache[exchange.pattern], cache[exchange.message]
    assert pattern.shape == (2, 7, 1, 3, 3)
    assert pattern[0, 0, 0, 1, 0] == 0.5  # stream 1 takes half of stream 0
    x = cache["input.embedding"]
    torch.testing.assert_close(message[:, :, 1], 1.5 * x)
    torch.testing.assert_close(message[:, :, 0], x)


def test_with_loops_its_levels_are_loops_and_without_its_blocks():
    plain, looped = small(HYPER_TINY), small(HYPER_TINY.replace(loops=3))
    assert (plain.depth, plain.level_name, plain.recurrent) == (2, "blocks", False)
    assert (looped.depth, looped.level_name, looped.recurrent) == (3, "loops", True)
    assert looped.num_parameters() == plain.num_parameters()
    assert len(looped.exchanges) == 3
    with pytest.raises(UserError, match="hyper cannot run at another depth"):
        plain.at_depth(4)


def test_no_loop_at_all_is_not_a_depth():
    model = small(HYPER_TINY.replace(loops=2))
    with pytest.raises(UserError, match="depth = 0: must be at least 1"):
        model(some_tokens(), depth=0)
    with pytest.raises(UserError, match="depth = 0: must be at least 1"):
        model.at_depth(0)


def test_sizes_that_cannot_work_are_refused():
    with pytest.raises(UserError, match="loops = -1: must be 0"):
        HYPER_TINY.replace(loops=-1)
    with pytest.raises(UserError, match=r"beta = -0\.1: must be 0 or more"):
        OURO_TINY.replace(beta=-0.1)
    with pytest.raises(UserError, match="streams = 0: must be at least 1"):
        HyperConfig(streams=0)
