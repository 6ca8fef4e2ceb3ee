"""Alignment maps: cosines from blue over white, 0, to orange; the small ones of the connection on a scale of
their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from srmlab.analysis.alignment import Alignment
from srmlab.analysis.result import Result
from srmlab.figures import style
from srmlab.figures.palette import BLUE, GREY, SIGNED_MAP


@style.figure_of("alignment")
def alignment_maps(result: Alignment) -> Figure:
    """Left: connection alignment, layer × stream. Right: update–state alignment, step × stream, layers ruled
    off."""
    layers, steps, streams = result.output.shape
    figure = style.new_figure(style.PAGE, 2.4)
    left, right = figure.subplots(1, 2, width_ratios=[1, 2])
    most = max(0.05, float(np.nanmax(np.abs(result.connection))))  # far from 1: on a scale of its own
    small = _cosines(left, result.connection.T, most)
    left.set_xlabel("layer")
    _layer_ticks(left, result)
    left.set_title(r"connection and input, $\cos(c_t, x)$")
    image = _cosines(right, result.output.reshape(layers * steps, streams).T)
    right.set_xlabel("step, through all layers")
    right.set_xticks([l * steps for l in range(layers)])
    for l in range(1, layers):
        right.axvline(l * steps - 0.5, color=GREY, linewidth=0.5)
    right.set_title("update and step output")
    style.color_bar(figure, small, [left], "", fraction=0.06, pad=0.03)
    ticks = [-1, -0.5, 0, 0.5, 1]
    style.color_bar(figure, image, [right], "cosine, mean over tokens", fraction=0.03, pad=0.015, ticks=ticks)
    _footnote(figure, result)
    return figure


@style.figure_of("alignment", name="connection_by_layer")
def connection_by_layer(result: Alignment, twins: Sequence[Result] = ()) -> Figure:
    """cos(c, x) against layers: the mean over streams in front of the single streams, and the twins'."""
    figure, axes = style.one_panel(style.COLUMN, 2.1)
    layers = range(len(result.connection))
    axes.axhline(0, color=GREY, linewidth=0.6)
    axes.plot(layers, result.connection, color=BLUE, alpha=0.25, linewidth=0.7)
    style.curve(axes, layers, result, "layer_mean", BLUE, marker="o", label="mean over streams")
    style.range_of_twins(axes, layers, twins, "layer_mean", label="the same of untrained twins")
    _layer_ticks(axes, result)
    axes.set(xlabel="layer", ylabel=r"$\cos(c_t, x)$")
    axes.legend()
    _footnote(figure, result)
    return figure


def _layer_ticks(axes: Axes, result: Alignment) -> None:
    layers = range(len(result.connection))
    axes.set_xticks(layers, [f"{l}{'*' if l in result.token_independent else ''}" for l in layers])


def _footnote(figure: Figure, result: Alignment) -> None:
    if result.token_independent:
        style.footnote(figure, "* reads z₀: c is the same for every token")


def _cosines(axes: Axes, values, most: float = 1.0):
    image = axes.imshow(values, cmap=SIGNED_MAP, vmin=-most, vmax=most, aspect="auto")
    axes.set_yticks(style.sparse_ticks(values.shape[0]))
    axes.set_ylabel("stream")
    style.framed(axes)
    return image
