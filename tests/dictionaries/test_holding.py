"""Holding a feature at a value moves the state along its direction by what is missing, and nothing else."""

from __future__ import annotations

import pytest
import torch
from counting import text

import srmlab
import srmlab.dictionaries
from srmlab.analysis.readout import Readout
from srmlab.analysis.states import stream_major
from srmlab.dictionaries import hold_features
from srmlab.errors import UserError


@torch.inference_mode()
def codes_at(model, dictionary, tokens, point, hooks=()):
    """The codes [S, B·T, F] at a point, and the states they are of."""
    with model.hooks(hooks):
        _, cache = model.run_with_cache(tokens, names_filter=[point])
    codes = dictionary.encode(cache[point])
    return tuple(stream_major(values).flatten(1, 2) for values in (codes, cache[point]))


def strongest(codes, stream: int) -> int:
    return int(codes[stream].max(0).values.argmax())


def test_a_silenced_feature_leaves_the_logits_without_its_part(small, dictionary):
    tokens = text(0)
    (point,) = dictionary.config.points
    codes, _ = codes_at(small, dictionary, tokens, point)
    feature = strongest(codes, 1)
    with torch.inference_mode():
        before = small(tokens)
        after = small.run_with_hooks(tokens, fwd_hooks=hold_features(dictionary, [(1, feature, 0.0)]))
        part = Readout(small).parts(dictionary.directions)[1, feature] @ small.unembedding.T
        expected = codes[1, :, feature].view(*tokens.shape, 1) * part
    assert codes[1, :, feature].max() > 0
    torch.testing.assert_close(before - after, expected, rtol=1e-4, atol=1e-4)


def test_held_at_a_value_it_is_there_at_every_token_and_other_streams_stay(small, dictionary):
    tokens = text(1)
    (point,) = dictionary.config.points
    _, before = codes_at(small, dictionary, tokens, point)
    codes, after = codes_at(small, dictionary, tokens, point, hold_features(dictionary, [(0, 5, 50.0)]))
    assert (codes[0, :, 5] > 0).all()
    assert (codes[0].argmax(-1) == 5).all()
    assert torch.equal(before[1:], after[1:])


def test_where_a_feature_is_not_in_use_silencing_it_changes_nothing(small, dictionary):
    tokens = text(2)
    (point,) = dictionary.config.points
    codes, before = codes_at(small, dictionary, tokens, point)
    feature = strongest(codes, 0)
    _, after = codes_at(small, dictionary, tokens, point, hold_features(dictionary, [(0, feature, 0.0)]))
    silent = codes[0, :, feature] == 0
    assert silent.any()
    assert not silent.all()
    assert torch.equal(before[0, silent], after[0, silent])
    assert not torch.equal(before[0, ~silent], after[0, ~silent])


def test_generation_goes_on_under_a_held_feature_as_a_full_pass_does(small):
    every = srmlab.dictionaries.learn(small, text, steps=3, features=16, k=2, layers="every")
    hooks = hold_features(every, [(0, 3, 20.0), (2, 1, 20.0)])
    tokens = text(3)[:1, :8]
    with small.hooks(hooks):
        cached = srmlab.generate(small, tokens, max_new_tokens=6, temperature=0)
        again = tokens
        for _ in range(6):
            again = torch.cat((again, small(again)[:, -1].argmax(-1, keepdim=True)), 1)
    assert torch.equal(cached, again)


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ((9, 0, 0.0), "hold stream 9: must be 0 to"),
        ((0, -1, 0.0), "hold feature -1: must be 0 to"),
        ((0, 1.5, 0.0), "hold feature 1.5: must be 0 to"),
        ((0, 1, float("nan")), "hold feature 1 at nan: give a number"),
    ],
)
def test_what_the_dictionary_lacks_is_refused(dictionary, held, words):
    with pytest.raises(UserError, match=words):
        hold_features(dictionary, [held])


def test_nothing_held_is_no_hook(dictionary):
    assert hold_features(dictionary, []) == []
