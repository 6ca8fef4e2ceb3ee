"""How quick the explorer is in a real browser: redrawing the routing wall of a 32-stream model, and the way
from a click on the ablation board of the shipped model to its new bars. Here the other side of a ratio is
the time allowed.

Needs Debian's chromium.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from timing import Row

CHROMIUM = "/usr/bin/chromium"
READY = "() => window.explorer?.trace && !explorer.store.frame && explorer.client.running.size === 0"
TWO_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
WALL = f"""async (rounds) => {{
  const times = [];
  for (let i = 0; i < rounds; i++) {{
    explorer.store.set({{ threshold: 0.02 + (i % 10) / 100 }});
    await {TWO_FRAMES};
    times.push(explorer.panel("wall").took);
  }}
  return times;
}}"""
CLICK = """async (button) => {
  const before = explorer.outcome, began = performance.now();
  const later = () => new Promise((done) => setTimeout(done));
  document.querySelector(`[data-ablate="${button}"]`).click();
  while (explorer.outcome === before || explorer.store.frame) await later();
  return performance.now() - began;
}"""


def run(rounds: int) -> Iterator[Row]:
    with explorer("--preset", "srm-base") as page:
        page.locator("#panel-wall").scroll_into_view_if_needed()
        yield against(page.evaluate(WALL, 10 * rounds), 30, "redraw the routing wall, srm-base")
    with explorer("--pretrained") as page:
        page.locator("#panel-board").scroll_into_view_if_needed()
        times = [page.evaluate(CLICK, 3 * (i % 8)) for i in range(10 * rounds)]
        yield against(times, 300, "from a click to the ablation's bars, the shipped srm-nano")


def against(times: list[float], allowed: float, name: str) -> Row:
    median = statistics.median(times)
    note = f"median of {len(times)}, slowest {max(times):.0f} ms"
    return Row(
        f"{name} ÷ {allowed:.0f} ms",
        name,
        "allowed",
        (median, allowed),
        median / allowed,
        "≤ 1",
        unit="ms",
        note=note,
    )


@contextmanager
def explorer(*subject: str) -> Iterator:
    """A page of `srmlab explore`, in a browser that nobody sees."""
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "srmlab", "explore", *subject, "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as driver:
        try:
            assert server.stdout is not None
            url = re.findall(r"http://\S+", server.stdout.readline())[0]
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.set_default_timeout(300_000)
            page.goto(url)
            page.wait_for_function(READY)
            yield page
            browser.close()
        finally:
            server.terminate()
