"""Mixture-of-Recursions: what the router chooses, what only training may see, and what a pass costs."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from small_models import MOR_TINY, gradients, small, some_tokens
from torch.utils.flop_counter import FlopCounterMode

from srmlab.errors import UserError
from srmlab.models import Pass
from srmlab.models.mor import top

KINDS = {
    "expert": MOR_TINY,
    "expert, shared keys": MOR_TINY.replace(keys="shared"),
    "token": MOR_TINY.replace(choice="token"),
    "token, shared keys": MOR_TINY.replace(choice="token", keys="shared"),
}


def kept(model, tokens) -> torch.Tensor:
    """[recursions, B, T]"""
    _, cache = model.run_with_cache(tokens, names_filter=list(model.route_sites))
    return torch.stack([cache[site].squeeze(-1) != 0 for site in model.route_sites])


@pytest.mark.parametrize("name", KINDS)
def test_a_token_that_has_left_does_not_come_back(name):
    there = kept(small(KINDS[name]), some_tokens(4, 16))
    for before, after in pairwise(there):
        assert not (after & ~before).any()
    assert 0 < there.float().mean() < 1


def test_capacity_is_a_share_of_all_tokens_chosen_among_those_still_there():
    scores = torch.tensor([[5.0, 1.0, 4.0, 2.0, 3.0, 0.0]])
    there = torch.tensor([[False, True, True, True, True, True]])
    assert top(scores, there, 2).tolist() == [[False, False, True, False, True, False]]
    assert top(scores, torch.ones_like(there), 6).all()
    assert top(scores, there, 6).tolist() == there.tolist()
    three = MOR_TINY.replace(recursions=3)
    assert [three.capacity(r, 8) for r in range(3)] == [8, 5, 2]  # rounded down
    assert three.capacity(2, 1) == 1


def test_training_keeps_its_capacity_and_evaluation_does_not_look_at_later_tokens():
    model, tokens = small(MOR_TINY), some_tokens(1, 12)
    other = tokens.clone()
    other[:, -1] = (other[:, -1] + 1) % 13
    assert torch.equal(kept(model, tokens)[:, :, :-1], kept(model, other)[:, :, :-1])
    here = Pass()
    of_training = model.routed(tokens, here, best=True)[1].kept
    assert [float(one.double().mean()) for one in of_training] == pytest.approx([1, 8 / 12, 4 / 12])


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_tokens_that_left_are_not_computed_and_the_result_is_the_same(name):
    """The gathered pass against the one in which every token is computed, as listeners see it."""
    model, tokens = small(KINDS[name]), some_tokens(3, 16)
    documents = torch.tensor([[0] * 16, [0] * 7 + [1] * 9, [0] * 3 + [1] * 3 + [2] * 10])
    for how in ({}, {"documents": documents}):
        with FlopCounterMode(display=False) as few:
            gathered = model(tokens, **how)
        with FlopCounterMode(display=False) as all, model.hooks([("logits", lambda *_: None)]):
            dense = model(tokens, **how)
        torch.testing.assert_close(gathered, dense, rtol=0, atol=1e-10)
        assert few.get_total_flops() < all.get_total_flops()


@pytest.mark.parametrize("name", KINDS)
def test_so_it_is_in_single_precision_over_many_tokens_and_in_its_gradient(name):
    """Where other models take a kernel for rows of the same positions."""
    config = KINDS[name].replace(context=64)
    model, tokens = small(config, torch.float32), some_tokens(2, 64)
    gathered = model(tokens)
    with model.hooks([("logits", lambda *_: None)]):
        dense = model(tokens)
    torch.testing.assert_close(gathered, dense, rtol=0, atol=1e-4)
    ours, theirs = (gradients(model, logits.square().mean()) for logits in (gathered, dense))
    for parameter in theirs:
        torch.testing.assert_close(ours[parameter], theirs[parameter], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("choice", ["expert", "token"])
@torch.no_grad()
def test_the_arithmetic_is_what_ran(choice):
    config = MOR_TINY.replace(choice=choice, kv_heads=0)
    model, tokens = small(config, torch.float32), some_tokens(1, 12)
    shares = kept(model, tokens).double().mean((1, 2)).tolist()

    def causal(q, k, _v, _dropout=0.0, is_causal=False, *_, **__):  # noqa: ARG001
        B, H, T, K = q
        return 2 * 2 * B * H * (T * (T + 1) // 2) * K

    formulas = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: causal}
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        model(tokens)
    expected = model.routed_flops(12, shares) * 12
    assert counter.get_total_flops() == pytest.approx(expected, rel=1e-6)


@torch.no_grad()
def test_a_row_that_leaves_while_decoding_costs_nothing():
    model, tokens = small(MOR_TINY), some_tokens(6, 10)
    cache = model.new_cache()
    model(tokens[:, :9], cache=cache)
    there = kept(model, tokens)[:, :, 9]
    calls = []
    for block in model.core_blocks:
        block.register_forward_hook(lambda _m, given, _o: calls.append(len(given[0])))
    model(tokens[:, 9:], cache=cache)
    expected = [int(one.sum()) for one in there for _ in model.core_blocks if one.any()]
    assert calls == expected
    assert 0 < sum(expected) < 6 * 2 * 3


def test_it_cannot_run_deeper_and_refuses_what_it_does_not_have():
    model = small(MOR_TINY)
    with pytest.raises(UserError, match="mor cannot run at another depth"):
        model.at_depth(5)
    with pytest.raises(UserError, match="mor has no early exit; leave exit out"):
        model(some_tokens(), exit=0.1)
    with pytest.raises(UserError, match="kv_heads = 3: must divide heads = 4"):
        MOR_TINY.replace(kv_heads=3)
