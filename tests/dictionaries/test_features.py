from __future__ import annotations

import numpy as np
import pytest
import torch

import srmlab
import srmlab.analysis
import srmlab.dictionaries
from srmlab.dictionaries.features import AFTER, BEFORE
from srmlab.errors import UserError


def codes_of(small, dictionary, tokens):
    """[S, sequence, token, F] by the slow way."""
    _, cache = small.run_with_cache(tokens, "layers.2.out")
    with torch.no_grad():
        return dictionary.encode(cache["layers.2.out"]).permute(2, 0, 1, 3)


def test_examples_are_the_strongest_places_one_of_a_sequence(small, dictionary, unseen):
    found = srmlab.dictionaries.features(small, dictionary, unseen, examples=3)
    tokens = torch.cat(unseen)
    codes = codes_of(small, dictionary, tokens)
    expected = codes.amax(2).topk(3, dim=1).values.permute(0, 2, 1)  # [S, F, 3]
    np.testing.assert_allclose(found.strength, expected.numpy(), atol=1e-5)
    np.testing.assert_array_equal(found.fired, (codes > 0).sum((1, 2)).numpy())


def test_the_context_is_the_text_around_the_peak(small, dictionary, unseen):
    found = srmlab.dictionaries.features(small, dictionary, unseen, examples=2)
    tokens = torch.cat(unseen)
    codes = codes_of(small, dictionary, tokens)
    for s, f in ((0, 5), (1, 9), (3, 60)):
        if not found.fired[s, f]:
            continue
        sequence = int(codes[s, :, :, f].amax(1).argmax())
        peak = int(codes[s, sequence, :, f].argmax())
        for i, place in enumerate(range(peak - BEFORE, peak + AFTER + 1)):
            inside = 0 <= place < tokens.shape[1]
            assert found.context[s, f, 0, i] == (tokens[sequence, place] if inside else -1)
            expected = codes[s, sequence, place, f] if inside else 0
            assert found.activation[s, f, 0, i] == pytest.approx(float(expected), abs=1e-5)
        assert found.activation[s, f, 0].argmax() == BEFORE


def test_what_a_feature_raises_is_what_adding_it_to_the_state_raises(small, dictionary, unseen):
    """The output function is linear: a step along a direction moves the logits by what is told."""
    found = srmlab.dictionaries.features(small, dictionary, unseen)
    s, f = 2, 11

    def push(value, _hook):
        value = value.clone()
        value[:, :, s] += dictionary.directions[s, f].detach()
        return value

    tokens = unseen[0]
    with torch.no_grad():
        moved = small.run_with_hooks(tokens, fwd_hooks=[("layers.2.out", push)]) - small(tokens)
    moved = (moved - moved.mean(-1, keepdim=True))[0, 0]
    np.testing.assert_allclose(found.raised_by[s, f], moved[found.raised[s, f]].numpy(), atol=1e-4)
    seen = torch.cat(unseen).unique()  # only tokens of the text are named
    assert seen[moved[seen].argmax()] == found.raised[s, f, 0]
    assert seen[moved[seen].argmin()] == found.lowered[s, f, 0]
    assert moved[seen].min().item() == pytest.approx(found.lowered_by[s, f, 0], abs=1e-4)


def test_features_do_not_depend_on_the_batch_size(small, dictionary, unseen):
    one = srmlab.dictionaries.features(small, dictionary, unseen)
    other = srmlab.dictionaries.features(small, dictionary, [torch.cat(unseen)])
    np.testing.assert_allclose(one.strength, other.strength, atol=1e-5)
    np.testing.assert_array_equal(one.fired, other.fired)
    assert one.evidence == other.evidence


def test_features_are_saved_and_told_and_shown_on_a_page(small, dictionary, unseen, tmp_path):
    found = srmlab.dictionaries.features(small, dictionary, unseen)
    again = srmlab.analysis.load(found.save(tmp_path / "features"))
    np.testing.assert_array_equal(again.context, found.context)
    told = found.summary(lambda token: f" w{token}")
    first = found.ranking(0)[0]
    assert f"S0 feature {first}" in told
    assert f"[ w{int(found.context[0, first, 0, BEFORE])}]" in told
    page = srmlab.dictionaries.write_page(found, tmp_path / "page.html", lambda token: f"<{token}>", "a & b")
    content = page.read_text()
    assert "a &amp; b" in content
    assert "&lt;" in content
    assert "<script" not in content
    assert "http" not in content
    assert content.count("<section") == sum(min(64, len(found.ranking(s))) for s in range(4))


def test_what_cannot_be_read_is_refused(small, dictionary):
    with pytest.raises(UserError, match="no batches"):
        srmlab.dictionaries.features(small, dictionary, [])
    with pytest.raises(UserError, match="examples = 0"):
        srmlab.dictionaries.features(small, dictionary, [torch.zeros(1, 4, dtype=torch.long)], examples=0)
