"""The look of every figure: sizes of a printed column and fonts that embed.

Figures are made without pyplot, so drawing opens no windows and keeps no global list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Literal, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter, StrMethodFormatter
from PIL import Image  # comes with matplotlib

from srmlab.analysis.result import Result
from srmlab.figures.palette import GREY, SHARE, SHARE_MAP, SIGNED, SIGNED_MAP

COLUMN = 3.35  # inches: one column of a two-column paper
PAGE = 6.9  # inches: both columns
FORMATS = ("png", "svg", "pdf")

STYLE: dict[str, Any] = {
    "pdf.fonttype": 42,  # TrueType: text stays text, and journals accept it
    "ps.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "srm",  # the same figure gives the same file
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same everywhere
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "grid.linewidth": 0.4,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "figure.dpi": 150,
    "savefig.dpi": 300,
    "image.interpolation": "nearest",
}

for _name, _stops in ((SHARE_MAP, SHARE), (SIGNED_MAP, SIGNED)):
    mpl.colormaps.register(LinearSegmentedColormap.from_list(_name, _stops), name=_name, force=True)

Draw = TypeVar("Draw", bound=Callable[..., Figure])
FIGURES: dict[str, dict[str, Callable[..., Figure]]] = {}  # kind of result → its figures by name


def styled(draw: Draw) -> Draw:
    """A drawing function under the shared style, whatever the user's matplotlib settings are."""

    @wraps(draw)
    def drawn(*arguments: Any, **options: Any) -> Figure:
        with shared_style():
            return draw(*arguments, **options)

    return drawn  # pyright: ignore[reportReturnType]


@contextmanager
def shared_style() -> Iterator[None]:
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)  # pyright: ignore[reportCallIssue, reportArgumentType]
        yield


def figure_of(*kinds: str, name: str = "") -> Callable[[Draw], Draw]:
    """A styled drawing function of these kinds of result, called `name` or like the kind. The first of a kind
    is its main figure."""

    def register(draw: Draw) -> Draw:
        drawn = styled(draw)
        for kind in kinds:
            FIGURES.setdefault(kind, {})[name or kind] = drawn
        return drawn

    return register


def new_figure(
    width: float, height: float, layout: Literal["constrained", "compressed"] = "constrained"
) -> Figure:
    """An empty figure in inches; "compressed" for grids of square maps."""
    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def one_panel(
    width: float, height: float, layout: Literal["constrained", "compressed"] = "constrained"
) -> tuple[Figure, Axes]:
    """An empty figure of one panel, and the panel."""
    figure = new_figure(width, height, layout)
    return figure, figure.subplots()


def save(
    figure: Figure, stem: str | Path, formats: Iterable[str] = FORMATS, *, palette: bool = False
) -> list[Path]:
    """Write STEM.png, STEM.svg, STEM.pdf; without dates, so that the same figure gives the same bytes.

    With `palette` the PNG has 256 colours and a third of the size: for lines and dots, not for maps.
    """
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    undated = {
        "png": {"Software": None},
        "svg": {"Date": None},
        "pdf": {"CreationDate": None, "Creator": None},
    }
    with shared_style():
        if figure.get_layout_engine() is not None:  # lay out once, not once a format
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
        for kind in formats:
            path = stem.with_name(f"{stem.name}.{kind}")
            figure.savefig(path, metadata=undated.get(kind))
            if kind == "png" and palette:
                _reduce_colours(path)
            written.append(path)
    return written


def _reduce_colours(path: Path) -> None:
    with Image.open(path) as image:
        reduced, dpi = image.convert("RGB").quantize(256, dither=Image.Dither.NONE), image.info["dpi"]
    reduced.save(path, optimize=True, dpi=dpi)


def footnote(figure: Figure, text: str) -> None:
    """A line of small print under the figure, in a strip of its own."""
    strip = 0.16 / figure.get_figheight()
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(rect=(0, strip, 1, 1 - strip))  # pyright: ignore[reportCallIssue]
    figure.text(0.004, 0.1 * strip, text, va="bottom", fontsize=6.5, color="#555555")


def sparse_ticks(count: int, at_most: int = 8) -> list[int]:
    """Every tick, or every 2nd, 4th, 5th, 10th … so that at most so many remain."""
    for stride in (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100):
        if (count + stride - 1) // stride <= at_most:
            return list(range(0, count, stride))
    return [0, count - 1]


def framed(axes: Axes) -> None:
    """A thin frame, as maps have it."""
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_linewidth(0.4)


def bare(axes: Axes) -> None:
    """A map's panel: a thin frame, no ticks."""
    framed(axes)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(GREY)


def color_bar(figure: Figure, image: AxesImage, axes: Any, label: str, **options: Any) -> Colorbar:
    """What the colours of a map, or of several alike, mean."""
    bar = figure.colorbar(image, ax=axes, label=label, **options)
    bar.outline.set_linewidth(0.4)  # pyright: ignore[reportCallIssue]
    return bar


def grid_behind(axes: Axes, axis: Literal["x", "y", "both"] = "y") -> None:
    axes.grid(axis=axis)
    axes.set_axisbelow(True)


def over_steps(axes: Axes) -> None:
    """Of training losses: steps on a log axis, written out."""
    axes.set(xscale="log", xlabel="step", ylabel="training loss (nats)")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    if axes.get_xlim()[1] < 2000:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    grid_behind(axes, "both")


def curve(
    axes: Axes, x: Any, result: Result, name: str, color: str, at: Any = ..., scale: float = 1.0, **line: Any
) -> None:
    """A number of a result as a line, with its standard error on either side where that is known."""
    values, errors = _with_errors(result, name, at, scale)
    axes.fill_between(x, values - errors, values + errors, color=color, alpha=0.25, linewidth=0)
    axes.plot(x, values, **{"color": color, "marker": ".", "markersize": 3} | line)


def bars(
    axes: Axes, x: Any, result: Result, name: str, color: Any, at: Any = ..., scale: float = 1.0, **bar: Any
) -> None:
    """A number of a result as bars, with its standard error."""
    values, errors = _with_errors(result, name, at, scale)
    usual = {"yerr": errors, "color": color, "width": 0.75, "error_kw": {"linewidth": 0.7}}
    axes.bar(x, values, **usual | bar)


def _with_errors(result: Result, name: str, at: Any, scale: float) -> tuple[np.ndarray, np.ndarray]:
    values = np.asarray(getattr(result, name))[at] * scale
    return values, np.nan_to_num(result.standard_error(name)[at] * scale)


def range_of_twins(
    axes: Axes, x: Any, twins: Sequence[Result], name: str, at: Any = ..., label: str = ""
) -> None:
    """The least and the greatest of a number among untrained twins, as a grey band; a line, of one twin."""
    if twins:
        others = np.array([np.asarray(getattr(twin, name))[at] for twin in twins])
        axes.fill_between(x, others.min(0), others.max(0), color=GREY, alpha=0.4, linewidth=0.8, label=label)


def panels(figure: Figure | SubFigure, count: int, columns: int, **options: Any) -> np.ndarray:
    """A grid of `count` panels, so many across; those that are too many are hidden."""
    columns = min(columns, count)
    grid = figure.subplots(-(-count // columns), columns, squeeze=False, **options)
    for axes in grid.ravel()[count:]:
        axes.set_visible(False)
    return grid


def diagonal(axes: Axes, *values: Any) -> None:
    """Where the two axes are equal, over the range of the values that are known."""
    known = np.concatenate([np.ravel(some) for some in values])
    known = known[np.isfinite(known)]
    ends = [known.min(), known.max()] if len(known) else []
    axes.plot(ends, ends, color=GREY, linewidth=0.7, linestyle=":")


def in_percent(axis: Axis) -> None:
    axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
