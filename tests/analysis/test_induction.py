"""The induction score: the weight on what came next before, of every head, on a sequence read twice."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import srmlab.analysis
from models.small_models import ONE_OF_EACH, small
from srmlab.analysis.induction import repeated
from srmlab.errors import UserError

TEXT = torch.randint(13, (3, 12), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("name", ["srm", "hrm", "gpt2"])
def test_it_is_that_of_a_loop_over_tokens(name):
    model = small(ONE_OF_EACH[name])
    found = srmlab.analysis.induction(model, [TEXT])
    tokens = repeated(TEXT, 13)
    assert tokens.shape == (3, 12)
    logits, cache = model.run_with_cache(tokens, model.pattern_sites)
    call = len(model.pattern_sites) - 1
    pattern = cache[model.pattern_sites[call]].flatten(1, -3)
    weights = [
        [pattern[b, h, 6 + i, i + 1] for b in range(3) for i in range(5)] for h in range(pattern.shape[1])
    ]
    np.testing.assert_allclose(found.score[call], torch.tensor(weights).mean(1), atol=1e-6)
    losses = -logits.detach()[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    expected = losses[:, :5].mean() - losses[:, 6:].mean()
    assert found.gain == pytest.approx(float(expected), abs=1e-5)
    assert found.uniform == pytest.approx(np.mean([1 / (7 + i) for i in range(5)]))


def test_a_head_that_looks_for_what_came_next_scores_one():
    model = small(ONE_OF_EACH["srm"])
    wanted = torch.zeros(12, 12).fill_diagonal_(1)
    for i in range(5):
        wanted[6 + i] = 0
        wanted[6 + i, i + 1] = 1
    site = model.pattern_sites[4]
    model.sites[site].register_forward_hook(lambda _m, _i, out: wanted.to(out).expand_as(out).contiguous())
    found = srmlab.analysis.induction(model, [TEXT])
    assert (found.score[4] == 1).all()
    assert found.score[:4].max() < 0.9
    assert found.ranking[0][0] == 4
    assert site in found.summary()


def test_the_same_text_has_the_same_sequences_whatever_the_batches():
    model = small(ONE_OF_EACH["srm"])
    whole = srmlab.analysis.induction(model, [TEXT])
    parts = srmlab.analysis.induction(model, [TEXT[:1], TEXT[1:]])
    np.testing.assert_allclose(whole.score, parts.score, atol=1e-12)
    np.testing.assert_allclose(whole.standard_error("score"), parts.standard_error("score"), atol=1e-9)
    assert whole.figure() is not None


def test_the_model_reads_the_random_sequences_and_not_the_text():
    model = small(ONE_OF_EACH["srm"])
    passes = []
    with model.hooks([(model.pattern_sites[0], lambda _, hook: passes.append(hook.name))]):
        srmlab.analysis.induction(model, [TEXT])
    assert len(passes) == 1


def test_a_model_of_boards_and_windows_too_short_to_repeat_are_refused():
    with pytest.raises(UserError, match="induction needs a model that reads from left to right"):
        srmlab.analysis.induction(small(ONE_OF_EACH["srm"].replace(causal=False)), [TEXT])
    with pytest.raises(UserError, match="give windows of at least four tokens"):
        srmlab.analysis.induction(small(ONE_OF_EACH["srm"]), [TEXT[:, :3]])
