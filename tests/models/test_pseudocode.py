"""The fast models against the slow oracles: the same logits, gradients, and values at every site."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import HRM_TINY, SMALL, SRM_TINY, TRM_TINY, gradients, small, some_tokens

from oracle import hierarchy, pseudocode
from srmlab.models import HRMConfig, SRMConfig
from srmlab.models.connection import CONNECTIONS
from srmlab.models.layer import UPDATES
from srmlab.models.ordering import LETTERS

TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}


@st.composite
def srm_configs(draw) -> SRMConfig:
    """Small SRMs of every make."""
    functions = draw(st.integers(1, 3))
    letters = LETTERS[:functions]
    words = st.text(letters, max_size=2).flatmap(lambda extra: st.permutations(letters + extra)).map("".join)
    depth = draw(st.integers(1, 4))
    gradient_depth = draw(st.integers(1, depth))
    z0 = st.sampled_from(["fixed", "zero", "input", *(["learned"] if gradient_depth == depth else [])])
    return SRMConfig(
        vocab_size=draw(st.integers(2, 9)),
        context=8,
        tied=draw(st.booleans()),
        init_seed=draw(st.integers(0, 99)),
        embedding_dim=draw(st.integers(1, 5)),
        embedding_scale=draw(st.booleans()),
        streams=draw(st.integers(1, 4)),
        stream_dim=draw(st.integers(1, 6)),
        z0=draw(z0),
        connection=draw(st.sampled_from(["attention", *CONNECTIONS])),
        stream_heads=draw(st.integers(1, 3)),
        step_functions=functions,
        order=draw(st.one_of(words, st.integers(1, 4).map("random:{}".format))),
        order_seed=draw(st.integers(0, 99)),
        depth=depth,
        gradient_depth=gradient_depth,
        token_heads=draw(st.integers(1, 3)),
        head_dim=draw(st.sampled_from([2, 4, 6])),
        mlp_dim=draw(st.integers(1, 7)),
        rope_theta=draw(st.sampled_from([10.0, 10_000.0])),
        norm_eps=draw(st.sampled_from([1e-5, 1e-2])),
        norm_affine=draw(st.booleans()),
        pre_steps=draw(st.integers(0, 2)),
        post_steps=draw(st.integers(0, 2)),
        post_input=draw(st.sampled_from(["state", "state+update"])),
        update=draw(st.sampled_from(["norm(c + x)", *UPDATES])),
    )


@st.composite
def hrm_configs(draw) -> HRMConfig:
    low, high, shared = draw(st.integers(1, 2)), draw(st.integers(0, 2)), draw(st.booleans())
    return HRM_TINY.replace(
        tied=draw(st.booleans()),
        init_seed=draw(st.integers(0, 99)),
        dim=draw(st.integers(1, 7)),
        heads=draw(st.integers(1, 3)),
        head_dim=draw(st.sampled_from([2, 4])),
        mlp_dim=draw(st.integers(1, 7)),
        low_blocks=low,
        high_blocks=low if shared else high,
        low_cycles=draw(st.integers(1, 3)),
        high_cycles=draw(st.integers(1, 3)),
        shared_net=shared,
        gradient=draw(st.sampled_from(["last-call", "last-cycle"])),
        x_enters=draw(st.sampled_from(["low", "both"])),
        embedding_scale=draw(st.booleans()),
    )


def shaken(model: torch.nn.Module) -> torch.nn.Module:
    """The model with weights that start at one or zero moved away from there."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(1))
    return model


def srm_pair(config: SRMConfig):
    fast = shaken(small(config))
    slow = pseudocode.Pseudocode(config).double()
    pseudocode.copy_weights(fast, slow)
    return fast, slow


def hrm_pair(config: HRMConfig):
    fast = small(config)
    slow = hierarchy.Hierarchy(config).double()
    hierarchy.copy_weights(fast, slow)
    return fast, slow


def weighted_sum(logits: torch.Tensor) -> torch.Tensor:
    """A loss that tells every logit from every other."""
    return (
        logits * torch.randn(logits.shape, dtype=logits.dtype, generator=torch.Generator().manual_seed(2))
    ).sum()


def oracles_sites(name: str) -> bool:
    """The inside of attention and MLP is held to an oracle of its own, in test_attention_sites.py."""
    return ".attention." not in name and ".neurons." not in name


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], **tolerance) -> None:
    assert ours.keys() == theirs.keys()
    for name in theirs:
        torch.testing.assert_close(
            ours[name], theirs[name], **(tolerance or TOLERANCE), msg=lambda m, n=name: f"{n}: {m}"
        )


@settings(max_examples=40)
@given(srm_configs(), st.integers(1, 2), st.integers(1, 6))
def test_srm_is_the_pseudocode_in_logits_and_every_gradient(config, batch, length):
    fast, slow = srm_pair(config)
    tokens = some_tokens(batch, length, vocab=config.vocab_size)
    ours = fast(tokens)
    theirs, _ = slow(tokens, fast.draw_orders())
    torch.testing.assert_close(ours, theirs, **TOLERANCE)

    our_gradients = pseudocode.as_oracle(gradients(fast, weighted_sum(ours)), config)
    their_gradients = gradients(slow, weighted_sum(theirs))
    assert_same(our_gradients, their_gradients)


@settings(max_examples=20)
@given(hrm_configs(), st.integers(1, 2), st.integers(1, 6))
def test_hrm_is_the_written_out_hierarchy_in_logits_and_every_gradient(config, batch, length):
    fast, slow = hrm_pair(config)
    tokens = some_tokens(batch, length, vocab=config.vocab_size)
    ours = fast(tokens)
    theirs, _ = slow(tokens)
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
    our_gradients = hierarchy.as_oracle(gradients(fast, weighted_sum(ours)), config)
    assert_same(our_gradients, gradients(slow, weighted_sum(theirs)))


def test_a_random_order_in_training_is_the_pseudocode_with_the_orders_drawn():
    config = SRM_TINY.replace(order="random:5")
    fast, slow = srm_pair(config)
    fast.train()
    state = fast.order_generator.get_state()
    drawn = [fast.draw_orders() for _ in range(3)]
    assert len(set(drawn)) == 3
    fast.order_generator.set_state(state)
    for orders in drawn:
        tokens = some_tokens()
        ours, (theirs, _) = fast(tokens), slow(tokens, orders)
        torch.testing.assert_close(ours, theirs, **TOLERANCE)
        assert_same(
            pseudocode.as_oracle(gradients(fast, weighted_sum(ours)), config),
            gradients(slow, weighted_sum(theirs)),
        )


@settings(max_examples=20)
@given(srm_configs())
def test_the_cache_holds_the_pseudocodes_value_at_every_site_of_srm(config):
    fast, slow = srm_pair(config)
    tokens = some_tokens(vocab=config.vocab_size)
    logits, cache = fast.run_with_cache(tokens, oracles_sites)
    theirs, values = slow(tokens, fast.draw_orders())
    torch.testing.assert_close(logits, theirs, **TOLERANCE)
    assert list(cache) == [name for name in fast.site_names if oracles_sites(name)]
    assert_same(cache, {name: value.detach() for name, value in values.items()})


@pytest.mark.parametrize("config", [HRM_TINY, TRM_TINY], ids=["hrm", "trm"])
def test_the_cache_holds_the_written_out_value_at_every_site_of_hrm(config):
    fast, slow = hrm_pair(config)
    tokens = some_tokens()
    _, cache = fast.run_with_cache(tokens, oracles_sites)
    _, values = slow(tokens)
    assert_same(cache, {name: value.detach() for name, value in values.items()})


@pytest.mark.parametrize("name", [name for name in SMALL if name.startswith("srm")])
def test_looking_does_not_change_the_gradients(name):
    fast, slow = srm_pair(SMALL[name])
    tokens = some_tokens()
    with fast.hooks([(None, lambda value, hook: None)]):  # noqa: ARG005
        watched = gradients(fast, weighted_sum(fast(tokens)))
    theirs = gradients(slow, weighted_sum(slow(tokens, fast.draw_orders())[0]))
    assert_same(pseudocode.as_oracle(watched, SMALL[name]), theirs)
