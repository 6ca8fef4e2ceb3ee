from __future__ import annotations

import numpy as np
import pytest
import torch
from constructed import build

import srmlab
import srmlab.analysis
from srmlab.errors import UserError


def loss_at(model, depth, tokens):
    other = model if depth is None else srmlab.analysis.at_depth(model, depth)
    return other(tokens[:, :-1], tokens[:, 1:]).item()


@pytest.mark.parametrize("options", [{}, {"post_steps": 1}, {"post_steps": 2, "post_input": "state+update"}])
def test_one_deep_pass_gives_the_loss_of_every_lesser_depth(batches, options):
    model = build(**options)
    found = srmlab.analysis.depth(model, batches, max_depth=6)
    tokens = torch.cat(batches)
    assert found.depths.tolist() == [1, 2, 3, 4, 5, 6]
    for depth, loss in zip(found.depths, found.loss, strict=True):
        assert loss == pytest.approx(loss_at(model, int(depth), tokens), abs=1e-5)
    assert found.loss[3] == pytest.approx(loss_at(model, None, tokens), abs=1e-5)


def test_another_depth_shares_the_weights_and_leaves_the_model_alone(model):
    deep = srmlab.analysis.at_depth(model, 9)
    assert deep.config.depth == 9
    assert model.config.depth == 4
    assert deep.unembedding.data_ptr() == model.unembedding.data_ptr()
    assert srmlab.analysis.at_depth(model, 1).config.gradient_depth == 1


def test_a_gradient_through_all_layers_reaches_the_first_state(model, batches):
    def gradient(model):
        logits, cache = model.run_with_cache(batches[0], "layers.0.out", detach=False)
        state = cache["layers.0.out"]
        return torch.autograd.grad(logits[0, -1].max(), state)[0] if state.requires_grad else None

    assert gradient(model) is None  # only the last layers have one
    assert gradient(srmlab.analysis.at_depth(model, 4, gradient_depth=4)).abs().sum() > 0


def test_a_model_whose_layers_do_nothing_new_settles_at_once(model, batches):
    """Every layer is made to give the same state: predictions agree at all depths and settle at the first."""
    constant = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    for l in range(4):
        model.sites[f"layers.{l}.out"].register_forward_hook(
            lambda _m, _i, out: constant.expand_as(out).contiguous()
        )
    found = srmlab.analysis.depth(model, batches, max_depth=4)
    assert found.agreement.tolist() == [1, 1, 1, 1]
    assert found.settled.tolist() == [1, 0, 0, 0]
    assert found.mean_settling == 1


def test_predictions_settle_at_the_first_depth_from_which_they_stay(model, batches):
    found = srmlab.analysis.depth(model, batches, max_depth=5)
    tokens = torch.cat(batches)
    best = [srmlab.analysis.at_depth(model, d)(tokens)[:, :-1].argmax(-1) for d in range(1, 5)]
    settled = np.zeros(5)
    for position in range(best[0].numel()):
        at = [layer.flatten()[position].item() for layer in best]
        first = min(d for d in range(4) if len(set(at[d:])) == 1)
        settled[first] += 1 / best[0].numel()
    np.testing.assert_allclose(found.settled, settled, atol=1e-9)


def test_hrm_runs_for_more_cycles_and_gpt2_only_for_fewer_blocks(batches):
    tokens = [batch % 64 for batch in batches]
    hrm = srmlab.build(srmlab.preset("hrm-nano"))
    found = srmlab.analysis.depth(hrm, tokens, max_depth=4)
    assert (found.trained, found.unit, len(found.depths)) == (3, "high cycles", 4)
    both = torch.cat(tokens)
    assert found.loss[3] == pytest.approx(loss_at(hrm, 4, both), abs=1e-5)
    gpt2 = srmlab.build(srmlab.preset("gpt2-nano")).eval()
    found = srmlab.analysis.depth(gpt2, tokens)
    assert found.loss[-1] == pytest.approx(loss_at(gpt2, None, both), abs=1e-5)
    with pytest.raises(UserError, match="gpt2 cannot run at another depth"):
        srmlab.analysis.depth(gpt2, tokens, max_depth=9)


def test_a_depth_below_the_trained_one_is_refused_since_it_is_included(model, batches):
    with pytest.raises(UserError, match="at least the trained depth, 4"):
        srmlab.analysis.depth(model, batches, max_depth=2)
