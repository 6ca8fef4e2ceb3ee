"""The view of token attention: the weights of one call, asked for when it is in sight."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
import torch
from explorer_pages import click_region, picture, put, settle, state
from explorer_subjects import PROMPT, serving, tiny_model

import srmlab
from srmlab.analysis import AblatedStream, Intervention, induction
from srmlab.data import byte_tokenizer
from srmlab.errors import UserError
from srmlab.explorer.attention import attention_calls, attention_weights
from srmlab.explorer.session import Session
from srmlab.models import Exit

EVALUATION = [torch.arange(48).view(2, 24)]


def table(page) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(page.evaluate("() => explorer.panel('attention').csv()"))))


@pytest.mark.parametrize("preset", ["srm-nano", "hrm-nano", "gpt2-nano", "huginn-nano", "mor-nano"])
def test_every_call_of_every_architecture_belongs_to_a_level_and_its_rows_add_up_to_one(preset):
    model = srmlab.build(srmlab.preset(preset, vocab_size=257)).eval()
    calls = attention_calls(model)
    levels = [call.level for call in calls]
    assert levels == sorted(levels)
    assert set(levels) == set(range(model.depth))
    for call in (0, len(calls) - 1):
        weights = attention_weights(model, [5, 6, 7, 8], call)
        assert weights.shape[0] in (1, len(model.streams))
        assert weights.shape[-2:] == (4, 4)
        assert torch.allclose(weights.sum(-1), torch.ones(weights.shape[:-1]), atol=1e-5)


def test_a_call_that_the_model_does_not_have_is_refused_in_one_line(tiny):
    with pytest.raises(UserError, match="this model has 9"):
        attention_weights(tiny, [1, 2], 9)


def test_it_shows_the_weights_of_the_selected_call_and_token(page, nano):
    put(page, layer=2, step=1, stream=3, token=6)
    picture(page, "attention")
    tokens = page.evaluate("() => explorer.tokens()")
    expected = attention_weights(nano.model, tokens, 7)[3, 0, 6, :7].numpy()
    shown = [float(row["weight"]) for row in table(page) if row["stream"] == "3"]
    assert np.allclose(shown, expected, atol=1e-3)
    assert page.locator("#panel-attention select").input_value() == "7"
    page.locator("#panel-attention select").select_option("13")
    now = state(page)
    assert (now["layer"], now["step"]) == (4, 1)


def test_a_row_selects_its_stream_and_the_map_a_token_by_pointer_and_by_keys(page):
    put(page, layer=1, token=5, stream=0)
    click_region(page, "attention", row=9, column=2)  # the square map comes first
    assert state(page)["token"] == 9
    click_region(page, "attention", row=4, column=2, which=1)
    assert state(page)["stream"] == 4
    page.locator("#panel-attention canvas").focus()
    for key in ("PageDown", "ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    assert state(page)["stream"] == 2
    assert "reads" in page.locator("#panel-attention .spoken").inner_text()


def test_it_shows_baseline_intervention_and_difference(page):
    put(page, layer=3, step=0, stream=2, token=8)
    picture(page, "attention")
    before = np.array([float(row["weight"]) for row in table(page)])
    put(page, ablated=[3], first=1, last=1, version="intervened")
    picture(page, "attention")
    after = np.array([float(row["weight"]) for row in table(page)])
    put(page, version="difference")
    picture(page, "attention")
    assert np.abs(after - before).max() > 1e-3
    assert np.allclose([float(row["weight"]) for row in table(page)], after - before, atol=2e-3)


def test_the_heads_induction_score_stands_beside_it_and_early_exit_beside_generate(watch):
    model = tiny_model()
    session = Session(model, byte_tokenizer(), evaluation=EVALUATION, prompts=(PROMPT,))
    score = induction(model, EVALUATION).score
    with serving(session) as address:
        watched = watch(f"{address}/#layer=1&step=2&stream=1&tokenHead=1&token=4")
        page = watched.page
        picture(page, "attention")
        settle(page)
        asked = [url for url in watched.requests if "/api/attention" in url or "/api/induction" in url]
        assert "/api/attention" in asked[0]  # which does not wait for the scores
        note = page.locator("#panel-attention .note").inner_text()
        assert f"induction {score[5, 3]:.3f}" in note
        page.locator("#exit input").fill("10")
        page.locator("#generate").click()
        page.wait_for_selector("#status:has-text('of 3 layers used')")
        assert "1.0 of 3 layers used" in page.locator("#status").inner_text()
        put(page, ablated=[0], version="intervened")  # whose induction is not measured
        note = page.locator("#panel-attention .note").inner_text()
        assert "attends most to" in note
        assert "induction" not in note


def test_early_exit_and_an_intervention_exclude_each_other(tiny):
    with pytest.raises(UserError, match="choose one"):
        Session(tiny, byte_tokenizer()).generate(
            [1, 2], 2, 0.0, None, 0, Intervention((AblatedStream(0, "mean", 2, 2),)), exit=Exit(0.1)
        )
