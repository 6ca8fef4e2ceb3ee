"""Take docs/explorer.png, explorer-features.png, explorer-attention.png, switch-card.png and
explorer-board.png: the explorer on the shipped models, in Debian's chromium.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

WIDTH = 1280
DOCS = Path(__file__).parents[1] / "docs"
# The front picture: what becomes of "favor|able" when S5 is ablated after every layer.
FRONT = {"token": 31, "stream": 5, "source": 0, "layer": 3, "ablated": [15], "first": 0, "last": 7}
FEATURES = {"stream": 3, "layer": 7, "token": 20, "ablated": []}
BOARD = {"layer": 1, "token": 8}  # of the hardest board a wrong cell, in its first segment
ATTENTION = {"stream": 3, "layer": 5, "step": 1, "token": 40, "ablated": []}
SWITCH = {
    "layer": 1,
    "head": 1,
    "stream": 3,
    "source": 5,
    "ablated": [],
}  # features do not beat the token
READY = "() => window.explorer && !explorer.store.frame && explorer.client.running.size === 0"


def settle(page: Page) -> None:
    for _ in range(3):  # an answer may lead to another question
        page.wait_for_timeout(700)
        page.wait_for_function(READY)


def show(page: Page, state: dict[str, Any]) -> None:
    page.evaluate("(state) => explorer.store.set(state)", state)
    settle(page)


def save(png: bytes, name: str) -> None:
    """With a palette, at half the size or less; the front picture has too many colours for one."""
    picture = Image.open(BytesIO(png)).convert("RGB")
    if name != "explorer":
        picture = picture.quantize(256, dither=Image.Dither.NONE)
    picture.save(DOCS / f"{name}.png", optimize=True)


def shoot(page: Page, url: str) -> None:
    page.goto(url)
    settle(page)
    show(page, FRONT)
    panel = page.locator("#panel-flow").bounding_box()  # the last whole one
    assert panel is not None
    bottom = panel["y"] + panel["height"] + 12
    save(page.screenshot(clip={"x": 0, "y": 0, "width": WIDTH, "height": bottom}), "explorer")
    page.evaluate(
        "() => { document.querySelector('.sticky').style.position = 'static'; }"
    )  # not over a panel
    for name, state in (("features", FEATURES), ("attention", ATTENTION)):
        panel = page.locator(f"#panel-{name}")
        show(page, state)
        panel.scroll_into_view_if_needed()
        settle(page)
        save(panel.screenshot(), f"explorer-{name}")


def shoot_card(page: Page) -> None:
    show(page, SWITCH)
    page.locator(".switch-line button").first.click()
    card = page.locator("dialog.switch")
    card.wait_for()
    save(card.screenshot(), "switch-card")


def shoot_board(page: Page, url: str) -> None:
    page.set_viewport_size({"width": 1440, "height": 1600})  # with room for all three parts side by side
    page.goto(url)
    settle(page)
    show(page, BOARD)
    save(page.locator("#panel-puzzle").screenshot(), "explorer-board")


@contextmanager
def exploring(*which: str) -> Iterator[str]:
    command = [sys.executable, "-m", "srmlab", "explore", *which, "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield re.findall(r"http://\S+", server.stdout.readline())[0]
        finally:
            server.terminate()


with sync_playwright() as driver:
    browser = driver.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": WIDTH, "height": 1600}, device_scale_factor=1.5)
    page.set_default_timeout(120_000)
    with exploring("--pretrained") as address:
        shoot(page, address)
        shoot_card(page)
    with exploring("--pretrained", "sudoku") as address:
        shoot_board(page, address)
    browser.close()
