from __future__ import annotations

import numpy as np
import pytest
import torch
from constructed import build

import srmlab
import srmlab.analysis
from srmlab.analysis.capture import place
from srmlab.analysis.logit_lens import sample_positions
from srmlab.data import Batch
from srmlab.errors import UserError
from srmlab.models.loss import IGNORE
from srmlab.models.registry import PRESETS


@pytest.mark.parametrize("post_steps", [0, 1])
def test_with_no_stream_removed_the_last_point_is_the_models_own_loss(batches, post_steps):
    model = build(post_steps=post_steps)
    found = srmlab.analysis.logit_lens(model, batches, lens_tokens=None)
    tokens = torch.cat(batches)
    loss = model(tokens[:, :-1], tokens[:, 1:]).item()
    assert found.full[-1] == pytest.approx(-loss, abs=1e-5)
    assert len(found.points) == 4 + post_steps
    assert found.sampled == 12 * 15


def test_raw_and_corrected_are_decodings_of_hand_made_states(model, batches):
    found = srmlab.analysis.logit_lens(model, batches, lens_tokens=None)
    tokens = torch.cat(batches)
    _, cache = model.run_with_cache(tokens, "layers.1.out")
    z = cache["layers.1.out"]
    for mode, others in (("raw", torch.zeros_like(z)), ("corrected", z.mean((0, 1)).expand_as(z))):
        kept = others.clone()
        kept[:, :, 2] = z[:, :, 2]
        log_p = (model.output_function(kept.permute(2, 0, 1, 3)) @ model.unembedding.T).log_softmax(-1)
        expected = log_p[:, :-1].gather(-1, tokens[:, 1:, None]).mean().item()
        assert getattr(found, mode)[1, 2] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("post_input", ["state", "state+update"])
def test_through_the_post_steps_every_layer_is_the_model_that_stops_there(batches, post_input):
    model = build(post_steps=2, post_input=post_input)
    found = srmlab.analysis.logit_lens(model, batches, lens_tokens=None, through_post=True)
    assert found.labels == ["0", "1", "2", "3"]
    depths = srmlab.analysis.depth(model, batches, max_depth=4)
    np.testing.assert_allclose(found.full, -depths.loss, atol=1e-5)
    plain = srmlab.analysis.logit_lens(model, batches, lens_tokens=None)
    assert plain.labels == ["0", "1", "2", "3", "post 0", "post 1"]
    np.testing.assert_allclose(found.corrected[-1], plain.corrected[-1], atol=1e-5)
    np.testing.assert_allclose(found.raw[-1], plain.raw[-1], atol=1e-5)
    assert abs(found.full[0] - plain.full[0]) > 1e-3


def test_without_post_steps_there_is_nothing_to_go_through(model, batches):
    found, plain = (
        srmlab.analysis.logit_lens(model, batches, lens_tokens=None, through_post=flag)
        for flag in (True, False)
    )
    np.testing.assert_allclose(found.corrected, plain.corrected, atol=1e-6)


def test_one_stream_alone_is_the_whole_model(batches):
    found = srmlab.analysis.logit_lens(build(streams=1), batches, lens_tokens=None)
    np.testing.assert_allclose(found.raw[:, 0], found.full, atol=1e-5)
    np.testing.assert_allclose(found.corrected[:, 0], found.full, atol=1e-5)


def test_a_sample_of_positions_is_the_same_every_time_and_about_as_large_as_asked(model, batches):
    first, again = (srmlab.analysis.logit_lens(model, batches, lens_tokens=40) for _ in range(2))
    np.testing.assert_array_equal(first.corrected, again.corrected)
    assert first.sampled == 40
    assert srmlab.analysis.logit_lens(model, batches, lens_tokens=40, seed=1).full[0] != first.full[0]


def test_a_sample_is_the_same_share_of_the_targets_of_every_batch(model):
    """Else a batch with few targets would count for more than its tokens."""
    tokens = torch.randint(0, model.config.vocab_size, (16, 16), generator=torch.Generator().manual_seed(0))
    targets = tokens.roll(-1, 1)
    targets[8:, 1:] = IGNORE  # 128 targets in one batch, 8 in the other
    text = [Batch(tokens[:8], targets[:8]), Batch(tokens[8:], targets[8:])]
    chosen = [len(sample_positions(place(batch, model.device, i), 0.5, 0)) for i, batch in enumerate(text)]
    assert chosen == [64, 4]
    assert srmlab.analysis.logit_lens(model, text, lens_tokens=68).sampled == 68


def test_hrm_reads_its_two_states_and_gpt2_its_residual_stream(batches):
    tokens = [batch % 64 for batch in batches]
    both = torch.cat(tokens)
    for name, streams, points in (("hrm-nano", ("L", "H"), 3), ("gpt2-nano", ("residual",), 6)):
        model = srmlab.build(srmlab.preset(name)).eval()
        found = srmlab.analysis.logit_lens(model, tokens, lens_tokens=None)
        assert (found.streams, len(found.points)) == (streams, points)
        assert found.full[-1] == pytest.approx(-model(both[:, :-1], both[:, 1:]).item(), abs=1e-5)
        np.testing.assert_allclose(found.raw[:, -1], found.full, atol=1e-9)


def test_the_cost_is_told_before_the_work(model):
    cost = srmlab.analysis.lens_cost(model, 100)
    assert str(cost).startswith("100 positions × 4 points × 9 decodings = 3,600 unembeddings")
    assert cost.flops == 2 * 3600 * 97 * 24


def test_means_of_another_model_are_refused(model, batches):
    means = srmlab.analysis.state_means(build(depth=5), batches)
    with pytest.raises(UserError, match="another model"):
        srmlab.analysis.logit_lens(model, batches, means=means)


def test_the_table_has_a_row_for_every_layer_and_stream(model, batches, tmp_path):
    found = srmlab.analysis.logit_lens(model, batches)
    table = np.genfromtxt(found.to_pgfplots(tmp_path, "x")[0], names=True)
    assert len(table) == 16
    np.testing.assert_allclose(table["corrected"], found.corrected.ravel(), rtol=1e-5)


def test_a_log_probability_is_never_above_zero_however_sure_the_model_is():
    from srmlab.analysis.readout import log_probabilities

    generator = torch.Generator().manual_seed(0)
    unembedding = torch.randn(6, 64, generator=generator)
    targets = torch.arange(6).repeat(50)
    sure = unembedding[targets] * torch.linspace(1, 30, 300)[:, None]  # logits of up to thousands
    assert log_probabilities(sure, unembedding, targets).max() <= 0


@pytest.mark.parametrize("name", ["hyper-nano", "hyper-loop-nano"])
def test_streams_that_are_normed_together_are_each_read_on_their_own(batches, name):
    model, tokens = srmlab.build(srmlab.preset(name)), torch.cat(batches)
    found = srmlab.analysis.logit_lens(model, batches, lens_tokens=None)
    assert found.streams == ("S0", "S1", "S2", "S3")
    _, cache = model.run_with_cache(tokens, found.points[1])
    state = cache[found.points[1]]  # [B, T, S, D]
    for kept, read in ((found.raw[1, 2], state[:, :, 2]), (found.full[1], state.sum(2))):
        log_p = (model.norm(read) @ model.unembedding.T).log_softmax(-1)
        expected = log_p[:, :-1].gather(-1, tokens[:, 1:, None]).mean().item()
        assert kept == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "name", [name for name in PRESETS if name.endswith("-nano") and "sudoku" not in name]
)
def test_the_last_point_is_the_models_own_loss_whatever_the_architecture(batches, name):
    model, tokens = srmlab.build(srmlab.preset(name)), torch.cat(batches)
    found = srmlab.analysis.logit_lens(model, batches, lens_tokens=None)
    logits = model.eval()(tokens)  # Huginn begins from noise in training
    log_p = logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])
    assert found.full[-1] == pytest.approx(log_p.mean().item(), abs=1e-4)
