"""A first visit: the tour comes once, can be closed, and can be asked for again; the examples are whole."""

from __future__ import annotations

from explorer_pages import settle
from explorer_subjects import PROMPT

from srmlab.data import byte_tokenizer
from srmlab.explorer.opening import EXCERPT, whole_sentences

READY = "() => document.documentElement.dataset.ready === 'yes'"


def test_the_tour_comes_on_the_first_visit_only_and_not_to_who_follows_a_link(browser, nano_address):
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    context.add_init_script("Object.defineProperty(navigator, 'webdriver', { get: () => false })")
    page = context.new_page()
    page.goto(f"{nano_address}/#token=3")
    page.wait_for_function(READY)
    assert not page.locator(".tour").is_visible()
    page.goto("about:blank")
    page.goto(nano_address)
    page.wait_for_function(READY)
    tour = page.locator(".tour")
    assert tour.locator("svg").is_visible()  # the drawing of a layer
    tour.locator("button", has_text="next").click()
    assert page.locator("#panel-tokens.toured").count() == 1
    for _ in range(10):
        if tour.count() == 0:
            break
        tour.locator("button.primary").click()
    assert page.locator(".toured").count() == 0
    page.goto("about:blank")
    page.goto(nano_address)
    page.wait_for_function(READY)
    assert tour.count() == 0
    page.locator("#help").click()
    page.locator("#tour").click()
    tour.locator("button.primary").press("Escape")
    assert tour.count() == 0
    context.close()


def test_on_a_telephone_the_card_leaves_what_it_is_about_in_sight(watch, nano_address):
    page = watch(
        nano_address, viewport={"width": 390, "height": 844}, reduced_motion="reduce", has_touch=True
    ).page
    settle(page)
    page.locator("#help").click()
    page.locator("#tour").click()
    page.locator(".tour .primary").click()
    while page.locator(".tour").count():
        settle(page)
        about, card = page.locator(".toured").bounding_box(), page.locator(".tour").bounding_box()
        seen = min(card["y"], about["y"] + about["height"]) - about["y"]
        assert about["y"] >= -1
        assert seen >= min(about["height"], 240), page.locator(".tour h2").inner_text()
        page.locator(".tour .primary").click()


def test_an_example_is_put_in_the_line_and_traced(page):
    page.locator("#examples").select_option("0")
    settle(page)
    assert page.locator("#prompt").input_value() == PROMPT
    assert page.evaluate("() => explorer.base.manifest.prompt") == PROMPT


def test_examples_are_whole_sentences_and_else_the_beginning():
    text = "and so on. " + "It is a whole sentence of some length. " * 3 + "This one is cut in the mid"
    found = whole_sentences([text, "no sentence at all " * 9], byte_tokenizer())
    assert found[0].startswith("It is a whole")
    assert found[0].endswith("length.")
    assert len(found[1]) == EXCERPT
