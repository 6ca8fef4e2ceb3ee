"""Interventions do what they say, and leave nothing behind."""

from __future__ import annotations

import pytest
import torch
from explorer_subjects import tiny_model

from srmlab.analysis.interventions import AblatedStream, CutEdge, Intervention
from srmlab.analysis.replacement import other_tokens
from srmlab.errors import UserError
from srmlab.explorer.outcomes import Baseline, evaluate

TOKENS = torch.tensor([5, 9, 100, 3, 77, 200])


@pytest.fixture
def baseline(tiny) -> Baseline:
    return Baseline.of(tiny, TOKENS)


def seen(model, baseline, intervention, site):
    """The value at a site while the intervention is on."""
    with torch.inference_mode(), model.hooks(intervention.hooks(model, baseline.means)):
        return model.run_with_cache(TOKENS[None], names_filter=site)[1][site][0]


def test_no_intervention_changes_nothing(tiny, baseline):
    assert evaluate(tiny, baseline, Intervention()).kl.abs().max() < 1e-6


@pytest.mark.parametrize("mode", ["mean", "zero", "resample"])
def test_an_ablated_stream_holds_its_replacement_and_the_others_their_state(tiny, baseline, mode):
    before = seen(tiny, baseline, Intervention(), "layers.2.out")
    found = seen(tiny, baseline, Intervention((AblatedStream(1, mode, 2, 2),)), "layers.2.out")
    expected = {
        "mean": before.mean(0, keepdim=True).expand(6, -1, -1),
        "zero": torch.zeros_like(found),
        "resample": before[other_tokens(6)],
    }[mode]
    assert torch.allclose(found[:, 1], expected[:, 1], atol=1e-6)
    assert torch.allclose(found[:, [0, 2]], before[:, [0, 2]], atol=1e-6)


def test_a_range_of_layers_ablates_each_of_them(tiny, baseline):
    both = Intervention((AblatedStream(0, "zero", 0, 1),))
    assert not seen(tiny, baseline, both, "layers.0.out")[:, 0].any()
    assert not seen(tiny, baseline, both, "layers.1.out")[:, 0].any()
    assert seen(tiny, baseline, both, "layers.2.out")[:, 0].any()


def test_with_post_steps_the_last_layer_is_the_state_the_output_reads():
    model = tiny_model(post_steps=1)
    baseline = Baseline.of(model, TOKENS)
    last = Intervention((AblatedStream(2, "zero", 2, 2),))
    assert not seen(model, baseline, last, "post.0.out")[:, 2].any()
    both = Intervention((AblatedStream(2, "zero", 1, 2),))
    assert not seen(model, baseline, both, "layers.1.out")[:, 2].any()
    assert not seen(model, baseline, both, "post.0.out")[:, 2].any()
    assert seen(model, baseline, both, "layers.2.out")[:, 2].any()


def test_a_cut_edge_has_no_weight_at_its_token_and_the_others_keep_theirs(tiny, baseline):
    site = "layers.1.connection.pattern"
    before = seen(tiny, baseline, Intervention(), site)
    after = seen(tiny, baseline, Intervention(cuts=(CutEdge(1, 0, target=2, source=1, token=3),)), site)
    assert after[3, 0, 2, 1] == 0
    changed = (before != after).nonzero()
    assert changed.tolist() == [[3, 0, 2, 1]]
    everywhere = seen(tiny, baseline, Intervention(cuts=(CutEdge(1, 0, target=2, source=1),)), site)
    assert not everywhere[:, 0, 2, 1].any()


def test_a_cut_at_one_token_cannot_touch_the_tokens_before_it(tiny, baseline):
    kl = evaluate(tiny, baseline, Intervention(cuts=(CutEdge(0, 1, 0, 2, token=3),))).kl
    assert kl[:3].abs().max() < 1e-6
    assert kl[3:].max() > 1e-6


def test_the_model_is_as_before_after_an_intervention_and_after_a_refused_one(tiny, baseline):
    evaluate(tiny, baseline, Intervention((AblatedStream(0, "zero", 0, 2),)))
    with pytest.raises(UserError):
        evaluate(tiny, baseline, Intervention((AblatedStream(9, "zero", 0, 2),)))
    assert not tiny.listening
    assert torch.equal(Baseline.of(tiny, TOKENS).log_probs, baseline.log_probs)


@pytest.mark.parametrize(
    ("intervention", "complaint"),
    [
        (Intervention((AblatedStream(3, "mean", 0, 0),)), r"stream 3: must be 0 to 2"),
        (Intervention((AblatedStream(0, "mean", 0, 3),)), r"last layer 3: must be 0 to 2"),
        (Intervention((AblatedStream(0, "mean", 2, 1),)), "swap them"),
        (Intervention(cuts=(CutEdge(0, 2, 0, 0),)), "head 2"),
        (Intervention(cuts=(CutEdge(0, 0, 0, 0, token=6),)), "token 6"),
    ],
)
def test_what_the_model_does_not_have_is_refused_by_name(tiny, baseline, intervention, complaint):
    with pytest.raises(UserError, match=complaint):
        evaluate(tiny, baseline, intervention)
