"""The figure of a result that brings none of its own: a panel a number, by its axes."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from srmlab.analysis.result import Result
from srmlab.figures import style
from srmlab.figures.palette import BLUE, SHARE_MAP


@style.styled
def plain_panels(result: Result) -> Figure:
    """Every measured or derived array: a curve with its standard error over one axis, else a map of the last
    two axes, averaged over the others. Single numbers are bars."""
    names = list(result.uncertain())
    figure = style.new_figure(style.COLUMN, 1.6 * len(names) + 0.2)
    for name, axes in zip(names, figure.subplots(len(names), squeeze=False)[:, 0], strict=True):
        _panel(result, name, axes, figure)
    style.footnote(figure, str(result.evidence))
    return figure


def _panel(result: Result, name: str, axes: Axes, figure: Figure) -> None:
    described = result.uncertain()[name]
    labels = list(described)
    values = np.asarray(getattr(result, name), dtype=float)
    axes.set_title(textwrap.fill(f"{name.replace('_', ' ')}: {described.unit}", 48))
    if values.ndim == 0:
        style.bars(axes, [name], result, name, BLUE, width=0.3)
    elif values.ndim == 1 and isinstance(names := getattr(result, f"{labels[0]}s", None), tuple):
        style.bars(axes, list(names), result, name, BLUE, width=0.5)  # places that have names, and no order
    elif values.ndim == 1:
        places: Any = result.places(labels[0], len(values))
        style.curve(axes, places, result, name, BLUE)
        axes.set_xlabel(labels[0])
    else:
        image = axes.imshow(values.mean(tuple(range(values.ndim - 2))), cmap=SHARE_MAP, aspect="auto")
        axes.set(ylabel=labels[-2], xlabel=labels[-1])
        figure.colorbar(image, ax=axes)
