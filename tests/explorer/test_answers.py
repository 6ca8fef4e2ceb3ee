"""What the page shows while it waits for an answer, when none comes, and when a prompt is refused."""

from __future__ import annotations

import pytest
from explorer_pages import put, settle
from explorer_subjects import PROMPT, serving, tiny_model

from srmlab.data import byte_tokenizer
from srmlab.explorer.session import Session

NOTE = "#panel-board .note"


@pytest.fixture
def watched(watch, nano_address):
    found = watch(nano_address)
    settle(found.page)
    return found


def test_while_an_answer_is_awaited_the_board_shows_no_older_number(watched):
    page = watched.page
    put(page, ablated=[0])
    assert "bits" in page.locator(NOTE).inner_text()
    held = []
    page.route("**/api/intervene", lambda route: held.append(route))
    page.evaluate("() => explorer.store.set({ ablated: [3, 6] })")
    page.wait_for_function("() => document.querySelector('#panel-board .note').textContent === '…'")
    assert page.evaluate("() => explorer.outcome") is None
    assert "asking the model" in page.evaluate("() => explorer.panel('board').svg()")
    held[0].continue_()
    settle(page)
    assert "bits" in page.locator(NOTE).inner_text()


def test_when_the_server_has_stopped_the_page_says_so_and_shows_no_number(watch):
    with serving(Session(tiny_model(), byte_tokenizer(), prompts=(PROMPT,))) as address:
        watched = watch(address)
        page = watched.page
        put(page, ablated=[0], against="intervention")
        assert "bits" in page.locator(NOTE).inner_text()
    page.evaluate("() => explorer.store.set({ ablated: [3] })")
    page.wait_for_function("() => document.querySelector('#panel-board .note').textContent === 'no answer'")
    settle(page)
    assert "the server has stopped: run srmlab explore again" in page.locator("#status").inner_text()
    assert "The model did not answer." in page.evaluate("() => explorer.panel('board').svg()")
    assert "B could not be traced." in page.evaluate("() => explorer.panel('compare').svg()")
    watched.errors.clear()  # the browser's own words about it
