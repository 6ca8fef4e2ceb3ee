from __future__ import annotations

import numpy as np
import pytest
import torch

import srmlab
import srmlab.analysis
from srmlab.errors import UserError
from subjects import SMALL


@pytest.fixture
def tokens(batches):
    return batches[0]


def test_full_ablation_is_the_kl_to_the_uniform_distribution(model, tokens):
    """Without any stream the logits are zero, so KL(p ‖ uniform) = log V − entropy."""
    hooks = srmlab.analysis.replace_streams(model, range(4), layers="last", by="zero")
    found = srmlab.analysis.effect(model, tokens, hooks)
    p = model(tokens).double().softmax(-1)
    expected = np.log(97) + (p * p.log()).sum(-1).detach()
    np.testing.assert_allclose(found.kl, expected, atol=1e-5)
    assert found.mean_bits == pytest.approx(found.mean_kl / np.log(2))


def test_a_cut_edge_is_the_pattern_hooked_by_hand(model, tokens):
    def by_hand(pattern, hook):  # noqa: ARG001
        pattern = pattern.clone()
        pattern[:, :, 1, 0, 3] = 0
        pattern[:, :, 1, 0] /= pattern[:, :, 1, 0].sum(-1, keepdim=True)
        return pattern

    cut = srmlab.analysis.cut_edges(model, [(2, 1, 0, 3)])
    changed = model.run_with_hooks(tokens, cut)
    expected = model.run_with_hooks(tokens, [("layers.2.connection.pattern", by_hand)])
    torch.testing.assert_close(changed, expected)
    assert not torch.equal(changed, model(tokens))


def test_without_renormalising_the_other_edges_stay_as_they_are(model, tokens):
    kept = {}
    hooks = srmlab.analysis.cut_edges(model, [(1, None, 2, 0), (1, None, 2, 1)], renormalise=False)
    _, before = model.run_with_cache(tokens, "layers.1.connection.pattern")
    keep = ("layers.1.connection.pattern", lambda value, hook: kept.update(value=value))  # noqa: ARG005
    model.run_with_hooks(tokens, [*hooks, keep])
    expected = before["layers.1.connection.pattern"].clone()
    expected[:, :, :, 2, :2] = 0
    torch.testing.assert_close(kept["value"], expected)


def test_a_target_with_every_edge_cut_takes_in_nothing(model, tokens):
    kept = {}
    hooks = srmlab.analysis.cut_edges(model, [(1, None, 2, None)])
    keep = ("layers.1.connection.out", lambda value, hook: kept.update(value=value))  # noqa: ARG005
    model.run_with_hooks(tokens, [*hooks, keep])
    assert not kept["value"][:, :, 2].any()
    assert kept["value"][:, :, 1].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_target_with_every_edge_cut_takes_in_nothing_in_half_precision(model, tokens, dtype):
    site, half = "layers.1.connection.out", model.to(dtype)
    with half.hooks(srmlab.analysis.cut_edges(half, [(1, None, 2, None)])):
        _, cache = half.run_with_cache(tokens, site)
    assert (cache[site][:, :, 2] == 0).all()
    assert cache[site].isfinite().all()


def test_renormalising_keeps_what_weights_add_up_to_and_leaves_other_targets_alone():
    model = srmlab.build(srmlab.preset("hyper-nano").replace(vocab_size=97, context=16, blocks=2))
    site, mix = "blocks.1.connections.0.pattern", torch.rand(4, 4, generator=torch.Generator().manual_seed(0))
    model.stack[1].links[0].mix.data = mix  # [source, target]
    cut, tokens = [(1, 0, 2, 3)], torch.arange(5)[None]
    with model.hooks(srmlab.analysis.cut_edges(model, cut)):
        _, cache = model.run_with_cache(tokens, site)
    expected = mix.T.clone()
    expected[2, 3] = 0
    expected[2] *= mix[:, 2].sum() / expected[2].sum()
    torch.testing.assert_close(cache[site][0, 0, 0], expected)
    mix[0, 0] = -0.1
    with pytest.raises(UserError, match="renormalise=False"):
        srmlab.analysis.effect(model, tokens, srmlab.analysis.cut_edges(model, cut))
    srmlab.analysis.effect(model, tokens, srmlab.analysis.cut_edges(model, cut, renormalise=False))


def test_patching_a_prompt_from_itself_changes_nothing(model, tokens):
    hooks = srmlab.analysis.patch_streams(model, tokens, streams=[0, 1, 2, 3], layer=2)
    found = srmlab.analysis.effect(model, tokens, hooks)
    assert not found.kl.any()
    assert found.loss_change == 0


def test_patching_all_streams_after_the_last_layer_gives_the_other_prompts_prediction(model, batches):
    tokens, other = batches[:2]
    hooks = srmlab.analysis.patch_streams(model, other, streams=range(4), layer=3)
    torch.testing.assert_close(model.run_with_hooks(tokens, hooks), model(other))


def test_patching_from_another_layer_moves_a_state_in_depth(model, tokens):
    kept = {}
    hooks = srmlab.analysis.patch_streams(model, tokens, streams=[1], layer=2, from_layer=0)
    keep = ("layers.2.out", lambda value, hook: kept.update(value=value))  # noqa: ARG005
    model.run_with_hooks(tokens, [*hooks, keep])
    _, cache = model.run_with_cache(tokens, "layers.0.out")
    torch.testing.assert_close(kept["value"][:, :, 1], cache["layers.0.out"][:, :, 1])
    assert srmlab.analysis.effect(model, tokens, hooks).mean_kl > 0


def test_patching_some_tokens_takes_them_from_a_prompt_of_any_length(model, batches):
    tokens, other = batches[0], batches[1][:, :7]
    kept = {}
    hooks = srmlab.analysis.patch_streams(model, other, [0, 2], layer=1, tokens=[9, -1], from_tokens=[3, 5])
    keep = ("layers.1.out", lambda value, hook: kept.update(value=value))  # noqa: ARG005
    model.run_with_hooks(tokens, [*hooks, keep])
    _, unchanged = model.run_with_cache(tokens, "layers.1.out")
    _, given = model.run_with_cache(other, "layers.1.out")
    expected = unchanged["layers.1.out"].clone()
    for to, origin in ((9, 3), (-1, 5)):
        expected[:, to, [0, 2]] = given["layers.1.out"][:, origin, [0, 2]]
    torch.testing.assert_close(kept["value"], expected)


def test_a_patch_at_tokens_changes_no_earlier_prediction(model, batches):
    tokens, other = batches[:2]
    hooks = srmlab.analysis.patch_streams(model, other, range(4), layer=0, tokens=[5])
    found = srmlab.analysis.effect(model, tokens, hooks)
    assert not found.kl[:, :5].any()
    assert (found.kl[:, 5] > 0).all()


def test_a_token_of_a_puzzle_model_is_a_cell():
    model = srmlab.build(SMALL.replace(causal=False, context=18, puzzle_positions=2))
    board, other = torch.randint(0, 97, (2, 1, 16), generator=torch.Generator().manual_seed(0))
    point, site = "layers.1.out", "layers.1.connection.pattern"
    _, whole = model.run_with_cache(board, [point, site])
    _, theirs = model.run_with_cache(other, point)
    patch = srmlab.analysis.patch_streams(model, other, [3], 1, tokens=[5, -1], from_tokens=[0, 4])
    cut = srmlab.analysis.cut_edges(model, [(1, 0, 2, 1, 5), (1, 0, 2, 1, -16)], renormalise=False)
    with model.hooks(patch):
        _, patched = model.run_with_cache(board, point)
    with model.hooks(cut):
        _, without = model.run_with_cache(board, site)
    expected = whole[point].clone()
    expected[:, [7, 17], 3] = theirs[point][:, [2, 6], 3]
    torch.testing.assert_close(patched[point], expected, atol=1e-5, rtol=0)
    assert (without[site][0, :, 0, 2, 1] == 0).nonzero().flatten().tolist() == [2, 7]
    with pytest.raises(UserError, match="it has 16"):
        srmlab.analysis.patch_streams(model, other, [3], 1, tokens=[16])


def test_an_effect_names_the_tokens_whose_probability_changed_most(model, tokens):
    hooks = srmlab.analysis.replace_streams(model, [0], layers="last", by="zero")
    found = srmlab.analysis.effect(model, tokens, hooks, top=3)
    p, q = model(tokens)[:, -1].softmax(-1), model.run_with_hooks(tokens, hooks)[:, -1].softmax(-1)
    assert found.top_tokens[:, 0].tolist() == (p - q).abs().argmax(-1).tolist()
    np.testing.assert_allclose(found.top_before[0, 0], p[0, found.top_tokens[0, 0]].item(), rtol=1e-5)
    assert "'<" in found.summary(decode=lambda token: f"<{token}>")


def test_the_loss_change_counts_only_positions_with_a_target(model, tokens):
    hooks = srmlab.analysis.replace_streams(model, [0], by="zero")
    found = srmlab.analysis.effect(model, tokens, hooks)
    assert np.isnan(found.loss_before[:, -1]).all()
    expected = -model(tokens)[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
    np.testing.assert_allclose(found.loss_before[:, :-1], expected.detach(), atol=1e-5)


def test_interaction_is_joint_less_the_sum_and_equals_group_ablation(model, batches):
    found = srmlab.analysis.interaction(model, batches)
    pair = srmlab.analysis.ablation(model, batches, groups=[(1,), (3,), (1, 3)])
    assert found.joint[1, 3] == pytest.approx(pair.kl[2], rel=1e-5)
    assert found.interaction[3, 1] == pytest.approx(pair.kl[2] - pair.kl[0] - pair.kl[1], abs=1e-6)
    assert not np.diag(found.interaction).any()
    np.testing.assert_allclose(np.diag(found.joint), found.single)
    assert len(found.pairs) == 6


def test_a_stream_without_output_weight_interacts_with_none(model, batches):
    with torch.no_grad():
        model.output_function.from_streams.weight[:, 0:16] = 0
    found = srmlab.analysis.interaction(model, batches)
    np.testing.assert_allclose(found.interaction[0], 0, atol=1e-7)


def test_what_cannot_be_changed_is_refused_in_one_line(model, tokens, batches):
    with pytest.raises(UserError, match=r"needs means = srmlab\.analysis\.state_means"):
        srmlab.analysis.replace_streams(model, [0])
    with pytest.raises(UserError, match=r"streams = \[9\]"):
        srmlab.analysis.replace_streams(model, [9], by="zero")
    patch = srmlab.analysis.patch_streams(model, batches[0][:, :8], [0], layer=1)
    with pytest.raises(UserError, match="the same shape"):
        srmlab.analysis.effect(model, tokens, patch)
    with pytest.raises(UserError, match="from_tokens needs tokens"):
        srmlab.analysis.patch_streams(model, tokens, [0], layer=1, from_tokens=[1])
    with pytest.raises(UserError, match="2 source tokens for 1 prompt tokens"):
        srmlab.analysis.patch_streams(model, tokens, [0], layer=1, tokens=[1], from_tokens=[1, 2])
    with pytest.raises(UserError, match="token 99 of the source"):
        srmlab.analysis.patch_streams(model, tokens, [0], layer=1, tokens=[99])
