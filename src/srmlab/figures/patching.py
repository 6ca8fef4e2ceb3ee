"""Patching: what every cell brings back, the gradient's approximation against it, and the paths."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from srmlab.analysis.patching import PatchGrid
from srmlab.analysis.paths import PathGrid
from srmlab.figures import style
from srmlab.figures.palette import BLACK, BLUE, SIGNED_MAP

LABELS = 24  # of positions, at most


@style.figure_of("patch_grid")
def patch_maps(result: PatchGrid) -> Figure:
    """Of three axes a panel a layer, stream down and position across; of two axes one panel."""
    maps = result.share  # [layer, stream, position]
    layers, streams, positions = maps.shape
    several = min(layers, streams, positions) > 1
    shown = list(maps) if several else [np.squeeze(maps).reshape(_two(maps.shape))]
    columns = 2 if positions > 8 else 4
    rows = -(-len(shown) // columns)
    height = (0.11 * streams + 0.55) * rows + 0.6 if several else 0.16 * shown[0].shape[0] + 1.2
    figure = style.new_figure(style.PAGE if several else style.COLUMN, height)
    grid = style.panels(figure, len(shown), columns, sharex=True, sharey=True)
    top = float(np.nan_to_num(np.abs(maps)).max()) or 1.0
    for axes, panel in zip(grid.ravel(), shown, strict=False):
        axes.imshow(panel, cmap=SIGNED_MAP, vmin=-top, vmax=top, aspect="auto")
        axes.set_facecolor("#dddddd")  # where there is nothing but padding
    _name_axes(result, grid, several)
    panels_of = grid.ravel().tolist()
    style.color_bar(
        figure, grid[0, 0].images[0], panels_of, "share of the difference", fraction=0.05, pad=0.02
    )
    other = "clean" if result.into == "corrupt" else "corrupt"
    style.footnote(figure, f"{other} state put into the {result.into} prompt; 1: as in the {other} one")
    return figure


def _two(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a map with at most two axes of any length."""
    layers, streams, positions = shape
    return (layers, streams * positions) if layers > 1 else (streams, positions)


def _name_axes(result: PatchGrid, grid: np.ndarray, several: bool) -> None:
    shown = {"layer": result.layers, "stream": result.streams, "position": result.positions}
    long = [axis for axis, names in shown.items() if len(names) > 1]
    if several:
        for axes, name in zip(grid.ravel(), result.layers, strict=False):
            axes.set_title(name, pad=2, fontsize=6.5)
    across = long[-1] if len(long) > 1 or long == ["position"] else "position"
    down = next((axis for axis in (long[1:] if several else long) if axis != across), "stream")
    for axes in grid[-1]:
        _ticks(axes, "x", across, shown[across])
    for axes in grid[:, 0]:
        _ticks(axes, "y", down, shown[down])


def _ticks(axes: Axes, along: str, axis: str, names: tuple[str, ...]) -> None:
    at = style.sparse_ticks(len(names), LABELS)
    # A token is shown between marks, so that a blank in it is seen; $ would begin a formula.
    labels = [names[i].replace("$", r"\$").replace("\n", "⏎") for i in at]
    if along == "x":
        axes.set_xticks(at, labels, rotation=90 if max(map(len, labels)) > 2 else 0, fontsize=5.5)
        axes.set_xlabel(axis)
    else:
        axes.set_yticks(at, labels, fontsize=5.5)
        axes.set_ylabel(axis)
    axes.tick_params(length=1.5, pad=1)


@style.figure_of("patch_grid", name="patch_attribution")
def patch_attribution(result: PatchGrid) -> Figure:
    """Every cell: its effect by the gradient against the exact one."""
    figure, axes = style.one_panel(style.COLUMN, style.COLUMN)
    exact, approximate = result.share.ravel(), result.of_difference(result.approximate).ravel()
    known = np.isfinite(exact) & np.isfinite(approximate)
    if known.any():
        style.diagonal(axes, exact[known])
        axes.scatter(exact[known], approximate[known], s=5, color=BLUE, alpha=0.6, linewidths=0)
        axes.set_title(f"r = {result.text('correlation')}")
    else:
        asked = np.isfinite(result.approximate).any()
        why = "the prompts do not differ" if asked else "attribution was not requested"
        axes.text(0.5, 0.5, why, ha="center", color=BLACK)
    axes.set(xlabel="exact: share of the difference", ylabel="by the gradient")
    axes.grid()
    return figure


@style.figure_of("path_grid")
def path_maps(result: PathGrid) -> Figure:
    """A panel a layer: source stream across, target stream down."""
    layers, streams, _ = result.share.shape
    panel = min(0.95, (style.PAGE - 1.15) / layers)
    figure = style.new_figure(panel * layers + 1.15, panel + 0.7, "compressed")
    grid = figure.subplots(1, layers, squeeze=False)[0]
    top = float(np.nan_to_num(np.abs(result.share)).max()) or 1.0
    for layer, axes in enumerate(grid):
        axes.imshow(result.share[layer], cmap=SIGNED_MAP, vmin=-top, vmax=top)
        style.bare(axes)
        axes.set_title(f"layer {layer}", pad=3)
        axes.set_xlabel("source", labelpad=1)
    ticks = style.sparse_ticks(streams, at_most=4)
    for axis in (grid[0].xaxis, grid[0].yaxis):
        axis.set_ticks(ticks, labels=[result.streams[tick] for tick in ticks], fontsize=5.5)
    grid[0].set_ylabel("target")
    image = grid[0].images[0]
    style.color_bar(figure, image, list(grid), "share of the\ndifference", fraction=0.04, pad=0.012)
    style.footnote(figure, "one message from source to target replaced, all others held")
    return figure
