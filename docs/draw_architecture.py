"""Draws architecture-light.svg and architecture-dark.svg, one drawing in two palettes.

    python docs/draw_architecture.py

Three panels, each a closer look at the one before: the model, one layer with its streams as lanes, one block.
In the layer a lane has two tracks: the state z (thick), and the update y (thin), which is added to the state
before every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

WIDTH, HEIGHT = 920, 754


@dataclass(frozen=True)
class Palette:
    ink: str
    muted: str
    line: str
    panel: str
    box: str
    accent: str
    accent_soft: str
    column: str
    streams: tuple[str, str, str, str]


PALETTES = {
    "light": Palette(
        ink="#1f2933",
        muted="#5f6c7b",
        line="#b8c2cc",
        panel="#f6f8fa",
        box="#ffffff",
        accent="#1d63d8",
        accent_soft="#dbe8fd",
        column="#e6eaef",
        streams=("#0f766e", "#b45309", "#7c3aed", "#be185d"),
    ),
    "dark": Palette(
        ink="#e6edf3",
        muted="#9aa7b4",
        line="#4b5663",
        panel="#161c24",
        box="#0d1117",
        accent="#79b0ff",
        accent_soft="#16335f",
        column="#252e39",
        streams=("#2dd4bf", "#f5b942", "#b197fc", "#fb7fa8"),
    ),
}


class Drawing:
    """SVG elements, added in the order in which they cover each other."""

    def __init__(self, palette: Palette) -> None:
        self.palette = palette
        self.elements: list[str] = []

    def add(self, element: str) -> None:
        self.elements.append(element)

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        *,
        fill: str,
        stroke: str,
        r: float = 7,
        width: float = 1.4,
    ) -> None:
        self.add(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{r:g}" '
            f'fill="{fill}" stroke="{stroke}" stroke-width="{width:g}"/>'
        )

    def path(
        self, d: str, stroke: str, width: float = 1.6, *, opacity: float = 1.0, head: float = 0.0
    ) -> None:
        """A line; with `head`, an arrow head of that size at the end of its last, straight segment."""
        extra = f' opacity="{opacity:g}"' if opacity < 1 else ""
        self.add(
            f'<path d="{d}" fill="none" stroke="{stroke}" stroke-width="{width:g}" '
            f'stroke-linejoin="round"{extra}/>'
        )
        if head:
            self.head(d, stroke, head)

    def head(self, d: str, fill: str, size: float) -> None:
        points = [tuple(map(float, word.lstrip("ML").split(","))) for word in d.split()]
        (x0, y0), (x1, y1) = points[-2:]
        length = max(abs(x1 - x0), abs(y1 - y0))
        ux, uy = (x1 - x0) / length, (y1 - y0) / length
        left = f"{x1 - size * ux - size * 0.55 * uy:g},{y1 - size * uy + size * 0.55 * ux:g}"
        right = f"{x1 - size * ux + size * 0.55 * uy:g},{y1 - size * uy - size * 0.55 * ux:g}"
        self.add(f'<path d="M{x1:g},{y1:g} L{left} L{right} Z" fill="{fill}"/>')

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 15,
        fill: str = "",
        anchor: str = "middle",
    ) -> None:
        fill = fill or self.palette.ink
        self.add(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{fill}" '
            f'text-anchor="{anchor}">{words}</text>'
        )

    def plus(self, x: float, y: float, stroke: str, r: float = 8) -> None:
        self.add(
            f'<circle cx="{x:g}" cy="{y:g}" r="{r:g}" fill="{self.palette.box}" '
            f'stroke="{stroke}" stroke-width="1.6"/>'
        )
        self.path(f"M{x - r + 3:g},{y:g} L{x + r - 3:g},{y:g}", stroke)
        self.path(f"M{x:g},{y - r + 3:g} L{x:g},{y + r - 3:g}", stroke)

    def dots(self, x: float, y: float, *, vertical: bool = False) -> None:
        for i in (-1, 0, 1):
            cx, cy = (x, y + 7 * i) if vertical else (x + 7 * i, y)
            self.add(f'<circle cx="{cx:g}" cy="{cy:g}" r="1.9" fill="{self.palette.muted}"/>')

    def heading(self, x: float, y: float, name: str, what: str) -> None:
        self.add(
            f'<text x="{x:g}" y="{y:g}" font-size="15" fill="{self.palette.ink}">'
            f'<tspan class="strong">{name}</tspan>'
            f'<tspan dx="10" fill="{self.palette.muted}">{what}</tspan></text>'
        )

    def zoom(self, x0: float, x1: float, y0: float, left: float, right: float, y1: float) -> None:
        """The light between a thing (x0 … x1 at y0) and its closer look (left … right at y1)."""
        self.add(
            f'<path d="M{x0:g},{y0:g} L{left:g},{y1:g} L{right:g},{y1:g} L{x1:g},{y0:g} Z" '
            f'fill="{self.palette.accent}" opacity="0.08"/>'
        )

    def svg(self) -> str:
        style = (
            "text{font-family:-apple-system,'Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif}"
            ".math{font-family:'STIX Two Text',Cambria,Georgia,'DejaVu Serif',serif;font-style:italic}"
            ".strong{font-weight:600}"
        )
        title = "The Stream Recursion Model"
        what = (
            "Tokens are embedded into S streams x. One shared layer is applied n times from a state z0, with "
            "x re-injected; gradient flows through the last l layers. In a layer the streams of a token "
            "attend to each other, and the update RMSNorm(c + x) is added to the state before each of the "
            "steps A, B, C. Every stream has its own block: attention over tokens beside an MLP, and one "
            "norm after. A linear output function reads all streams."
        )
        size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title what">',
                f'<title id="title">{title}</title>',
                f'<desc id="what">{what}</desc>',
                f"<style>{style}</style>",
                *self.elements,
                "</svg>\n",
            )
        )


def var(name: str, index: str = "") -> str:
    """A variable with an index, for inside a text element."""
    return f'<tspan class="math">{name}</tspan>' + (
        f'<tspan class="math" dy="4" font-size="0.72em">{index}</tspan>' if index else ""
    )


def draw_model(d: Drawing) -> None:
    p = d.palette
    y, h = 92, 40
    d.heading(24, 30, "Model", f"one layer, applied {var('n')} times")

    def block(x: float, w: float, words: str) -> None:
        d.box(x, y - h / 2, w, h, fill=p.box, stroke=p.accent)
        d.text(x + w / 2, y + 5, words, size=14.5)

    # the input function; its gradient comes through the last layers, so it has the colour of the gradient
    d.text(24, y + 5, "tokens", anchor="start")
    d.path(f"M74,{y} L92,{y}", p.accent, head=7)
    block(92, 92, "embedding")
    d.path(f"M184,{y} L202,{y}", p.accent, head=7)
    block(202, 92, "to streams")

    # the layers
    first, step, w = 356, 45, 32
    xs = [first + step * i for i in range(8)]
    bus = y + 50
    d.text(322, y + 5, f"{var('z', '0')}", size=17)
    d.path(f"M334,{y} L{first},{y}", p.muted, head=7)
    d.path(f"M248,{y + h / 2} L248,{bus} L{xs[3] + w / 2},{bus}", p.muted)
    d.path(
        f"M248,{y + h / 2} L248,{bus} L{xs[-1] + w / 2},{bus} L{xs[-1] + w / 2},{y + h / 2}", p.accent, head=7
    )
    d.text(268, bus - 7, var("x"), size=17)
    for i, x in enumerate(xs):
        live = i >= 4
        colour = p.accent if live else p.muted
        if i < 7:
            d.path(f"M{x + w / 2},{bus} L{x + w / 2},{y + h / 2}", colour, head=7)
        if i:
            d.path(f"M{x - step + w},{y} L{x},{y}", p.accent if i > 4 else p.muted, head=6)
        d.box(x, y - h / 2, w, h, fill=p.accent_soft if live else p.panel, stroke=colour)
        d.text(x + w / 2, y + 5, str(i + 1), size=14, fill=p.ink if live else p.muted)
    for start, end, words, colour in (
        (xs[0], xs[3] + w, f"{var('n')} − {var('l')} layers, no gradient", p.muted),
        (xs[4], xs[7] + w, f"last {var('l')} layers, gradient", p.accent),
    ):
        d.path(f"M{start},{y - 30} L{start},{y - 36} L{end},{y - 36} L{end},{y - 30}", colour, 1.3)
        d.text((start + end) / 2, y - 44, words, size=14, fill=colour)

    # the output function
    end = xs[-1] + w
    d.path(f"M{end},{y} L{end + 18},{y}", p.accent, head=7)
    block(end + 18, 106, "from streams")
    d.path(f"M{end + 71},{y + h / 2} L{end + 71},{y + h / 2 + 16}", p.accent, head=7)
    d.box(end + 18, y + h / 2 + 16, 106, 34, fill=p.box, stroke=p.accent)
    d.text(end + 71, y + h / 2 + 38, "unembedding", size=14.5)
    d.path(f"M{end + 124},{y + h / 2 + 33} L{end + 142},{y + h / 2 + 33}", p.accent, head=7)
    d.text(end + 146, y + h / 2 + 38, "logits", anchor="start")


LANES = (304, 362, 420, 506)  # where the state of the streams 1, 2, 3 and S runs
THIN = 24  # the update runs this far below


def draw_layer(d: Drawing) -> None:
    p = d.palette
    top, bottom = 190, 564
    d.box(12, top, WIDTH - 24, bottom - top, fill=p.panel, stroke=p.line, r=12, width=1.2)
    d.heading(32, top + 32, "Layer", "the same weights every time")

    band_left, band_right, add_x = 128, 238, 278
    norm_left, norm_right = 306, 386
    steps = [(446, 500, "A"), (588, 642, "B"), (730, 784, "C")]  # where y is added, where the block stands
    block_w, block_h = 52, 32

    for _, x, letter in steps:
        d.box(x - 46, top + 80, 92, bottom - top - 102, fill=p.column, stroke="none", r=10)
        d.text(x, top + 69, f"step {letter}", size=15)
    d.box(band_left, top + 80, band_right - band_left, bottom - top - 102, fill=p.box, stroke=p.line, r=10)
    d.text((band_left + band_right) / 2, top + 69, "stream-wise attention", size=15)
    d.text((add_x + norm_right) / 2, top + 69, "update", size=15)

    # who reads from whom: any stream from any other
    weights = ((0.9, 0.25, 0.5, 0.2), (0.55, 0.3, 0.2, 0.85), (0.2, 0.9, 0.35, 0.3), (0.35, 0.2, 0.85, 0.5))
    left, right = band_left + 14, band_right - 10
    for target, row in zip(LANES, weights, strict=True):
        for source, weight, colour in zip(LANES, row, p.streams, strict=True):
            y0, y1, middle = source, target + THIN, (left + right) / 2
            d.path(
                f"M{left},{y0} C{middle},{y0} {middle},{y1} {right},{y1}",
                colour,
                0.8 + 2.2 * weight,
                opacity=0.25 + 0.6 * weight,
            )

    for i, (y, colour) in enumerate(zip(LANES, p.streams, strict=True)):
        thin = y + THIN
        d.text(64, y + 5, f"stream {var('S') if i == 3 else i + 1}", size=14.5, fill=colour)
        d.path(f"M98,{y} L{steps[0][0] - 8},{y}", colour, 3.2)  # the state passes by the connection
        d.add(f'<circle cx="{left}" cy="{y}" r="4.2" fill="{colour}"/>')
        d.path(f"M{right},{thin} L{add_x - 8},{thin}", colour, 1.6, head=6)
        d.path(f"M{add_x},{thin + 24} L{add_x},{thin + 8}", p.ink, 1.4, head=6)
        d.text(add_x - 11, thin + 25, var("x"), size=16)
        d.plus(add_x, thin, colour)
        d.path(f"M{add_x + 8},{thin} L{norm_left},{thin}", colour, 1.6, head=6)
        d.box(norm_left, thin - 12, norm_right - norm_left, 24, fill=p.box, stroke=colour, r=12)
        d.text((norm_left + norm_right) / 2, thin + 4.5, "RMSNorm", size=13)
        d.path(f"M{norm_right},{thin} L{steps[-1][0]},{thin}", colour, 1.6)
        for add, x, letter in steps:
            d.path(f"M{add},{thin} L{add},{y + 8}", colour, 1.6, head=6)
            d.plus(add, y, colour)
            d.path(f"M{add + 8},{y} L{x - block_w / 2},{y}", colour, 3.2)
            d.box(x - block_w / 2, y - block_h / 2, block_w, block_h, fill=p.box, stroke=colour, width=2)
            d.text(
                x,
                y + 5.5,
                f'{letter}<tspan dy="4" font-size="0.72em">{"S" if i == 3 else i + 1}</tspan>',
                size=16,
                fill=colour,
            )
        for (_, x, _), (add, _, _) in pairwise(steps):
            d.path(f"M{x + block_w / 2},{y} L{add - 8},{y}", colour, 3.2)
        d.path(f"M{steps[-1][1] + block_w / 2},{y} L872,{y}", colour, 3.2, head=11)

    between = (LANES[2] + THIN + LANES[3]) / 2 + 1
    for x in (64, *(x for _, x, _ in steps)):
        d.dots(x, between, vertical=True)
    label = LANES[0] - 20
    d.text(110, label + 6, var("z"), size=18)
    d.text(band_right + 12, LANES[0] + THIN - 9, var("c"), size=17)
    d.text(norm_right + 16, LANES[0] + THIN - 8, var("y"), size=17)
    d.text(862, label + 6, var("z"), size=18)


def draw_block(d: Drawing) -> None:
    p = d.palette
    top, left, right, bottom = 604, 388, WIDTH - 12, HEIGHT - 8
    d.box(left, top, right - left, bottom - top, fill=p.panel, stroke=p.line, r=12, width=1.2)
    d.heading(left + 20, top + 28, "Block", "of a stream, in a step")
    y = top + 84
    split, join = left + 66, left + 296
    d.text(left + 30, y + 5, var("u"), size=18)
    d.path(f"M{left + 42},{y} L{join - 8},{y}", p.ink, head=7)
    for dy, words in ((-27, "attention over tokens"), (27, "MLP")):
        d.path(
            f"M{split},{y} L{split},{y + dy} L{join},{y + dy} L{join},{y + (8 if dy > 0 else -8)}",
            p.ink,
            head=7,
        )
        d.box(split + 24, y + dy - 15, 172, 30, fill=p.box, stroke=p.ink)
        d.text(split + 110, y + dy + 5, words, size=14.5)
    d.plus(join, y, p.ink)
    d.path(f"M{join + 8},{y} L{join + 32},{y}", p.ink, head=7)
    d.box(join + 32, y - 16, 88, 32, fill=p.box, stroke=p.ink, r=16)
    d.text(join + 76, y + 5, "RMSNorm", size=14.5)
    d.path(f"M{join + 120},{y} L{join + 160},{y}", p.ink, head=7)
    d.text(join + 174, y + 5, var("z"), size=18)


def draw_equations(d: Drawing) -> None:
    p = d.palette
    rows = (
        (f"{var('c')} = connection({var('z')})", "once a layer"),
        (f"{var('y')} = RMSNorm({var('c')} + {var('x')})", "the update"),
        (f"{var('z')} ← step({var('z')} + {var('y')})", "for A, B, C in order"),
    )
    for i, (formula, words) in enumerate(rows):
        y = 652 + 34 * i
        d.text(32, y, formula, size=16, anchor="start")
        d.text(206, y, words, size=14.5, fill=p.muted, anchor="start")


def draw(palette: Palette) -> str:
    d = Drawing(palette)
    d.zoom(581, 613, 112, 24, WIDTH - 24, 190)
    d.zoom(758, 810, LANES[3] + 16, 400, WIDTH - 24, 604)
    draw_model(d)
    draw_layer(d)
    d.zoom(758, 810, LANES[3] + 16, 692, 868, 564)
    draw_block(d)
    draw_equations(d)
    return d.svg()


def main() -> None:
    for theme, palette in PALETTES.items():
        (Path(__file__).parent / f"architecture-{theme}.svg").write_text(draw(palette), encoding="utf-8")


if __name__ == "__main__":
    main()
