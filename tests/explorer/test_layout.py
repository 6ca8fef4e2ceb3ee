"""Where the panels stand: in the order of a reader's questions on every screen, with room for their words."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from explorer_pages import CROWDED, VIEWS, picture, put, settle
from explorer_subjects import PROMPT, serving, tiny_model

from srmlab.data import byte_tokenizer
from srmlab.explorer.opening import open_preset
from srmlab.explorer.session import Session

PLACES = """() => Object.fromEntries(explorer.panels.map(({ view, element }) => {
  const { left, top, right } = element.getBoundingClientRect();
  return [view.name, { left, top, right }];
}))"""
# From the prompt to the prediction, to who reads whom, to the edges that led there.
ORDER = ["tokens", "lens", "board", "wall", "routing", "flow", "ranked", "paths", "stepper", "attention"]


def test_a_telephone_has_the_panels_one_below_the_other_in_their_order(watch, nano_address):
    page = watch(nano_address, viewport={"width": 390, "height": 844}).page
    settle(page)
    places = page.evaluate(PLACES)
    tops = [places[name]["top"] for name in ORDER]
    assert tops == sorted(tops)
    assert len(set(tops)) == len(tops)


def test_prediction_and_lens_are_the_first_below_the_prompt(watch, nano_address):
    page = watch(nano_address, viewport={"width": 1440, "height": 900}).page
    settle(page)
    places = page.evaluate(PLACES)
    assert places["tokens"]["top"] < places["lens"]["top"] == places["board"]["top"] < 900
    below = [top["top"] for name, top in places.items() if name not in ("tokens", "lens", "board")]
    assert min(below) > places["lens"]["top"]


def test_a_large_screen_has_the_wide_panels_in_pairs_and_none_alone_beside_a_hole(
    watch, nano_address, address
):
    page = watch(nano_address, viewport={"width": 2400, "height": 1200}).page
    settle(page)
    places = page.evaluate(PLACES)
    for one, other in (("paths", "stepper"), ("attention", "features")):
        assert places[one]["top"] == places[other]["top"]
        assert places[one]["right"] < places[other]["left"]
    put(page, ablated=[0], against="intervention")  # now there are more controls than fit into a line
    corner = """() => {
      const [head, actions] = ["header", ".actions"].map((one) =>
        explorer.panel("compare").element.querySelector(one).getBoundingClientRect());
      return [head.height, actions.top - head.top, head.right - actions.right];
    }"""
    height, down, across = page.evaluate(corner)
    assert height > 45
    assert max(down, across) < 10  # the buttons stay in the first line
    odd = watch(address, viewport={"width": 2400, "height": 1200}).page  # without features: three
    settle(odd)
    last = odd.evaluate(PLACES)["attention"]
    assert last["right"] - last["left"] > 2000


def test_where_little_can_be_shown_compare_and_drift_have_the_whole_width(watch):
    with serving(open_preset("gpt2-nano")) as url:
        page = watch(url, viewport={"width": 1440, "height": 900}).page
        settle(page)
        places = page.evaluate(PLACES)
        for name in ("compare", "drift"):
            assert places[name]["right"] - places[name]["left"] > 1350
        assert places["drift"]["top"] - places["compare"]["top"] < 130  # what it offers, and no hole


@pytest.mark.parametrize("width", [390, 1280])
def test_the_names_of_many_layers_do_not_overlap(watch, width):
    model = tiny_model(depth=32)
    with serving(Session(model, byte_tokenizer(), prompts=(PROMPT,))) as address:
        page = watch(f"{address}/#layer=31", viewport={"width": width, "height": 900}).page
        for view in ("flow", "paths", "stepper"):
            page.locator(f"#panel-{view}").scroll_into_view_if_needed()
            settle(page)
            svg = page.evaluate("(view) => explorer.panel(view).svg()", view)
            places = [float(x) for x in re.findall(r'<text x="([\d.]+)"[^>]*>L\d+</text>', svg)]
            assert len(places) >= 8
            assert min(b - a for a, b in pairwise(places)) >= 20, view
            assert ">L31</text>" in svg


def test_the_numbers_of_many_streams_are_whole_on_every_screen(watch):
    with serving(Session(tiny_model(streams=32), byte_tokenizer(), prompts=(PROMPT,))) as address:
        page = watch(address).page
        settle(page)
        cut = """() => [...document.querySelectorAll(".board button")].filter((button) => {
          const range = document.createRange();
          range.selectNodeContents(button);
          return range.getBoundingClientRect().width > button.clientWidth;
        }).map((button) => button.textContent)"""
        for width in (390, 1024, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            settle(page)
            assert page.evaluate(cut) == [], width


def test_on_a_small_screen_the_words_of_a_heading_are_whole(page):
    page.set_viewport_size({"width": 1024, "height": 900})
    settle(page)
    cut = """() => [...document.querySelectorAll(".note, .charts h3")].filter((words) => {
      const { right } = words.closest(".panel").getBoundingClientRect();
      return words.scrollWidth > words.clientWidth || words.getBoundingClientRect().right > right - 4;
    }).map((words) => words.textContent)"""
    found = page.evaluate(cut)
    page.set_viewport_size({"width": 1280, "height": 900})
    assert found == []


def test_on_a_small_screen_the_first_change_and_the_scales_of_compare_are_whole(page):
    page.set_viewport_size({"width": 1024, "height": 900})
    put(page, ablated=[15], first=0, last=7, against="intervention", layer=3, head=1)
    page.wait_for_function("() => explorer.other !== null")
    picture(page, "compare")
    crowded = page.evaluate(CROWDED, "compare")
    note = page.locator("#panel-compare .note").inner_text()
    right = "(one) => one.getBoundingClientRect().right"
    ends = [page.locator(one).evaluate(right) for one in (".bar .ablated button", ".bar .chips")]
    page.set_viewport_size({"width": 1280, "height": 900})
    assert crowded == []
    assert note == "L3 H1"
    assert ends[0] <= ends[1]


@pytest.mark.parametrize("width", [390, 1024, 1280])
def test_no_words_of_a_picture_are_cut_off_or_lie_over_others(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    drawn = [view for view in VIEWS if view not in ("tokens", "compare")]
    crowded = {}
    for look in ({}, {"ablated": [0], "first": 0, "last": 3, "version": "difference", "align": "update"}):
        put(page, **look)
        for view in drawn:
            picture(page, view)
            if found := page.evaluate(CROWDED, view):
                crowded[view, str(look)] = found
    put(page, rank="layers", version="baseline")  # before its sweep: a sentence
    picture(page, "ranked")
    crowded["ranked", "layers"] = page.evaluate(CROWDED, "ranked")
    page.set_viewport_size({"width": 1280, "height": 900})
    assert not {where: words for where, words in crowded.items() if words}


def test_what_is_said_instead_of_a_view_stands_in_its_place(watch, nano_address):
    page = watch(nano_address).page
    settle(page)
    page.evaluate("() => explorer.wait('The model did not answer.')")
    said = """(name) => {
      const style = getComputedStyle(explorer.panel(name).element, "::after");
      return [style.content, parseFloat(style.top)];
    }"""
    for name in ("wall", "lens"):
        content, top = page.evaluate(said, name)
        assert "did not answer" in content
        assert top > 60  # below the heading
    assert page.evaluate(said, "board")[0] == "none"  # it shows both versions


def test_the_names_of_charts_have_room_in_a_model_of_one_stream(watch):
    with serving(open_preset("gpt2-nano")) as url:
        page = watch(url, viewport={"width": 390, "height": 900}).page
        picture(page, "drift")
        assert not page.evaluate(CROWDED, "drift")


def test_the_routing_wall_uses_the_height_it_is_given_and_its_last_frame_is_whole(watch):
    edges = """() => {
      const { pen, size } = explorer.panel("wall");
      return [pen.width - Math.max(...pen.regions.map(({ x, w }) => x + w)),
        Math.max(...pen.regions.map(({ y, h }) => y + h)) / size[1]];
    }"""
    with serving(Session(tiny_model(depth=32), byte_tokenizer(), prompts=(PROMPT,))) as url:
        page = watch(url, viewport={"width": 390, "height": 900}).page
        for width in range(384, 396):  # in some the maps end where the picture does
            page.set_viewport_size({"width": width, "height": 900})
            picture(page, "wall")
            assert page.evaluate(edges)[0] >= 1, width
        page.set_viewport_size({"width": 1440, "height": 900})
        put(page, big="wall")
        assert page.evaluate(edges)[1] > 0.85


def test_a_drift_of_one_transition_is_a_dot(watch):
    with serving(Session(tiny_model(depth=2), byte_tokenizer())) as url:
        page = watch(url).page
        before = picture(page, "drift")
        put(page, stream=1)
        assert picture(page, "drift") != before  # another one stands out
        said = page.evaluate("() => explorer.panel('drift').view.caption(explorer.trace)")
        assert "from the first layer to the second" in said
