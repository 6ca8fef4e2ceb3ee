"""The card of a feature: examples, histogram, search, and what a reader notes of it, kept in the run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from explorer_pages import click_region, put, settle, state
from explorer_subjects import PROMPT, tiny_model, write_lexicon

import srmlab.pretrained
from srmlab.data import byte_tokenizer
from srmlab.dictionaries import Lexicon
from srmlab.errors import UserError
from srmlab.explorer.feature_cards import Note, Notes
from srmlab.explorer.opening import open_run
from srmlab.explorer.session import Session


@pytest.fixture(scope="module")
def subject(tmp_path_factory) -> Session:
    model, folder = tiny_model(), tmp_path_factory.mktemp("cards")
    lexicon = Lexicon.load(write_lexicon(model, folder / "dictionary"), model)
    text = torch.tensor([byte_tokenizer().encode(PROMPT)])
    notes = Notes.read(folder / "dictionary.notes.json")
    return Session(model, byte_tokenizer(), lexicon=lexicon, notes=notes, evaluation=[text])


def test_the_histogram_counts_every_token_at_which_a_feature_is_active(subject):
    trace = subject.trace(subject.encode(PROMPT))
    stream = 1
    feature = int(trace["features"][-1, 5, stream, 0])
    found = subject.feature(stream, feature)
    active = trace["features"][:, :, stream] == feature  # at any point of the dictionary
    assert sum(found["histogram"]["counts"]) == active.sum()
    assert found["histogram"]["most"] == pytest.approx(
        trace["feature_activation"][:, :, stream][active].max(), rel=1e-2
    )
    assert all(len(one["strings"]) == len(one["activation"]) for one in found["examples"])
    assert found["frequency"] == subject.lexicon.features.frequency[stream, feature]


def test_notes_are_kept_in_the_run_and_found_by_their_words(subject):
    subject.note_feature(2, 7, Note("talk of streams", pinned=True))
    kept = json.loads(subject.notes.path.read_text())
    assert kept == {"2.7": {"label": "talk of streams", "pinned": True}}
    again = replace(subject, notes=Notes.read(subject.notes.path))
    assert [(one["stream"], one["feature"]) for one in again.features("")] == [(2, 7)]
    assert again.features("STREAMS")[0]["label"] == "talk of streams"
    subject.note_feature(2, 7, Note())
    assert json.loads(subject.notes.path.read_text()) == {}


def test_search_finds_every_feature_that_raises_a_token(subject):
    raised = subject.lexicon.features.raised
    letter = subject.tokenizer.token_strings([int(raised[0, 0, 0])])[0].lower()
    found = {(one["stream"], one["feature"]) for one in subject.features(letter)}
    fired = np.argwhere(subject.lexicon.features.fired > 0).tolist()
    strings = {
        (s, f): [text.lower() for text in subject.tokenizer.token_strings(raised[s, f].tolist())]
        for s, f in fired
    }
    expected = {at for at, texts in strings.items() if any(letter in text for text in texts)}
    assert found <= expected
    assert len(found) == min(40, len(expected))


def test_a_feature_that_is_not_there_and_notes_that_cannot_be_read_are_refused(subject, tmp_path):
    with pytest.raises(UserError, match="3 streams of 24 features"):
        subject.note_feature(0, 99, Note("no"))
    (tmp_path / "notes.json").write_text("[1]")
    with pytest.raises(UserError, match="move it away"):
        Notes.read(tmp_path / "notes.json")
    with pytest.raises(UserError, match="no dictionary"):
        replace(subject, lexicon=None).features("a")


def test_a_click_opens_the_card_and_holding_shows_its_effect_at_once(page):
    put(page, stream=2, layer=4, token=10)
    click_region(page, "features", 0, 0)
    dialog = page.locator("dialog.feature")
    assert dialog.locator(".example").count() == 2
    dialog.locator("button", has_text="clamp at").click()
    settle(page)
    assert len(state(page)["holds"]) == 1
    assert "KL" in dialog.locator(".effect").inner_text()
    dialog.locator("input[type=text]").fill("mine")
    dialog.locator("input[type=text]").press("Tab")
    settle(page)
    dialog.locator("form button").click()
    page.locator("#panel-features input[type=text]").fill("mine")
    page.locator("#panel-features input[type=text]").press("Enter")
    page.locator("#panel-features .chips button", has_text="mine").wait_for()


def test_notes_on_the_shipped_model_are_kept_outside_of_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    session = open_run(srmlab.pretrained.folder())
    assert session.notes.path == Path("srm-nano-every-256-4.notes.json")


def test_all_features_are_a_click_away(page, nano_address):
    link = page.locator("#panel-features a", has_text="all features")
    with page.expect_popup() as opened:
        link.click()
    listed = opened.value
    listed.wait_for_load_state()
    assert listed.url == f"{nano_address}/dictionary"
    assert listed.locator("section").first.inner_text().startswith("S0 · ")
    assert listed.locator("details").count() == 8  # streams
    listed.close()
