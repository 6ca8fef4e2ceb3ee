"""Figures of experiments: curves as in the paper's training graph, a line over an axis, or the cells ranked;
every seed is a dot.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from srmlab.experiments import CellResult, SweepResult
from srmlab.figures import style
from srmlab.figures.palette import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    INDIGO,
    LINES,
    ORANGE,
    PURPLE,
    SAND,
    SKY,
    VERMILION,
)

# The models that are compared: a colour for a kind, dashes for its variants, the same in every figure
MODELS = {
    BLUE: ("srm-med", "srm-base", "srm-large"),
    VERMILION: ("transformer", "transformer, SRM's FLOP"),
    ORANGE: ("gpt2, init by width", "gpt2"),
    GREEN: ("hrm, x in both", "hrm", "hrm without H", "hrm-single"),
    BLACK: ("trm, x in both", "trm", "sr2"),
    PURPLE: ("ouro", "ouro, β = 1"),
    SKY: ("hyper-connections", "hyper-connections, looped", "hyper"),
    INDIGO: ("mor, expert-choice", "mor, token-choice", "mor"),
    SAND: ("huginn",),
}
DASHES = ("-", "--", ":", "-.")
LOOKS = {
    name: {"color": color, "linestyle": dashes}
    for color, names in MODELS.items()
    for name, dashes in zip(names, DASHES, strict=False)
}


@style.styled
def sweep_figure(result: SweepResult, axis: str = "") -> Figure:
    """An experiment's own form, if it has one (OWN_FORMS); else over its axis, or ranked."""
    if own := OWN_FORMS.get(result.experiment):
        return own(result)
    figure, axes = style.one_panel(style.COLUMN, 2.6 if axis else 0.7 + 0.26 * len(result.cells))
    if axis:
        lines(axes, result)
        axes.set(xlabel=axis, ylabel="validation loss (nats)")
    else:
        ranked(axes, result)
    style.footnote(figure, small_print(result, f"dots: seeds; {'lines' if axis else 'bars'}: their means"))
    return figure


def small_print(result: SweepResult, key: str) -> str:
    return f"{result.experiment}, {result.scale}; {key}"


def lines(axes: Axes, result: SweepResult) -> None:
    """Loss over the axis: means joined, every seed a dot."""
    places = sorted({cell.x for cell in result.cells if cell.x is not None})
    aside = 0.0
    for number, (name, cells) in enumerate(joined(result).items()):
        color = LINES[number % len(LINES)]
        if len(cells) == 1 and number:
            aside += 0.03 * (places[-1] - places[0])
        at = [(cell.x or 0.0) + (aside if len(cells) == 1 else 0.0) for cell in cells]
        axes.plot(at, [cell.mean for cell in cells], color=color, label=name or None, marker="_")
        for cell, x in zip(cells, at, strict=True):
            axes.plot([x] * len(cell.runs), cell.losses, ".", color=color, markersize=3.5, alpha=0.7)
    if len(places) > 1 and places[-1] / max(places[0], 1e-9) > 20:
        axes.set_xscale("log")
    axes.set_xticks(places, [f"{x:g}" for x in places])
    axes.minorticks_off()
    style.grid_behind(axes)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(ncols=2)


def joined(result: SweepResult) -> dict[str, list[CellResult]]:
    """Cells along the axis, by what joins them: a series; cells of one that share a place are alone."""
    found: dict[str, list[CellResult]] = {}
    for cell in result.cells:
        alike = [other.x for other in result.cells if other.series == cell.series]
        if cell.x is not None:
            found.setdefault(cell.series if len(set(alike)) == len(alike) else cell.name, []).append(cell)
    return found


def ranked(axes: Axes, result: SweepResult) -> None:
    """One line a cell, the first on top: every seed a dot, the mean a bar; dotted, what counting reaches."""
    cells = result.cells
    for place, cell in enumerate(cells):
        color = LOOKS.get(cell.name, {"color": BLUE})["color"]
        axes.plot(cell.losses, np.full(len(cell.runs), place), ".", color=color, markersize=4, alpha=0.7)
        axes.plot([cell.mean], [place], "|", color="black", markersize=9, markeredgewidth=1.2)
    axes.set_yticks(range(len(cells)), [cell.name for cell in cells])
    axes.set(ylim=(len(cells) - 0.5, -0.5), xlabel="validation loss (nats)")
    losses = [loss for cell in cells for loss in cell.losses]
    if max(losses) > 10 * min(losses) > 0:  # one that has not learned would squeeze the rest
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    low, high = axes.get_xlim()
    for name, loss in result.data.get("references", {}).items():
        if low <= loss <= high + 0.1 * (high - low):  # one far off would squeeze the rest
            axes.axvline(loss, color=GREY, linestyle=":", linewidth=1.0)
            where = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom"}
            axes.text(loss, 1.01, name, color=GREY, fontsize="small", **where)
    style.grid_behind(axes, "both")


def curves_and_ranks(result: SweepResult) -> Figure:
    """The paper's training graph, and where each model ends."""
    figure = style.new_figure(style.PAGE, 2.6)
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    for cell in result.cells:
        left.plot(*mean_curve(cell), label=cell.name, **LOOKS[cell.name])
    style.over_steps(left)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    ranked(right, result)
    style.footnote(figure, small_print(result, "lines: means over seeds; dots: seeds; bars: their means"))
    return figure


def mean_curve(cell: CellResult) -> tuple[list[int], list[float]]:
    """The steps that all runs of a cell have, and their mean training loss there."""
    curves = [dict(run.curve) for run in cell.runs]
    steps = sorted(set(curves[0]).intersection(*curves[1:]))
    return steps, [float(np.mean([curve[step] for curve in curves])) for step in steps]


def loss_over_flop(result: SweepResult) -> Figure:
    """Left, training loss over training FLOP, a line a model. Right, validation loss over the FLOP of a
    forward pass: a dot for the whole model, a line for its own way of spending less.
    """
    figure = style.new_figure(style.PAGE, 3.4)
    left, right = figure.subplots(1, 2)
    for cell in result.cells:
        look = LOOKS[cell.name]
        steps, mean = mean_curve(cell)
        flops = np.array(steps) / steps[-1] * cell.flops
        left.plot(flops, mean, label=cell.name, linewidth=1.0, **look)
        exits = [run.exits for run in cell.runs if run.exits]
        if not exits:
            continue
        kinds = [(one["rule"], one["threshold"]) for one in exits[0]]
        means = {
            kind: np.mean([(run[i]["flops"], run[i]["loss"]) for run in exits], axis=0)
            for i, kind in enumerate(kinds)
        }
        full, inside = means["full", 0.0], look["color"] if look["linestyle"] == "-" else "white"
        right.plot(*full, "o", color=look["color"], markerfacecolor=inside, markersize=4)
        own = next((rule for rule, _ in kinds if rule not in ("full", "fixed")), None)
        if own is not None:
            path = sorted([tuple(full), *(tuple(means[kind]) for kind in kinds if kind[0] == own)])
            right.plot(*np.array(path).T, linewidth=1.0, zorder=1, **look)
    for axes, what in ((left, "training"), (right, "validation")):
        axes.set(xscale="log", ylabel=f"{what} loss (nats)")
        style.grid_behind(axes, "both")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    right.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    right.xaxis.set_minor_formatter(NullFormatter())
    left.set_xlabel("training FLOP")
    right.set_xlabel("FLOP of a forward pass, per token")
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    key = "means over seeds; right: dots: the whole model; lines: its own way of spending less"
    style.footnote(figure, small_print(result, key))
    return figure


def trained_and_untrained(result: SweepResult) -> Figure:
    """A panel for every statistic: the runs of each number of streams, and the weights they began from."""
    names = list(
        dict.fromkeys(name for cell in result.cells for run in cell.runs for name in run.learned or {})
    )
    rows, columns = math.ceil((len(names) + 1) / 5), 5  # and one panel for the key
    figure = style.new_figure(style.PAGE, 1.6 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, name in zip(panels, names, strict=False):
        for place, cell in enumerate(result.cells):
            measured = np.array([run.learned[name] for run in cell.runs if run.learned])
            for offset, values, color in ((-0.12, measured[:, 1], GREY), (0.12, measured[:, 0], BLUE)):
                axes.plot(np.full(len(values), place + offset), values, ".", color=color, markersize=4)
        drawn = np.concatenate([line.get_ydata() for line in axes.lines])
        if drawn.min() > 0 and drawn.max() > 30 * drawn.min():
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_title(textwrap.fill(name, 23), fontsize="x-small")
        axes.set_xticks(range(len(result.cells)), [f"{cell.x:g}" for cell in result.cells])
        axes.set(xlim=(-0.5, len(result.cells) - 0.5), xlabel="streams")
        style.grid_behind(axes)
    for axes in panels[len(names) :]:
        axes.axis("off")
    keys = [Line2D([], [], marker=".", linestyle="", color=color) for color in (GREY, BLUE)]
    panels[len(names)].legend(keys, ["before training", "trained"], fontsize="x-small", loc="center")
    style.footnote(figure, small_print(result, "dots: seeds"))
    return figure


def depth_lines(result: SweepResult) -> Figure:
    """Loss against the layers run, one line for each l it was trained with."""
    figure, axes = style.one_panel(style.COLUMN, 2.6)
    shades = np.linspace(0.25, 1.0, max(1, len(result.cells)))
    for cell, shade in zip(result.cells, shades, strict=True):
        measured = [run.depths for run in cell.runs if run.depths]
        if not measured:
            continue
        depths = sorted(measured[0])
        mean = [float(np.mean([one[d] for one in measured])) for d in depths]
        axes.plot(depths, mean, color=BLUE, alpha=float(shade), label=cell.name, marker=".", markersize=3)
    if result.cells:
        axes.axvline(int(result.cells[0].model["depth"]), color=GREY, linestyle=(0, (3, 2)), linewidth=0.8)
    axes.set(xlabel="layers run", ylabel="validation loss (nats)")
    style.grid_behind(axes)
    axes.legend(ncols=2)
    return figure


def profiles_by_gradient(result: SweepResult) -> Figure:
    """Drift and the logit lens over the layers, a line a run; where the gradient begins, an arrow each."""
    figure = style.new_figure(style.PAGE, 2.6)
    panels = figure.subplots(1, 2)
    labels = {"drift": "drift, cosine distance", "logit lens": "log p of the correct token (nats)"}
    for axes, (curve, label) in zip(panels, labels.items(), strict=True):
        first = 1 if curve == "drift" else 0  # the layer that a transition leads to, or the layer itself
        for cell, color in zip(result.cells, LINES, strict=False):
            for run in cell.runs:
                for values, shade, order in zip(
                    (run.profiles or {})[curve], (color, GREY), (2, 1), strict=True
                ):
                    layers = np.arange(first, first + len(values))
                    axes.plot(layers, values, ".-", color=shade, linewidth=0.9, markersize=3, zorder=order)
            begins = cell.model["depth"] - cell.model["gradient_depth"]
            axes.plot(begins, 0.02, "^", color=color, transform=axes.get_xaxis_transform(), clip_on=False)
        axes.set(xlabel="to layer, from the one before" if first else "after layer", ylabel=label)
        style.grid_behind(axes)
    panels[0].set_yscale("log")
    named = [(cell.name, color) for cell, color in zip(result.cells, LINES, strict=False)]
    keys = [
        Line2D([], [], marker=".", color=color, label=name) for name, color in [*named, ("untrained", GREY)]
    ]
    keys.append(Line2D([], [], marker="^", linestyle="", color="black", label="the gradient begins"))
    figure.legend(handles=keys, loc="outside upper center", ncols=len(keys))
    style.footnote(figure, small_print(result, "lines: seeds"))
    return figure


OWN_FORMS: dict[str, Callable[[SweepResult], Figure]] = {
    "test-depth": depth_lines,
    "language-models": curves_and_ranks,
    "family": loss_over_flop,
    "learned": trained_and_untrained,
    "transition": profiles_by_gradient,
}
