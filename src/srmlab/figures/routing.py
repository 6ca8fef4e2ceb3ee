"""The routing wall: a map of source × target streams for every layer (across the page) and head (down)."""

from __future__ import annotations

from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from srmlab.analysis.routing import Routing
from srmlab.figures import style
from srmlab.figures.palette import SHARE_MAP


@style.figure_of("routing")
def routing_wall(
    result: Routing, show: Literal["frequency", "weight"] = "frequency", transpose: bool = False
) -> Figure:
    """Each panel: source stream across, target stream down (`transpose` for the other way round).

    The colour bar of the weights marks 1/S, the weight of every edge under uniform attention.
    """
    maps = getattr(result, show)
    maps = maps.swapaxes(-1, -2) if transpose else maps
    layers, heads, streams, _ = maps.shape
    across, down = ("target", "source") if transpose else ("source", "target")
    panel = min(0.95, (style.PAGE - 1.15) / layers)
    figure = style.new_figure(panel * layers + 1.15, panel * heads + 0.55, "compressed")
    grid = figure.subplots(heads, layers, squeeze=False)
    top = 1.0 if show == "frequency" else float(maps.max())
    for head in range(heads):
        for layer in range(layers):
            axes = grid[head, layer]
            axes.imshow(maps[layer, head], cmap=SHARE_MAP, vmin=0, vmax=top, aspect="equal")
            style.bare(axes)
            if head == 0:
                axes.set_title(f"layer {layer}{'*' if layer in result.token_independent else ''}", pad=3)
            if layer == 0:
                axes.set_ylabel(f"head {head}\n{down}", fontsize=7)
            if head == heads - 1:
                axes.set_xlabel(f"{across}", fontsize=7, labelpad=1)
    _stream_ticks(grid[-1, 0], streams)
    figure.get_layout_engine().set(w_pad=0.015, h_pad=0.015, wspace=0.015, hspace=0.015)  # pyright: ignore
    figure.align_labels(grid)
    unit = f"share of tokens with\nweight > {result.threshold:g}" if show == "frequency" else "mean weight"
    every, image = grid.ravel().tolist(), grid[0, 0].images[0]
    bar = style.color_bar(figure, image, every, unit, fraction=0.04, pad=0.012, aspect=18)
    if show == "weight":
        mark_on_bar(bar, result.uniform, f"1/S = {result.uniform:.3g}")
    if result.token_independent:
        style.footnote(figure, "* reads z₀: the same for every token")
    return figure


def mark_on_bar(bar, value: float, label: str) -> None:
    """A dashed line across a colour bar at a reference value, named on its right."""
    bar.ax.axhline(value, color="white", linewidth=1.8)
    bar.ax.axhline(value, color="black", linewidth=0.9, linestyle=(0, (2, 1)))
    ticks = [tick for tick in bar.get_ticks() if bar.vmin <= tick <= bar.vmax]
    room = 0.06 * (bar.vmax - bar.vmin)
    ticks = [tick for tick in ticks if abs(tick - value) > room]
    names = [f"{tick:.2g}" for tick in ticks]
    bar.set_ticks([*ticks, value], labels=[*names, label])


def _stream_ticks(axes: Axes, streams: int) -> None:
    ticks = style.sparse_ticks(streams, at_most=4)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, labels=[str(tick) for tick in ticks], fontsize=5.5)
    axes.tick_params(length=1.5, pad=1)
