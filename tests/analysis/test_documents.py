"""Attention within documents: packed into one window, documents are analysed as if each had its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from constructed import SMALL, build

import srmlab
import srmlab.analysis
from srmlab.analysis.capture import capture
from srmlab.analysis.routing import RoutingSums
from srmlab.analysis.survey import available
from srmlab.errors import UserError
from srmlab.models import GPT2, LanguageModel
from srmlab.models.loss import IGNORE

LENGTH = 8  # of a document
DRAW = torch.Generator().manual_seed(5)
APART = torch.randint(0, SMALL.vocab_size, (12, LENGTH), generator=DRAW)  # a document a row
PACKED = APART.view(6, 2 * LENGTH)  # the same, two to a row
DOCUMENTS = torch.arange(2).repeat_interleave(LENGTH).expand_as(PACKED)
TARGETS = torch.cat((APART[:, 1:], torch.full((12, 1), IGNORE)), dim=1).view_as(PACKED)


def packed(documents: bool = True) -> list[tuple[torch.Tensor, ...]]:
    """In two batches; without documents, attention runs over both."""
    return [
        (PACKED[rows], TARGETS[rows], *([DOCUMENTS[rows]] if documents else []))
        for rows in (slice(0, 3), slice(3, 6))
    ]


def apart() -> list[torch.Tensor]:
    return list(APART.split(6))


def differences(a, b) -> dict[str, float]:
    """How far the numbers of two results are apart. Errors are not compared: they are over windows."""
    return {name: float(np.abs(getattr(a, name) - getattr(b, name)).max(initial=0)) for name in a.axes()}


def assert_same(a, b) -> None:
    assert max(differences(a, b).values()) < 1e-5, differences(a, b)


def model_of(architecture: str) -> LanguageModel:
    if architecture == "srm":
        return build(pre_steps=1, post_steps=1, post_input="state+update")
    model = srmlab.build(srmlab.preset(f"{architecture}-nano", vocab_size=97, context=32))
    if isinstance(model, GPT2):
        with torch.no_grad():  # every document begins at the first position
            model.positions.weight[LENGTH : 2 * LENGTH] = model.positions.weight[:LENGTH]
    return model


@pytest.mark.parametrize("architecture", ["srm", "hrm", "gpt2"])
def test_a_survey_of_packed_documents_is_that_of_the_documents_apart(architecture):
    model = model_of(architecture)
    options = {"lens_tokens": None}
    with_mask, expected = (srmlab.analysis.survey(model, text, **options) for text in (packed(), apart()))
    without = srmlab.analysis.survey(model, packed(documents=False), **options)
    assert set(with_mask) == set(available(model))
    for name, result in with_mask.items():
        assert_same(result, expected[name])
        if name != "routing":  # how far a share of tokens moves is a matter of luck
            assert max(differences(without[name], expected[name]).values()) > 1e-4, name


@pytest.mark.parametrize("by", ["mean", "zero", "resample"])
@pytest.mark.parametrize("layers", ["last", "every"])
def test_ablation_runs_on_within_documents(by, layers):
    model = build(post_steps=1)
    with_mask, expected = (
        srmlab.analysis.ablation(model, text, by=by, layers=layers) for text in (packed(), apart())
    )
    assert_same(with_mask, expected)


def test_the_lens_takes_states_through_post_steps_within_documents():
    model = build(post_steps=2, post_input="state+update")
    with_mask, expected = (
        srmlab.analysis.logit_lens(model, text, lens_tokens=None, through_post=True)
        for text in (packed(), apart())
    )
    assert_same(with_mask, expected)


def test_dynamics_follow_documents():
    checkpoints = [(0, build()), (1, build(init_seed=3))]
    with_mask, expected = (srmlab.analysis.dynamics(checkpoints, text) for text in (packed(), apart()))
    assert_same(with_mask, expected)


def test_every_tokens_attribution_is_within_its_document():
    model = build()
    targets = TARGETS.clamp(min=0)
    found = srmlab.analysis.attribute(model, PACKED, targets, DOCUMENTS)
    expected = srmlab.analysis.attribute(model, APART, targets.view_as(APART))
    torch.testing.assert_close(found.view_as(expected), expected)


def test_sums_saved_without_documents_are_not_picked_up_with_them(tmp_path):
    model = build()
    for documents in (False, True):
        (found,) = capture(
            model, packed(documents), RoutingSums(model), checkpoint=tmp_path / "sums", every=1
        )
    (expected,) = capture(model, packed(), RoutingSums(model))
    for name in expected.axes():
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_documents_of_another_shape_are_refused():
    with pytest.raises(UserError, match="documents of shape"):
        srmlab.analysis.routing(build(), [(PACKED, TARGETS, DOCUMENTS[:, 1:])])
