"""Text too long, too short or without targets; hooks at the logits; another model's means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from constructed import build

import srmlab.analysis
from srmlab.analysis.attribution import AttributionSums
from srmlab.analysis.capture import Accumulator, capture
from srmlab.errors import UserError

ONE_TOKEN = torch.zeros(3, 1, dtype=torch.long)


def test_text_beyond_the_context_is_refused_by_every_kind_of_analysis(batches):
    model = build(context=1)
    tokens = batches[0][:, :4]
    for run in (
        lambda: srmlab.analysis.routing(model, [tokens]),
        lambda: srmlab.analysis.effect(model, tokens, []),
        lambda: srmlab.analysis.attribute(model, tokens, tokens),
    ):
        with pytest.raises(UserError, match="4 tokens exceed the context of 1"):
            run()
    with pytest.raises(UserError, match="need the shape of tokens"):
        srmlab.analysis.routing(build(), [(tokens, tokens[:, 1:])])


def test_one_tensor_is_one_batch_and_what_is_none_is_refused_in_one_line(model, batches):
    one, listed = (srmlab.analysis.routing(model, given) for given in (batches[0], batches[:1]))
    assert np.array_equal(one.frequency, listed.frequency)
    assert one.evidence == listed.evidence
    for given in ([[1, 2, 3]], ["text"], [(batches[0],) * 4]):
        with pytest.raises(UserError, match="a batch is a tensor"):
            srmlab.analysis.routing(model, given)
    for ids in (batches[0] + model.config.vocab_size, batches[0] - model.config.vocab_size):
        with pytest.raises(UserError, match=r"batch 0 has token ids outside 0 to"):
            srmlab.analysis.routing(model, [ids])


@pytest.mark.parametrize("shape", [(1, 0), (0, 4)])
def test_a_batch_without_tokens_is_refused(model, shape):
    with pytest.raises(UserError, match="at least one token"):
        srmlab.analysis.routing(model, [torch.empty(shape, dtype=torch.long)])


@pytest.mark.parametrize("name", ["logit_lens", "attribution", "depth"])
def test_a_text_without_targets_is_refused_where_they_are_needed(model, name):
    with pytest.raises(UserError, match="no position has a next token"):
        getattr(srmlab.analysis, name)(model, [ONE_TOKEN])


def test_a_batch_without_targets_among_others_counts_for_nothing(model, batches):
    found = srmlab.analysis.logit_lens(model, [*batches, ONE_TOKEN], lens_tokens=None)
    assert found.sampled == 4 * 3 * 15


def test_an_effect_without_targets_has_no_change_of_loss(model):
    hooks = srmlab.analysis.replace_streams(model, [0], by="zero")
    assert np.isnan(srmlab.analysis.effect(model, ONE_TOKEN, hooks).loss_change)


def test_one_token_cannot_be_resampled(model, batches):
    with pytest.raises(UserError, match="at least two tokens"):
        srmlab.analysis.ablation(model, [ONE_TOKEN[:1]], by="resample")
    hooks = srmlab.analysis.replace_streams(model, [0], by="resample")
    with pytest.raises(UserError, match="at least two tokens"):
        srmlab.analysis.effect(model, batches[0][:1, :1], hooks)


def test_the_effect_of_a_hook_at_the_logits_is_that_of_the_logits(model, batches):
    tokens = batches[0]
    found = srmlab.analysis.effect(model, tokens, [("logits", lambda logits, _: logits * 2)], top=3)
    p = model(tokens).double()
    expected = torch.nn.functional.kl_div(
        (2 * p).log_softmax(-1), p.log_softmax(-1), reduction="none", log_target=True
    ).sum(-1)
    np.testing.assert_allclose(found.kl, expected.detach(), atol=1e-5)
    moved = p.softmax(-1)[:, -1].sub((2 * p).softmax(-1)[:, -1]).abs().argmax(-1)
    assert found.top_tokens[:, 0].tolist() == moved.tolist()


class Logits(Accumulator):
    sites = ("logits",)

    def __init__(self) -> None:
        self.means, self.seen = {}, []

    def see(self, name, value):
        self.seen.append((name, value.clone()))

    def result(self, evidence):  # noqa: ARG002
        return self.seen


def test_an_accumulator_can_listen_at_the_logits(model, batches):
    (seen,) = capture(model, batches, Logits())
    assert [name for name, _ in seen] == ["logits"] * 4
    torch.testing.assert_close(seen[1][1], model(batches[1]).detach())


def test_saved_sums_of_other_targets_are_not_picked_up(model, batches, tmp_path):
    tokens, targets = torch.cat(batches), torch.cat(batches).flip(0)
    saved = {"checkpoint": tmp_path / "sums"}
    capture(model, [(tokens, tokens)], AttributionSums(model), **saved)
    (found,) = capture(model, [(tokens, targets)], AttributionSums(model), **saved)
    (expected,) = capture(model, [(tokens, targets)], AttributionSums(model))
    np.testing.assert_array_equal(found.contribution, expected.contribution)
    assert found.evidence == expected.evidence


def test_means_of_another_model_or_of_other_points_are_refused(batches):
    model, other = build(post_steps=1), build(post_steps=1, init_seed=1)
    means = srmlab.analysis.state_means(model, batches)
    through = srmlab.analysis.state_means(model, batches, through_post=True)
    for wrong, run_on in ((means, other), (means, build(post_steps=1, streams=3)), (through, model)):
        for run in (
            lambda m, w: srmlab.analysis.ablation(m, batches, means=w),
            lambda m, w: srmlab.analysis.ablation(m, batches, layers=[1], means=w),
            lambda m, w: srmlab.analysis.interaction(m, batches, means=w),
            lambda m, w: srmlab.analysis.replace_streams(m, [0], means=w),
            lambda m, w: srmlab.analysis.logit_lens(m, batches, means=w),
        ):
            with pytest.raises(UserError, match="state means are of another model"):
                run(run_on, wrong)
    srmlab.analysis.ablation(model.bfloat16(), batches, means=means)  # the same model in another precision


def test_means_know_their_model_when_loaded_again(model, batches, tmp_path):
    means = srmlab.analysis.load(srmlab.analysis.state_means(model, batches).save(tmp_path / "states"))
    srmlab.analysis.ablation(model, batches, means=means)
    with pytest.raises(UserError, match="another model"):
        srmlab.analysis.ablation(build(init_seed=1), batches, means=means)


def test_layers_are_a_word_or_any_list_of_numbers(model, batches):
    found = srmlab.analysis.ablation(model, batches, layers=np.arange(2, 4))
    assert found.points == ("layers.2.out", "layers.3.out")
    with pytest.raises(UserError, match=r"layers = 3: .* a list of layers of 0 to 3"):
        srmlab.analysis.ablation(model, batches, layers=3)


def test_an_edge_that_is_not_there_is_refused(model, batches):
    with pytest.raises(UserError, match=r"layers\.3\.connection\.pattern: head 9, must be 0 to 1"):
        srmlab.analysis.effect(model, batches[0], srmlab.analysis.cut_edges(model, [(3, 9, 0, 2)]))
    unconnected = build(connection="none")
    with pytest.raises(UserError, match="cut_edges needs a connection with a pattern"):
        srmlab.analysis.cut_edges(unconnected, [(3, 0, 0, 2)])


def test_a_result_without_a_figure_says_so(model, batches):
    for result in (
        srmlab.analysis.effect(model, batches[0], []),
        srmlab.analysis.state_means(model, batches),
    ):
        with pytest.raises(UserError, match="there is no figure for"):
            result.figure()


@pytest.mark.parametrize(
    "one_layer",
    [
        lambda: build(depth=1, gradient_depth=1),
        lambda: srmlab.build(srmlab.preset("gpt2-nano", blocks=1)),
        lambda: srmlab.build(srmlab.preset("hrm-nano", high_cycles=1)),
    ],
)
def test_one_layer_has_no_drift_and_says_so(batches, one_layer):
    found = srmlab.analysis.drift(one_layer(), batches)
    for told in (found.summary(), found.headline()):
        assert "one layer: no transitions" in told
    assert found.figure()
    assert found.figure(metric="kl")


def test_dynamics_need_two_layers(batches):
    with pytest.raises(UserError, match="depth = 2 or more"):
        srmlab.analysis.dynamics([(0, build(depth=1, gradient_depth=1))], batches)


def test_dynamics_in_random_order_leave_out_what_was_not_measured(batches):
    found = srmlab.analysis.dynamics([(0, build(order="random:1", order_seed=3))], batches)
    assert np.isnan(found.drift).any()
    assert found.summary()
    assert found.figure()
    measured = np.isfinite(found.drift[0]).any(0)
    assert found.jump[0] == -1 if not measured.any() else measured[found.jump[0]]


@pytest.mark.parametrize("connection", ["gate", "translation"])
def test_dynamics_have_the_routing_of_every_connection_with_a_pattern(batches, connection):
    model = build(connection=connection)
    found = srmlab.analysis.dynamics([(0, model)], batches)
    np.testing.assert_allclose(found.outgoing[0], srmlab.analysis.routing(model, batches).outgoing)


@pytest.mark.parametrize("connection", ["none", "addition"])
def test_dynamics_without_a_learned_connection_have_no_routing(batches, connection, tmp_path):
    found = srmlab.analysis.dynamics(
        [(0, build(connection=connection)), (1, build(connection=connection))], batches
    )
    assert np.isnan(found.outgoing).all()
    assert np.isnan(found.hub_share).all()
    assert "strongest source" not in found.summary()
    assert "hub" not in found.headline()
    assert found.figure()
    assert found.to_pgfplots(tmp_path, "nano")
