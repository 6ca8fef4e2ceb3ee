"""The logit lens: one small curve per stream, and all of them as a map."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from srmlab.analysis.logit_lens import LogitLens
from srmlab.figures import style
from srmlab.figures.palette import BLACK, BLUE, GREY, SHARE_MAP


@style.figure_of("logit_lens", name="logit_lens_map")
def lens_map(result: LogitLens) -> Figure:
    """Layer × stream, with the whole state in a row of its own below."""
    curves = result.corrected
    points, streams = curves.shape
    height = min(4.6, 0.16 * streams + 1.15)
    figure = style.new_figure(style.COLUMN if points <= 8 else style.COLUMN + 0.17 * (points - 6), height)
    top, bottom = figure.subplots(2, 1, height_ratios=[max(streams, 3), 1], sharex=True)
    low, high = float(curves.min()), float(curves.max())
    image = top.imshow(curves.T, cmap=SHARE_MAP, vmin=low, vmax=high, aspect="auto")
    ticks = style.sparse_ticks(streams, at_most=16)
    top.set_yticks(ticks, [result.streams[s] for s in ticks])
    top.set_ylabel("stream kept")
    bottom.imshow(result.full[None], cmap="Greys_r", aspect="auto", vmin=result.full.min() - 1, vmax=0)
    bottom.set_yticks([0], ["all"])
    digits = 2 if result.full.min() > -10 else 1
    for p, value in enumerate(result.full):
        light = (value - result.full.min() + 1) / (1 - result.full.min()) > 0.6
        shown, color = f"{value:.{digits}f}".replace("-", "−"), BLACK if light else "white"
        bottom.text(p, 0, shown, ha="center", va="center", fontsize=5.5, color=color)
    names = [label.replace(" ", "\n") for label in result.labels]
    bottom.set_xticks(range(points), names)
    bottom.set_xlabel("layer")
    for axes in (top, bottom):
        axes.tick_params(length=1.5)
        style.framed(axes)
    label = "log-probability of the\ncorrect token (nats)"
    style.color_bar(figure, image, [top, bottom], label, fraction=0.06, pad=0.02, aspect=9 * height)
    return figure


@style.figure_of("logit_lens", name="logit_lens_curves")
def lens_curves(result: LogitLens) -> Figure:
    """A panel for each stream: the log-probability of the correct token against depth, all streams together
    in grey."""
    points, streams = result.corrected.shape
    figure = style.new_figure(style.PAGE, 0.95 * -(-streams // 8) + 0.6)
    grid = style.panels(figure, streams, 8, sharex=True, sharey=True)
    x = np.arange(points)
    for s, axes in enumerate(grid.ravel()[:streams]):
        axes.plot(x, result.corrected.mean(1), color=GREY, linewidth=0.7)
        style.curve(axes, x, result, "corrected", BLUE, at=np.s_[:, s])
        axes.set_title(result.streams[s], pad=2, fontsize=7)
        axes.set_xticks(style.sparse_ticks(points, at_most=4))
        axes.grid(axis="y")
    for axes in grid[-1]:
        axes.set_xlabel("layer")
    for axes in grid[:, 0]:
        axes.set_ylabel("log-prob. (nats)")
    style.footnote(figure, "blue: the stream, ± one standard error over sequences; grey: mean over streams")
    return figure
