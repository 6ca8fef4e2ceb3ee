"""TransformerLens' verbs, on every architecture."""

from __future__ import annotations

import pytest
import torch
from small_models import ONE_OF_EACH, SRM_TINY, VOCAB, small, some_tokens

from srmlab.errors import UserError
from srmlab.models.sites import HookPoint

TOKENS = some_tokens(3, 6)
each = pytest.mark.parametrize("name", ONE_OF_EACH)


@each
def test_the_loss_of_tokens_is_that_of_their_targets(name):
    model = small(ONE_OF_EACH[name])
    logits, loss = model(TOKENS, return_type="both")
    assert torch.equal(logits, model(TOKENS))
    torch.testing.assert_close(loss, model(TOKENS[:, :-1], TOKENS[:, 1:]))
    torch.testing.assert_close(model(TOKENS, return_type="loss"), loss)
    per_token = model(TOKENS, return_type="loss", loss_per_token=True)
    assert per_token.shape == (3, 5)
    torch.testing.assert_close(per_token.mean(), loss)
    assert torch.equal(model(TOKENS, return_type="logits"), logits)


def test_the_loss_of_padded_tokens_counts_real_ones_predicted_by_real_ones():
    model = small(SRM_TINY)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]] * 3)
    alone = model(TOKENS[:, 2:], return_type="loss")
    torch.testing.assert_close(model(TOKENS, attention_mask=mask, return_type="loss"), alone)


@each
def test_verbs_take_the_options_of_a_pass(name):
    model = small(ONE_OF_EACH[name])
    site = model.points[0].sites[0]
    loss, cache = model.run_with_cache(TOKENS, site, return_type="loss")
    assert loss.ndim == 0
    assert list(cache) == [site]
    hooked = model.run_with_hooks(TOKENS, [(site, lambda value, _: value * 0)], return_type="loss")
    assert not torch.allclose(hooked, loss)


@each
def test_a_backward_hook_sees_and_replaces_the_gradient_of_the_value(name):
    model = small(ONE_OF_EACH[name])
    site, seen = model.points[-1].sites[-1], {}

    def look(gradient, hook):
        seen[hook.name] = gradient.clone()
        return gradient * 0

    loss, cache = model.run_with_cache(TOKENS, site, detach=False, return_type="loss")
    (expected,) = torch.autograd.grad(loss, cache[site])
    model.run_with_hooks(TOKENS, bwd_hooks=[(site, look)], return_type="loss").backward()
    torch.testing.assert_close(seen[site], expected)
    below = [p for n, p in model.named_parameters() if "attn_out" in n or "layer.steps.2.mlp_down" in n]
    assert all(p.grad is None or not p.grad.any() for p in below)  # nothing came through


@each
def test_added_hooks_stay_until_they_are_reset(name):
    model = small(ONE_OF_EACH[name])
    plain, site = model(TOKENS), model.points[0].sites[0]
    calls = []
    model.add_hook(site, lambda value, hook: calls.append(hook.name) or value * 2)
    changed = model(TOKENS)
    assert torch.equal(changed, model(TOKENS))
    assert calls == [site, site]
    assert not torch.allclose(changed, plain)
    model.add_hook(site, lambda _, hook: calls.append(f"gradient of {hook.name}"), dir="bwd")
    model.reset_hooks()
    assert torch.equal(model(TOKENS), plain)
    assert calls == [site, site]
    assert not model.listening


@each
def test_a_pass_stops_before_a_layer(name):
    model = small(ONE_OF_EACH[name])
    _, cache = model.run_with_cache(TOKENS)
    for level in range(1, model.depth + 1):
        called = []
        with model.hooks([(None, lambda _, hook, called=called: called.append(hook.name))]):
            state = model(TOKENS, stop_at_layer=level)
        point = model.points[level - 1]
        torch.testing.assert_close(state, model.state_at(point, cache))
        assert "logits" not in called
    torch.testing.assert_close(model(TOKENS, stop_at_layer=-1), model(TOKENS, stop_at_layer=model.depth - 1))
    start = model(TOKENS, stop_at_layer=0)
    assert torch.equal(start.flatten(2), cache[model.site_names[0]].flatten(2))


@each
def test_sizes_are_there_in_their_words(name):
    model = small(ONE_OF_EACH[name])
    assert model.hook_dict is model.sites
    assert (model.cfg.n_layers, model.cfg.d_vocab) == (model.depth, VOCAB)
    assert model(TOKENS, stop_at_layer=1).flatten(2).shape[-1] == model.cfg.d_model


def test_a_hook_says_its_layer():
    assert HookPoint("layers.3.steps.1.out").layer() == 3
    with pytest.raises(UserError, match="in no layer"):
        HookPoint("logits").layer()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"return_type": "los"}, "must be one of logits, loss, both"),
        ({"stop_at_layer": 9}, "stop_at_layer = 9: there are 3 layers"),
        ({"return_type": "loss", "targets": TOKENS}, "go without return_type"),
    ],
)
def test_what_cannot_be_asked_is_refused(options, complaint):
    with pytest.raises(UserError, match=complaint):
        small(SRM_TINY)(TOKENS, **options)
