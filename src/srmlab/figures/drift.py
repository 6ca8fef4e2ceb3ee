"""Drift curves: for each step group the median over streams, the interquartile band, each stream faintly, and
a dashed line at the median convergence. With untrained twins, the range of their medians is a grey band.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from srmlab.analysis.drift import ONE_LAYER, Drift, Metric
from srmlab.analysis.result import Result
from srmlab.figures import style
from srmlab.figures.palette import BLACK, GREY, LINES


@style.figure_of("drift")
def drift_curves(result: Drift, metric: Metric = "cosine", twins: Sequence[Result] = ()) -> Figure:
    curves, quartiles = getattr(result, metric), result.quartiles(metric)
    groups, transitions, streams = curves.shape
    if transitions == 0:
        figure = style.new_figure(style.PAGE, 0.6)
        style.footnote(figure, ONE_LAYER)
        return figure
    figure = style.new_figure(style.PAGE, 1.75 * -(-groups // 3) + 0.35)
    grid = style.panels(figure, groups, 3, sharex=True, sharey=True)
    x = range(transitions)
    found = result.convergence(metric)
    for g, group in enumerate(result.groups):
        axes, color = grid.flat[g], LINES[g % len(LINES)]
        if streams > 1:
            axes.plot(x, curves[g], color=color, alpha=0.22, linewidth=0.6)
            axes.fill_between(x, quartiles[0, g], quartiles[2, g], color=color, alpha=0.22, linewidth=0)
        axes.plot(x, quartiles[1, g], color=color, marker="o", markersize=2.5, clip_on=False)
        style.range_of_twins(axes, x, twins, f"{metric}_median", at=g)
        if found[group].measured:
            axes.axvline(found[group].median, color=BLACK, linestyle=(0, (3, 2)), linewidth=0.9)
        if result.boundary:
            axes.axvline(result.boundary - 1, color=GREY, linestyle=":", linewidth=0.9)
        early, middle, late = found[group].counts
        axes.set_title(
            f"{group}: {found[group].mean:.2f} ± {found[group].std:.2f}  ({early}/{middle}/{late})"
            if found[group].measured
            else f"{group}: convergence not measured"
        )
        axes.set_xticks(list(x), [f"{t}→{t + 1}" for t in x], fontsize=5.5 if transitions > 5 else 6.5)
        style.grid_behind(axes)
    measured = curves[np.isfinite(curves)]
    if (measured > 0).all():  # drift falls by powers of ten
        grid[0, 0].set_yscale("log")
    else:
        grid[0, 0].set_ylim(bottom=0)  # of all panels: they share the axis
    for axes in grid[:, 0]:
        axes.set_ylabel("cosine distance" if metric == "cosine" else "KL (nats)")
    for axes in grid[-1]:
        axes.set_xlabel("layers")
    note = "median, quartiles; dashed: median convergence; titles: its mean ± s.d., early/middle/late"
    note += "; dotted: gradient begins" if result.boundary else ""
    style.footnote(figure, note + ("; grey: untrained twins" if twins else ""))
    return figure


@style.figure_of("drift", name="drift_kl")
def drift_kl_curves(result: Drift, twins: Sequence[Result] = ()) -> Figure:
    return drift_curves(result, "kl", twins)
