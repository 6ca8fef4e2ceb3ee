from __future__ import annotations

import numpy as np
import pytest
import torch
from constructed import build

import srmlab.analysis
from srmlab.errors import UserError


@pytest.mark.parametrize("post_steps", [0, 1])
def test_the_streams_contributions_add_up_to_the_logit_of_every_token(batches, post_steps):
    model = build(post_steps=post_steps)
    tokens = torch.cat(batches)
    found = srmlab.analysis.attribute(model, tokens[:, :-1], tokens[:, 1:])
    logits = model(tokens[:, :-1]).gather(-1, tokens[:, 1:, None]).squeeze(-1)
    np.testing.assert_allclose(found.sum(-1), logits.detach(), atol=1e-5)
    mean = srmlab.analysis.attribution(model, batches)
    np.testing.assert_allclose(mean.contribution, found.mean((0, 1)), atol=1e-5)
    assert mean.logit == pytest.approx(logits.mean().item(), abs=1e-5)


def test_a_stream_without_output_weight_contributes_nothing(model, batches):
    with torch.no_grad():
        model.output_function.from_streams.weight[:, 32:48] = 0
    found = srmlab.analysis.attribution(model, batches)
    assert found.contribution[2] == 0
    assert found.centred[2] == 0


def test_centred_contributions_do_not_see_what_is_added_to_all_logits(batches):
    model = build(tied=False)
    before = srmlab.analysis.attribution(model, batches)
    with torch.no_grad():
        model.output_function.unembedding.weight += torch.randn(1, 24)
    after = srmlab.analysis.attribution(model, batches)
    np.testing.assert_allclose(after.centred, before.centred, atol=1e-4)
    assert np.abs(after.contribution - before.contribution).max() > 0.01


def test_a_position_without_a_target_has_no_contribution(model, batches):
    tokens = batches[0]
    targets = tokens.roll(-1, 1)
    whole = srmlab.analysis.attribute(model, tokens, targets)
    targets[:, -1] = -100
    found = srmlab.analysis.attribute(model, tokens, targets)
    assert torch.equal(found[:, :-1], whole[:, :-1])
    assert found[:, -1].isnan().all()
    with pytest.raises(UserError, match="a target of -1"):
        srmlab.analysis.attribute(model, tokens, targets.clamp(min=-1))


def test_the_contributions_to_a_cells_logit_are_its_own():
    model = build(causal=False, context=18, puzzle_positions=2)
    tokens, targets = torch.randint(0, 97, (2, 3, 16), generator=torch.Generator().manual_seed(0))
    found = srmlab.analysis.attribute(model, tokens, targets)
    logits = model(tokens).detach().gather(-1, targets[..., None])[..., 0]
    torch.testing.assert_close(found.sum(-1), logits, atol=1e-4, rtol=0)
