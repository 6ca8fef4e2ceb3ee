"""Driving the page: what a panel looks like, waiting until it is at rest, clicking a cell of a heat map."""

from __future__ import annotations

VIEWS = [
    "tokens",
    "wall",
    "flow",
    "lens",
    "routing",
    "board",
    "ranked",
    "attention",
    "paths",
    "stepper",
    "features",
    "compare",
    "align",
    "card",
    "drift",
]

# The picture of a panel: canvases by their pixels, the rest by its text and SVG.
PICTURE = """(id) => {
  const panel = document.getElementById(`panel-${id}`);
  const visible = [...panel.querySelectorAll(".body canvas")].filter((c) => c.offsetParent !== null);
  const look = (t) => t.style.background + t.getAttribute("aria-selected") + t.textContent;
  const tokens = [...panel.querySelectorAll(".token")].map(look).join();
  return visible.map((c) => c.toDataURL()).join() + tokens + (panel.querySelector(".flow")?.innerHTML ?? "");
}"""
COLORS = """(id) => {
  const panel = document.getElementById(`panel-${id}`);
  const found = new Set();
  for (const canvas of panel.querySelectorAll(".body canvas")) {
    if (canvas.offsetParent === null) continue;
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const color = (i) => (data[i] << 16) | (data[i + 1] << 8) | data[i + 2];
    for (let i = 0; i < data.length; i += 4) if (data[i + 3]) found.add(color(i));
  }
  return found.size;
}"""
# The words of a picture that are outside of it or lie over one another; tilted ones may touch.
CROWDED = """(name) => {
  const panel = explorer.panel(name), [width] = panel.exportSize(), host = document.createElement("div");
  host.innerHTML = panel.svg();
  document.body.append(host);
  const { left } = host.firstElementChild.getBoundingClientRect();
  const words = [...host.querySelectorAll("text")].filter((text) => text.textContent.trim()).map((text) => {
    const box = text.getBoundingClientRect();
    const isTilted = text.hasAttribute("transform");
    const [l, r, t, b] = [box.left - left, box.right - left, box.top, box.bottom];
    return { text: text.textContent, isTilted, l, r, t, b };
  });
  host.remove();
  const upright = words.filter(({ isTilted }) => !isTilted);
  const across = (a, b) => Math.min(a.r, b.r) - Math.max(a.l, b.l);
  const down = (a, b) => Math.min(a.b, b.b) - Math.max(a.t, b.t);
  return [
    ...upright.filter(({ l, r }) => l < -1 || r > width + 1).map(({ text }) => text),
    ...upright.flatMap((a, i) => upright.slice(i + 1).filter((b) => across(a, b) > 3 && down(a, b) > 5)
      .map((b) => `${a.text} over ${b.text}`)),
  ];
}"""
# Resolves when the page has not scrolled for ten frames: a key scrolls it smoothly, which takes a while.
AT_REST = """() => new Promise((done) => {
  let last = scrollY, still = 0;
  const look = () => {
    still = scrollY === last ? still + 1 : 0;
    last = scrollY;
    if (still < 10) requestAnimationFrame(look); else done();
  };
  requestAnimationFrame(look);
})"""
# Resolves when nothing is asked and nothing is about to be drawn, and it was so for two frames. One question
# to the browser: three were a tenth of a second, most of it spent waiting for frames.
SETTLED = """() => new Promise((done, fail) => {
  const end = performance.now() + 30_000;
  let frames = 0;
  const look = () => {
    if (explorer.store.frame || explorer.client.running.size > 0) frames = 0;
    else if (++frames > 2) return done();
    if (performance.now() > end) return fail(new Error("after 30 seconds the page is not at rest"));
    requestAnimationFrame(look);
  };
  look();
})"""


def settle(page) -> None:
    """Wait until nothing is asked, nothing is about to be drawn, and two frames have passed."""
    page.evaluate(SETTLED)


def picture(page, view: str) -> str:
    page.locator(f"#panel-{view}").scroll_into_view_if_needed()
    settle(page)
    return page.evaluate(PICTURE, view)


def state(page) -> dict:
    settle(page)
    return page.evaluate("() => explorer.store.state")


def put(page, **changes) -> None:
    page.evaluate("(changes) => explorer.store.set(changes)", changes)
    settle(page)


def point_at(page, view: str) -> None:
    """The pointer onto a panel's picture, once nothing moves under it any more."""
    page.evaluate(AT_REST)
    page.locator(f"#panel-{view} canvas").hover()
    page.wait_for_selector(f"#panel-{view}:hover")


def click_region(page, view: str, row: int, column: int, which: int = 0, **options) -> None:
    """Click the cell of a heat map, by the regions the panel's pen has remembered."""
    page.locator(f"#panel-{view}").scroll_into_view_if_needed()
    settle(page)
    x, y = page.evaluate(
        """([view, row, column, which]) => {
          const panel = explorer.panel(view), r = panel.pen.regions[which];
          return [r.x + ((column + 0.5) / r.columns) * r.w, r.y + ((row + 0.5) / r.rows) * r.h];
        }""",
        [view, row, column, which],
    )
    page.locator(f"#panel-{view} canvas.picture").click(position={"x": x, "y": y}, **options)
    settle(page)
