"""The intervention bar: what is changed and what it does, and three versions of every view."""

from __future__ import annotations

import numpy as np
from explorer_pages import VIEWS, click_region, picture, put, settle, state

from srmlab.analysis import AblatedStream, Intervention

FOLLOWING = [view for view in VIEWS if view not in ("board", "compare")]
SURPRISAL = "() => Array.from(explorer.trace.data('surprisal')).slice(1)"


def test_the_bar_says_what_is_changed_and_what_it_does_and_clears_it(page):
    assert page.locator(".bar .effect").inner_text() == ""
    put(page, ablated=[6], cuts=[[2, 0, 3, 1, None]])
    chips = [chip.inner_text() for chip in page.locator(".bar .chips button").all()]
    assert chips == ["✕ S2 mean after L7", "✕ L2 H0 S3←S1"]
    effect = page.locator(".bar .effect").inner_text()
    kl, token = page.evaluate("() => [explorer.outcome.kl, explorer.store.get('token')]")
    assert f"KL {kl[token]:.3f} bits after {token} “" in effect
    assert effect.count("“") == 3
    page.locator(".bar .chips button").first.click()
    assert state(page)["ablated"] == []
    page.locator(".bar button", has_text="clear").click()
    assert state(page)["cuts"] == []
    assert page.locator(".bar [data-value=difference]").is_disabled()


def test_every_view_has_three_versions_and_the_keys_switch_them(page, nano):
    put(page, ablated=[3 * 2, 3 * 5], first=1, last=7, stream=2, layer=4, drift="kl")
    looks = {}
    for key, version in (("b", "baseline"), ("i", "intervened"), ("d", "difference")):
        page.keyboard.press(key)
        settle(page)
        assert page.evaluate("() => explorer.grid.dataset.version") == version
        looks[version] = {view: picture(page, view) for view in FOLLOWING}
        looks[version]["numbers"] = page.evaluate(SURPRISAL)
    for view in FOLLOWING:
        if view != "drift":  # a chart of its own canvas, which the animation frame may not have reached
            assert len({looks[version][view] for version in looks}) == 3, view
    ablations = tuple(AblatedStream(stream, "mean", 1, 7) for stream in (2, 5))
    tokens = page.evaluate("() => explorer.tokens()")
    traced = nano.trace(tokens, Intervention(ablations))["surprisal"][1:].astype(float)
    assert np.allclose(looks["intervened"]["numbers"], traced)
    difference = np.subtract(looks["intervened"]["numbers"], looks["baseline"]["numbers"])
    assert np.allclose(looks["difference"]["numbers"], difference, atol=1e-6)
    put(page, ablated=[])
    assert page.evaluate(SURPRISAL) == looks["baseline"]["numbers"]  # without one there is no other version


def test_a_version_that_is_awaited_or_failed_shows_no_number_of_another(watch, nano_address):
    page = watch(nano_address).page
    settle(page)
    shown = "() => getComputedStyle(document.querySelector('#panel-wall .body')).visibility"
    page.evaluate(
        """() => {
          const ask = explorer.client.ask.bind(explorer.client);
          explorer.client.ask = (kind, ...rest) =>
            kind !== "intervened" ? ask(kind, ...rest)
              : new Promise((done, fail) => { window.fail = () => fail(new Error("gone")); });
        }"""
    )
    page.evaluate("() => explorer.store.set({ ablated: [3], version: 'intervened' })")
    page.wait_for_function("() => explorer.grid.dataset.waiting === 'asking the model …'")
    assert page.evaluate(shown) == "hidden"
    page.evaluate("() => window.fail()")
    page.wait_for_function("() => explorer.grid.dataset.waiting === 'The model did not answer.'")
    assert page.evaluate(shown) == "hidden"
    page.evaluate("() => explorer.store.set({ version: 'baseline' })")
    page.wait_for_function("() => !explorer.grid.dataset.waiting")
    assert page.evaluate(shown) == "visible"


def test_a_first_layer_with_a_cut_is_not_called_identical_at_every_token(page):
    put(page, layer=0, cuts=[[0, 0, 3, 1, 5]])
    note = page.locator("#panel-routing .note")
    assert note.inner_text().endswith("identical at every token")
    put(page, version="intervened")
    assert not note.inner_text().endswith("identical at every token")


def test_without_a_key_to_hold_the_bars_switch_lets_a_tap_cut_an_edge(page):
    page.locator(".bar [data-value=change]").click()
    click_region(page, "routing", 3, 1)
    assert [cut[2:4] for cut in state(page)["cuts"]] == [[3, 1]]
    page.locator(".bar [data-value=select]").click()
    click_region(page, "routing", 4, 1)
    assert len(state(page)["cuts"]) == 1


def test_every_panel_says_what_it_shows_and_how_to_read_it(page):
    for view in VIEWS:
        page.locator(f"#panel-{view} .actions button").first.click()
        about = page.locator(f"#about-{view}")
        assert len(about.locator("p").all_inner_texts()) == 2, view
        if view == "routing":
            assert "Alt-click cuts an edge" in about.inner_text()  # there is a model to ask
        page.keyboard.press("Escape")
        assert not about.is_visible()


def test_help_lists_keys_and_terms(page):
    page.keyboard.press("?")
    said = page.locator("dialog.help").inner_text()
    assert "b i d" in said
    assert "connection" in said
    page.keyboard.press("Escape")
