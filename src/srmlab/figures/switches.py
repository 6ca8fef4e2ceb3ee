"""Switches: how much edges vary, what tells when they are open, and what holding a feature does."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from srmlab.dictionaries.switches import Switches
from srmlab.figures import style
from srmlab.figures.palette import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION

COLORS = {
    "logit": SKY,
    "features": BLUE,
    "best feature": VERMILION,
    "token": BLACK,
    "best token": PURPLE,
    "position": ORANGE,
    "random features": GREEN,
    "shuffled": GREY,
}
LABELS = {"logit": "exact logit", "features": "all pairs", "position": "position, shuffled", "shuffled": ""}


@style.figure_of("switches")
def switch_panels(result: Switches) -> Figure:
    figure = style.new_figure(style.PAGE, 4.2)
    grid = figure.subplots(2, 2)
    _deviations(grid[0, 0], result)
    if result.edges:
        _curve(grid[0, 1], result)
        _scatter(grid[1, 0], result)
        _held(grid[1, 1], result)
    style.footnote(figure, str(result.evidence))
    return figure


def _deviations(axes: Axes, result: Switches) -> None:
    """How much the weights of strong edges differ between tokens."""
    strong = result.weight >= 1 / result.weight.shape[-1]
    own = result.deviation[strong & (result.deviation > 0)]
    others = result.twin_deviation[result.twin_deviation > 0]
    bins = np.linspace(0, max(float(own.max(initial=0.1)), float(others.max(initial=0.1))), 40).tolist()
    axes.hist(own, bins, density=True, color=BLUE, alpha=0.8, label="strong edges")
    if others.size:
        axes.hist(others, bins, density=True, color=GREY, alpha=0.6, label="all edges of untrained twins")
    axes.axvline(result.bar, color=VERMILION, linewidth=0.9, linestyle="--")
    axes.set_title(
        f"{len(result.edges)} of {result.strong} strong edges vary more than any twin's", loc="left"
    )
    axes.set_xlabel("standard deviation of the weight over tokens")
    axes.set_yticks([])
    axes.legend(frameon=True, framealpha=1, edgecolor="none")


def _curve(axes: Axes, result: Switches) -> None:
    """How well open and closed are told apart, against the number of feature pairs used."""
    low, middle, high = np.quantile(result.by_pairs, (0.25, 0.5, 0.75), axis=0)
    axes.plot(result.sizes, middle, color=BLUE, marker=".", label="pairs of features")
    axes.fill_between(result.sizes, low, high, color=BLUE, alpha=0.2, linewidth=0)
    medians = {name: float(np.median(result.auc[:, result.predictors.index(name)])) for name in COLORS}
    below = 1.0
    for name, value in sorted(medians.items(), key=lambda item: -item[1]):
        axes.axhline(value, color=COLORS[name], linewidth=0.9, linestyle=(0, (4, 2)))
        if label := LABELS.get(name, name):
            below = min(value, below - 0.035)  # names that would touch move down
            axes.annotate(label, (float(result.sizes[-1]) * 1.6, below), fontsize=6, color=COLORS[name],
                          va="center", annotation_clip=False)  # fmt: skip
    axes.set(
        xscale="log",
        ylim=(0.45, 1.0),
        xlabel="pairs of features (median and quartiles of switches)",
        ylabel="AUC on other text",
    )
    axes.set_title("what tells when a switch is open", loc="left")


def _scatter(axes: Axes, result: Switches) -> None:
    """Every switch: features against the token alone."""
    token = result.auc[:, result.predictors.index("token")]
    for name, label in (("features", "all its features"), ("best feature", "its best feature")):
        values = result.auc[:, result.predictors.index(name)]
        count = f"{result.better(name)} of {len(result.edges)} above"
        axes.scatter(
            token, values, s=6, color=COLORS[name], alpha=0.6, linewidths=0, label=f"{label}: {count}"
        )
    style.diagonal(axes, [0.5, 1])
    axes.set(xlabel="AUC of the token alone", ylabel="AUC of features", ylim=(0.48, 1.12))
    axes.legend(loc="upper left")


def _held(axes: Axes, result: Switches) -> None:
    """How often holding the deciding feature flips the edge."""
    shares = [column[np.isfinite(column)] for column in result.flipped.T]
    order, colors = (0, 2, 1, 3), (BLUE, GREY, BLUE, GREY)
    for place, (held, color) in enumerate(zip(order, colors, strict=True)):
        axes.bar(place, shares[held].mean() if len(shares[held]) else 0, color=color, width=0.7)
        jitter = place + np.linspace(-0.25, 0.25, len(shares[held]))
        axes.scatter(jitter, shares[held], s=2, color=BLACK, alpha=0.4, linewidths=0, zorder=3)
    names = [result.held[held].replace(" ", "\n") for held in order]
    axes.set_xticks(range(len(order)), labels=names)
    axes.set_ylabel("share of tokens that flip")
    axes.set_title("holding the deciding feature, and another", loc="left")
