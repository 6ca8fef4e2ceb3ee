"""Take docs/explorer.png, explorer-features.png and explorer-attention.png: the explorer on the shipped
model, in Debian's chromium.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

DOCS = Path(__file__).parents[1] / "docs"
PLACE = {"stream": 3, "layer": 7, "token": 20}  # whose features are pictured
READY = "() => window.explorer && !explorer.store.frame && explorer.client.running.size === 0"

command = [sys.executable, "-m", "srmlab", "explore", "--pretrained", "--port", "0", "--no-browser"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    try:
        assert server.stdout is not None
        url = re.findall(r"http://\S+", server.stdout.readline())[0]
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1280, "height": 1200}, device_scale_factor=2)
            page.goto(url)
            page.wait_for_function(READY)
            page.wait_for_timeout(2000)
            page.screenshot(path=DOCS / "explorer.png")
            page.evaluate("(place) => explorer.store.set(place)", PLACE)
            panel = page.locator("#panel-features")
            panel.scroll_into_view_if_needed()
            page.wait_for_timeout(2000)
            panel.screenshot(path=DOCS / "explorer-features.png")
            page.evaluate("() => explorer.store.set({ stream: 3, layer: 5, step: 1, token: 40 })")
            panel = page.locator("#panel-attention")
            panel.scroll_into_view_if_needed()
            page.wait_for_timeout(3000)
            panel.screenshot(path=DOCS / "explorer-attention.png")
            browser.close()
    finally:
        server.terminate()
