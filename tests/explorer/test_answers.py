"""What the page shows while it waits for an answer, when none comes, and when a prompt is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from explorer_pages import put, settle, state
from explorer_subjects import PROMPT, listening, serving, tiny_model

from srmlab.data import byte_tokenizer
from srmlab.explorer.server import create_app
from srmlab.explorer.session import Session

if TYPE_CHECKING:
    from playwright.sync_api import Route

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


def test_an_answer_about_the_b_chosen_before_comes_too_late(watched):
    page = watched.page
    put(page, ablated=[0])
    held = []
    page.route("**/api/trace", lambda route: held.append(route))
    page.evaluate("() => explorer.store.set({ against: 'prompt:Another text' })")
    page.wait_for_function("() => explorer.isAsking('other')")
    page.evaluate("() => explorer.store.set({ against: 'intervention' })")
    page.wait_for_function("() => explorer.isAsking('intervened')")
    page.evaluate("() => explorer.store.set({ ablated: [] })")  # B is then the prompt as it is
    page.wait_for_function("() => explorer.other === explorer.base")
    for route in held:
        route.continue_()
    settle(page)
    assert page.evaluate("() => explorer.other === explorer.base")


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


def test_a_page_takes_no_answer_of_another_model_that_is_served_at_its_address(watch):
    models = (tiny_model(), tiny_model(init_seed=5))
    first, second = (create_app(Session(model, byte_tokenizer(), prompts=(PROMPT,))) for model in models)
    serves = [first]

    async def address_of_both(scope, receive, send):
        await serves[0](scope, receive, send)

    with listening(address_of_both) as address:
        watched = watch(address)
        page = watched.page
        put(page, ablated=[0])
        assert "bits" in page.locator(NOTE).inner_text()
        serves[0] = second
        put(page, ablated=[3])
        assert page.locator(NOTE).inner_text() == "no answer"
        assert "another model is served here now: reload the page" in page.locator("#status").inner_text()
        serves[0] = first  # the same one again
        put(page, ablated=[6])
        assert "bits" in page.locator(NOTE).inner_text()
        watched.errors.clear()  # the browser's own words about it


def test_when_the_server_is_back_no_word_of_its_absence_stays(watched):
    page = watched.page
    page.locator("#panel-paths").scroll_into_view_if_needed()
    settle(page)
    page.route("**/api/*", lambda route: route.abort())
    put(page, token=3)
    assert "the server has stopped" in page.locator("#status").inner_text()
    assert "The model did not answer." in page.evaluate("() => explorer.panel('paths').svg()")
    page.unroute("**/api/*")
    put(page, ablated=[0])
    assert page.locator("#status").inner_text() == ""
    page.locator("#trace").click()  # the same prompt and token, and another try
    settle(page)
    assert "did not answer" not in page.evaluate("() => explorer.panel('paths').svg()")
    watched.errors.clear()  # the browser's own words about it


def test_a_b_that_is_too_long_is_not_taken_for_the_prompt(watched):
    page = watched.page
    put(page, against=f"prompt:{'too long ' * 200}")
    assert page.locator("#status").inner_text().startswith("B: the prompt has ")
    assert page.locator("#cut").count() == 0  # it would cut the prompt
    put(page, token=5)
    assert page.locator("#status").inner_text().startswith("B: the prompt has ")
    put(page, against="prompt:short")
    assert page.locator("#status").inner_text() == ""
    watched.errors.clear()  # the browser's own words about it


# Generation


def generated(page) -> str:
    page.wait_for_function("() => /tokens in/.test(document.getElementById('status').textContent)")
    settle(page)
    return page.evaluate("() => explorer.trace.manifest.prompt")


def test_generate_continues_the_text_that_was_typed(watched):
    page = watched.page
    page.locator("#prompt").fill("Another text")
    assert "edited" in page.locator("#prompt").get_attribute("class")
    page.locator("#generate").click()
    assert generated(page).startswith("Another text")
    assert "edited" not in page.locator("#prompt").get_attribute("class")


def test_generation_asks_for_all_tokens_at_once_and_traces_once(watched):
    page = watched.page
    before = len(watched.requests)
    page.locator("#generate").click()
    generated(page)
    asked = [url.rsplit("/", 1)[-1] for url in watched.requests[before:]]
    assert (asked.count("generate"), asked.count("trace")) == (1, 1)
    assert page.evaluate("() => explorer.trace.T") == len(PROMPT) + 8


def asked_to_generate(page) -> Route:
    """The question that Generate has asked, held back until it is let go."""
    held: list[Route] = []
    page.route("**/api/generate", lambda route: held.append(route))
    with page.expect_request("**/api/generate"):
        page.locator("#generate").click()
    while not held:
        page.wait_for_timeout(5)
    return held[0]


def test_a_prompt_that_is_traced_meanwhile_is_not_replaced_by_what_is_generated(watched):
    page = watched.page
    asked_to_generate(page)
    page.locator("#prompt").fill("Another text")
    page.locator("#prompt").press("Enter")
    page.wait_for_function("() => explorer.trace.manifest.prompt === 'Another text'")
    settle(page)
    assert page.locator("#prompt").input_value() == "Another text"
    assert page.locator("#status").inner_text().startswith("traced in")
    assert page.locator("#generate").inner_text() == "Generate"


def test_what_is_typed_while_text_is_generated_stays_in_the_line(watched):
    page = watched.page
    question = asked_to_generate(page)
    page.locator("#prompt").fill("My next prompt")
    question.continue_()
    assert generated(page).startswith(PROMPT)
    assert page.locator("#prompt").input_value() == "My next prompt"
    assert "edited" in page.locator("#prompt").get_attribute("class")


def test_another_seed_writes_another_text_in_its_place_and_the_same_one_the_same(watched):
    page = watched.page
    page.locator("#generate").click()
    first = generated(page)
    page.locator("#reroll").click()
    page.wait_for_function("(first) => explorer.trace.manifest.prompt !== first", arg=first)
    second = generated(page)
    assert page.locator("#seed").input_value() == "1"
    assert second.startswith(PROMPT)
    assert page.evaluate("() => explorer.trace.T") == len(PROMPT) + 8
    page.locator("#prompt").fill(PROMPT)
    page.locator("#seed").fill("0")
    page.locator("#generate").click()
    page.wait_for_function("(first) => explorer.trace.manifest.prompt === first", arg=first)


def test_browser_back_undoes_a_prompt_and_an_intervention(watched):
    page = watched.page
    put(page, ablated=[4])
    put(page, stream=3)  # a selection is no step
    page.locator("#prompt").fill("new")
    page.locator("#prompt").press("Enter")
    page.wait_for_function("() => explorer.trace.manifest.prompt === 'new'")
    settle(page)
    page.go_back()
    page.wait_for_function("(prompt) => explorer.trace.manifest.prompt === prompt", arg=PROMPT)
    settle(page)
    assert page.evaluate("() => explorer.store.get('ablated')") == [4]
    assert page.locator("#prompt").input_value() == PROMPT
    page.go_back()
    page.wait_for_function("() => explorer.store.get('ablated').length === 0")
    settle(page)
    page.go_forward()
    page.wait_for_function("() => explorer.store.get('ablated').length === 1")
    settle(page)


def test_going_back_twice_at_once_keeps_the_way_forward(watched):
    page = watched.page
    for code in (0, 3, 6):
        put(page, ablated=[code])
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    for backs in (1, 2):  # the second before the first is answered
        page.evaluate("() => history.back()")
        while sum(url.endswith("/api/trace") for url in asked) < backs:
            page.wait_for_timeout(5)
        page.evaluate("() => explorer.store.touch('hover')")  # the pointer moves over the page
        page.wait_for_timeout(20)
    page.wait_for_function("() => explorer.store.get('ablated')[0] === 0")
    found = [state(page)["ablated"]]
    for code in (3, 6):
        page.go_forward()
        page.wait_for_function("(code) => explorer.store.get('ablated')[0] === code", arg=code, timeout=5000)
        found.append(state(page)["ablated"])
    assert found == [[0], [3], [6]]


# Layout


@pytest.mark.parametrize("width", [1280, 1440, 1920])
def test_cutting_an_edge_moves_nothing_under_the_pointer(watch, nano_address, width):
    page = watch(nano_address, viewport={"width": width, "height": 900}).page
    settle(page)
    places = (
        "() => ['routing', 'wall'].map((name) => explorer.panel(name).element.getBoundingClientRect().top)"
    )
    before = page.evaluate(places)
    put(page, cuts=[[2, 0, 1, 2, None]])
    put(page, token=20)
    assert page.evaluate(places) == before


# Refused prompts


def test_while_a_prompt_is_traced_the_views_of_the_last_one_are_dimmed(watched):
    page = watched.page
    held = []
    page.route("**/api/trace", lambda route: held.append(route))
    page.locator("#prompt").fill("Streams talk.")
    page.locator("#trace").click()
    page.wait_for_selector(".grid.stale")
    held[0].continue_()
    page.wait_for_selector(".grid:not(.stale)")
    settle(page)
    assert page.evaluate("() => explorer.trace.manifest.prompt") == "Streams talk."


def test_after_a_refused_prompt_the_views_are_dimmed_and_the_first_tokens_offered(watched):
    page = watched.page
    page.locator("#prompt").fill("x" * 300)
    page.locator("#trace").click()
    page.wait_for_selector("#cut")
    assert page.locator(".grid.stale").count() == 1
    page.locator("#cut").click()
    page.wait_for_function("() => explorer.trace.T === 256")
    settle(page)
    assert page.locator(".grid.stale").count() == 0
    assert page.locator("#prompt").input_value() == "x" * 256
    assert page.evaluate("() => explorer.store.get('prompt')") == "x" * 256
    watched.errors.clear()  # the browser logs the refused request


# Controls


def test_the_layer_that_was_chosen_last_holds(page):
    first, last = page.get_by_label("First layer"), page.get_by_label("Last layer")
    last.select_option("2")
    first.select_option("4")
    settle(page)
    assert (first.input_value(), last.input_value()) == ("4", "4")
    last.select_option("6")
    settle(page)
    assert (first.input_value(), last.input_value()) == ("4", "6")


def test_a_slider_and_a_check_box_keep_their_own_keys(page):
    page.get_by_label("Threshold").focus()
    page.keyboard.press("ArrowRight")
    settle(page)
    assert page.evaluate("() => explorer.store.get('threshold')") == pytest.approx(0.11)
    assert page.evaluate("() => explorer.store.get('token')") == 12
    page.locator("#panel-flow input[type=checkbox]").focus()
    page.keyboard.press(" ")
    settle(page)
    assert page.evaluate("() => explorer.store.get('flow')") == "all"
    assert page.locator("#panel-stepper .controls button").inner_text() == "▶"
    page.keyboard.press("ArrowRight")
    settle(page)
    assert page.evaluate("() => explorer.store.get('token')") == 13


def test_escape_and_a_click_elsewhere_close_the_export_menu(page):
    menu, button = page.locator("#panel-wall .menu"), page.get_by_label("Export Routing wall")
    put(page, big="wall")
    button.click()
    page.keyboard.press("Escape")
    assert menu.is_hidden()
    assert page.evaluate("() => explorer.store.get('big')") == "wall"
    button.click()
    page.locator("#model").click()
    assert menu.is_hidden()
    button.click()
    assert menu.is_visible()
    button.click()
    assert menu.is_hidden()
    page.keyboard.press("Escape")
    settle(page)
    assert page.evaluate("() => explorer.store.get('big')") == ""


def test_shift_click_selects_tokens_and_no_text(page):
    tokens = page.locator("#panel-tokens .token")
    tokens.nth(2).click()
    tokens.nth(9).click(modifiers=["Shift"])
    settle(page)
    assert page.evaluate("() => explorer.store.get('rangeEnd')") == 9
    assert page.evaluate("() => String(getSelection())") == ""


# What the flow and the wall say


def test_the_python_of_the_flow_counts_the_arcs_of_the_picture(page):
    arcs = page.evaluate("() => explorer.panel('flow').drawn.table().rows.length")
    *lines, last = page.evaluate("() => explorer.panel('flow').drawn.python()").splitlines()
    names: dict = {}
    exec("\n".join(lines), names)
    assert len(eval(last, names)[0]) == arcs


def test_a_flow_without_arcs_names_no_widest_one(page):
    put(page, threshold=0.99)
    svg = page.evaluate("() => explorer.panel('flow').svg()")
    assert "no arcs" in svg
    assert "widest" not in svg


@pytest.mark.parametrize(("streams", "threshold"), [(3, 0.1), (16, 0.05)])
def test_with_many_streams_the_threshold_starts_lower(watch, streams, threshold):
    with serving(Session(tiny_model(streams=streams), byte_tokenizer(), prompts=(PROMPT,))) as address:
        page = watch(address).page
        settle(page)
        assert page.evaluate("() => explorer.store.get('threshold')") == threshold
        caption = page.evaluate("() => explorer.panel('wall').view.caption(explorer.trace)")
        assert f"exceed {threshold:.2f}" in caption
