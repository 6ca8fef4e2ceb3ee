"""The inside of token attention and of the MLP: the values are those of the formulas, and edits count."""

from __future__ import annotations

import math

import pytest
import torch
from small_models import ONE_OF_EACH, SMALL, SRM_TINY, small, some_tokens

from srmlab.models import attention

PARTS = ("q", "k", "v", "weights", "z")


def calls(model) -> list[str]:
    """The beginnings of the names, one for every attention call."""
    return [name.removesuffix(".q") for name in model.site_names if name.endswith("attention.q")]


@pytest.mark.parametrize("name", SMALL)
def test_pattern_and_output_are_those_of_the_formula(name):
    model, tokens = small(SMALL[name]), some_tokens(2, 6)
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens)
    routed = model.config.architecture == "mor"  # what a recursion looks at is held to an oracle of its own
    if name != "mor by token":  # whose later recursions look at the keys of the first
        assert len(calls(model)) == model.attention_calls
    for call in calls(model)[:1] if routed else calls(model):
        q, k, v, z = (cache[f"{call}.{part}"].movedim(1, -2) for part in "qkvz")
        pattern = cache[f"{call}.weights"]
        scores = q @ k.mT / math.sqrt(q.shape[-1])  # [B, (S,) H, T, T]
        for query in range(6):
            expected = scores[..., query, : query + 1].exp()
            expected = expected / expected.sum(-1, keepdim=True)
            torch.testing.assert_close(pattern[..., query, : query + 1], expected, rtol=0, atol=1e-10)
            assert (pattern[..., query, query + 1 :] == 0).all()
        torch.testing.assert_close(z, pattern @ v, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", SMALL)
def test_looking_inside_moves_no_logit(name):
    model, tokens = small(SMALL[name]), some_tokens(2, 6)
    with torch.no_grad():
        looked, _ = model.run_with_cache(tokens)
        torch.testing.assert_close(looked, model(tokens), rtol=0, atol=1e-10)


def test_the_streams_stand_where_the_names_say():
    model, tokens = small(SRM_TINY), some_tokens(2, 6)
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, names_filter="layers.1.steps.2.**")
    step, at = model.layer.steps[2], "layers.1.steps.2"
    u, z = cache[f"{at}.in"], cache[f"{at}.attention.z"]
    assert z.shape == (2, 6, 3, 2, 4)  # [batch, token, stream, head, dim]
    assert cache[f"{at}.attention.weights"].shape == (2, 3, 2, 6, 6)  # [batch, stream, head, query, key]
    for s in range(3):
        _, _, v = (u[:, :, s] @ step.qkv.weight[s]).chunk(3, dim=-1)
        torch.testing.assert_close(cache[f"{at}.attention.v"][:, :, s].flatten(2), v)
        torch.testing.assert_close(
            z[:, :, s].flatten(2) @ step.attn_out.weight[s], cache[f"{at}.attn"][:, :, s]
        )
        torch.testing.assert_close(u[:, :, s] @ step.mlp_up.weight[s], cache[f"{at}.neurons.pre"][:, :, s])
        added = cache[f"{at}.neurons.post"][:, :, s] @ step.mlp_down.weight[s]
        torch.testing.assert_close(added, cache[f"{at}.mlp"][:, :, s])
    gelu = torch.nn.functional.gelu(cache[f"{at}.neurons.pre"])
    torch.testing.assert_close(gelu, cache[f"{at}.neurons.post"])


@pytest.mark.parametrize("name", ONE_OF_EACH)
@pytest.mark.parametrize("part", PARTS)
def test_an_edit_inside_changes_what_follows(name, part):
    model, tokens = small(ONE_OF_EACH[name]), some_tokens(2, 6)
    site = f"{calls(model)[-1]}.{part}"
    edits = [(site, lambda value, _: value.roll(1, -1) * 1.5)]
    with torch.no_grad():
        assert not torch.allclose(model.run_with_hooks(tokens, edits), model(tokens), atol=1e-6)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_with_a_cache_the_pattern_reaches_back_to_the_first_token(name):
    model, tokens = small(ONE_OF_EACH[name]), some_tokens(2, 7)
    site = f"{calls(model)[-1]}.weights"
    with torch.no_grad():
        _, whole = model.run_with_cache(tokens, names_filter=site)
        past, seen = model.new_cache(), []
        with model.hooks([(site, lambda value, _: seen.append(value))]):
            for start, end in ((0, 3), (3, 5), (5, 6), (6, 7)):
                model(tokens[:, start:end], cache=past)
                torch.testing.assert_close(seen[-1], whole[site][..., start:end, :end], rtol=0, atol=1e-10)


def test_a_pattern_is_computed_only_for_who_listens_to_one(monkeypatch):
    model, tokens, computed = small(SRM_TINY), some_tokens(2, 6), []
    plain = attention.token_pattern
    monkeypatch.setattr(attention, "token_pattern", lambda *a: (computed.append(1), plain(*a))[1])
    model(tokens)
    model.run_with_cache(tokens, "layers.*.steps.*.attention.z")
    assert computed == []
    model.run_with_cache(tokens, "layers.1.steps.*.attention.weights")
    assert len(computed) == 3
