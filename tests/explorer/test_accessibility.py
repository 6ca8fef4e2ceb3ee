"""Whoever cannot use a mouse, or cannot see the colours, reads the same page.

vendor/axe.min.js is axe-core 4.14.0 (MPL 2.0), used by this test alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from explorer_pages import put, settle, state

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
FINDINGS = """async () => {
  const { violations, passes } = await axe.run(document);
  if (passes.length < 20) return [`only ${passes.length} rules were checked`];
  return violations
    .filter((one) => one.impact === "serious" || one.impact === "critical")
    .map((one) => `${one.id}: ${one.nodes.slice(0, 4).map((node) => node.html.slice(0, 140)).join(" | ")}`);
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(page, theme):
    put(page, theme=theme, ablated=[3], cuts=[[2, 0, 3, 1, None]])
    page.evaluate("(code) => (0, eval)(code)", AXE.read_text())
    assert page.evaluate(FINDINGS) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_of_the_dictionarys_page_have_contrast(browser, nano_address, theme):
    page = browser.new_page(color_scheme=theme, bypass_csp=True)
    page.goto(f"{nano_address}/dictionary")
    page.evaluate("(code) => (0, eval)(code)", AXE.read_text())
    found = page.evaluate("async () => (await axe.run({ runOnly: ['color-contrast'] })).violations")
    assert [node["html"] for one in found for node in one["nodes"]] == []
    assert page.locator("mark").count() > 100
    page.close()


CONTRAST = """async () => {
  const { scale } = await import("./color.js");
  const part = (byte) => (byte / 255 <= 0.04045 ? byte / 255 / 12.92 : ((byte / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  let least = Infinity;
  for (const kind of ["sequential", "diverging"])
    for (let i = 0; i <= 256; i++) {
      const colors = scale(kind, 0, 255);
      const value = i === 256 ? NaN : i;
      const ground = light(colors.css(value).match(/\\d+/g).map(Number));
      const ink = colors.ink(value) === "#fff" ? 1 : 0;
      least = Math.min(least, (Math.max(ground, ink) + 0.05) / (Math.min(ground, ink) + 0.05));
    }
  return least;
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_on_a_colour_of_a_map_have_contrast(page, theme):
    put(page, theme=theme)
    assert page.evaluate(CONTRAST) >= 4.5


def test_a_map_is_read_and_clicked_by_keys(page):
    put(page, layer=3, token=5)
    map = page.locator("#panel-routing canvas.picture")
    map.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    settle(page)
    assert page.locator("#panel-routing .spoken").inner_text().startswith("S2 ← S1")
    assert state(page)["token"] == 5  # the arrows are the map's
    page.keyboard.press("Enter")
    assert (state(page)["stream"], state(page)["source"]) == (2, 1)
    page.keyboard.press("Alt+Enter")
    assert [cut[2:4] for cut in state(page)["cuts"]] == [[2, 1]]


def test_tokens_are_reached_and_named_for_who_cannot_see_them(page):
    strip = page.locator("#panel-tokens .strip")
    strip.focus()
    page.keyboard.press("ArrowRight")
    token = state(page)["token"]
    assert strip.get_attribute("aria-activedescendant") == f"token-{token}"
    named = page.locator(f"#token-{token}").get_attribute("aria-label")
    assert named.startswith(f"token {token}, ")
    assert named.endswith(" bits")


def test_at_the_width_of_a_telephone_nothing_is_cut_off(page):
    page.set_viewport_size({"width": 390, "height": 844})
    settle(page)
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
    wide = "() => explorer.panels.filter((panel) => panel.size && panel.size[0] > 370).length"
    assert page.evaluate(wide) == 0
    page.set_viewport_size({"width": 1280, "height": 900})
    settle(page)
