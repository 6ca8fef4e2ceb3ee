"""Puzzles cell by cell: when cells become right, what comes to rest, which stream holds what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from srmlab.analysis.cell_probe import CellProbe
from srmlab.analysis.cells import Cells
from srmlab.analysis.fixed_points import FixedPoints
from srmlab.analysis.result import Result
from srmlab.figures import style
from srmlab.figures.palette import BLUE, GREEN, GREY, SHARE_MAP, STREAMS, VERMILION


@style.figure_of("cells")
def cells_curves(result: Cells, twins: Sequence[Result] = ()) -> Figure:
    """Above, what is right over segments × layers; below, where cells settle and where they are lost."""
    figure = style.new_figure(style.COLUMN, 3.6)
    top, bottom = figure.subplots(2, 1, sharex=True)
    x = (np.arange(len(result.right)) + 1) / result.segment_depth
    for name, label, color in (
        ("right", "unknown cells right", BLUE),
        ("solved", "boards with all of them right", GREEN),
    ):
        style.range_of_twins(top, x, twins, name)
        style.curve(top, x, result, name, color, label=label)
    top.set(ylim=(0, 1.02), ylabel="share")
    top.legend(loc="lower right")
    width = 0.8 / result.segment_depth
    bottom.bar(x, result.settles, width=width, color=BLUE, label="settle right")
    bottom.bar(x, -result.lost, width=width, color=VERMILION, label="flip back")
    bottom.axhline(0, color=GREY, linewidth=0.6)
    bottom.set(ylabel="share of cells", xlabel="segments")
    bottom.legend()
    for axes in (top, bottom):
        axes.set_xticks([k + 1 for k in style.sparse_ticks(result.segments, at_most=9)])
        style.grid_behind(axes, "x")
    note = "; grey: range of untrained twins" if twins else ""
    style.footnote(
        figure, f"{result.segment_depth} layers a segment, {result.evidence.sequences} boards{note}"
    )
    return figure


@style.figure_of("fixed_points")
def fixed_points_curves(result: FixedPoints) -> Figure:
    """What still changes, segment by segment, and what stays solved, to twice the trained number."""
    figure = style.new_figure(style.COLUMN, 3.6)
    top, bottom = figure.subplots(2, 1, sharex=True)
    x = result.ends
    for name, label, color in (("change", "state, relative", BLUE), ("moved", "cells, share", VERMILION)):
        values = getattr(result, name)[1:]
        shown = np.where(values > 0, values, np.nan)  # a log axis has no 0
        top.plot(x[1:], shown, color=color, marker=".", label=label)
    top.set(yscale="log", ylabel="change from the\nsegment before")
    top.legend()
    for name, label, color in (("solved", "solved", GREEN), ("stays", "of those solved as trained", BLUE)):
        style.curve(bottom, x, result, name, color, label=label)
    bottom.set(ylim=(0, 1.02), ylabel="share of boards", xlabel="segments")
    bottom.legend(loc="lower right")
    for axes in (top, bottom):
        axes.axvline(result.trained, color=GREY, linewidth=0.8, linestyle=":")
        axes.set_xticks([k + 1 for k in style.sparse_ticks(len(x), at_most=9)])
        style.grid_behind(axes)
    ends = ", ".join(
        f"{name} {float(getattr(result, name)):.0%}" for name in ("stuck", "cycling", "escaping")
    )
    unsolved = ends if result.some_unsolved else "none"
    style.footnote(figure, f"dotted: as trained; no dot: no change; boards not solved there: {unsolved}")
    return figure


@style.figure_of("cell_probe")
def cell_probe_maps(result: CellProbe) -> Figure:
    """Left, R² of every stream over segments, the shuffled null dotted; right, the board of each stream."""
    streams = len(result.streams)
    figure = style.new_figure(style.PAGE, max(2.2, 0.8 * -(-streams // 4) + 0.8))
    parts: Any = figure.subfigures(1, 2, width_ratios=[1, 1.25])
    left, right = parts
    axes = left.subplots()
    x = np.arange(1, len(result.held) + 1)
    for s, name in enumerate(result.streams):
        color = STREAMS[s % len(STREAMS)]
        style.curve(axes, x, result, "held", color, at=np.s_[:, s], label=name)
        axes.plot(x, result.shuffled[:, s], color=color, linestyle=":", linewidth=0.7)
    axes.axhline(0, color=GREY, linewidth=0.6)
    axes.set(xlabel="segments", ylabel="R² of a cell's value")
    axes.legend(ncols=2)
    side = round(result.cell.shape[1] ** 0.5)
    grid = style.panels(right, streams, 4)
    top = max(0.05, float(np.nanmax(result.cell)))
    for s, panel in enumerate(grid.ravel()[:streams]):
        panel.imshow(result.cell[s].reshape(side, -1), cmap=SHARE_MAP, vmin=0, vmax=top)
        panel.set_title(result.streams[s], pad=2, fontsize=7)
        style.bare(panel)
    image = grid[0, 0].images[0]
    right.colorbar(image, ax=grid, fraction=0.05, pad=0.02, label="R² by place at the end")
    axes.set_title("dotted: answers permuted within boards", fontsize=6.5)
    return figure
