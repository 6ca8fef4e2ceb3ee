"""How good the dictionaries of the streams are: bars of what they explain and of what the model recovers."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from srmlab.dictionaries.curve import Curve
from srmlab.dictionaries.quality import Quality
from srmlab.dictionaries.transcoder_quality import TranscoderQuality
from srmlab.figures import style
from srmlab.figures.palette import BLUE, GREY, LINES, ORANGE, SHARE_MAP

NULLS = {"untrained": "untrained twin", "shuffled": "features shuffled"}


@style.figure_of("dictionary")
def dictionary_bars(result: Quality) -> Figure:
    """For each stream the variance explained and the loss recovered, with standard errors; the dashed line is
    the loss recovered with all streams replaced at once."""
    count = len(result.recovered)
    figure, axes = style.one_panel(style.COLUMN if count <= 16 else style.PAGE, 2.2)
    streams = np.arange(count)
    for shift, name, color, label in (
        (-0.2, "stream_explained", BLUE, "variance explained"),
        (0.2, "recovered", ORANGE, "loss recovered"),
    ):
        style.bars(axes, streams + shift, result, name, color, width=0.38, label=label)
    axes.axhline(result.all_recovered, color=GREY, linestyle=(0, (3, 2)), linewidth=0.8)
    axes.set_xticks(streams, [str(s) for s in streams], fontsize=6 if count <= 32 else 4.5)
    axes.set_xlabel("stream")
    axes.set_ylim(top=1.0)
    style.in_percent(axes.yaxis)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, borderpad=0.2)
    style.footnote(
        figure, f"{result.features} features, {result.in_use} in use; dashed: all streams replaced at once"
    )
    return figure


@style.figure_of("sparsity")
def sparsity_curves(result: Curve) -> Figure:
    """Features in use against the variance explained and the loss recovered: a line an activation, a dot a
    seed, dashed the null."""
    figure = style.new_figure(style.PAGE, 2.3)
    panels = figure.subplots(1, 2)
    kinds = list(dict.fromkeys(result.activations))
    for axes, name, null, title in (
        (panels[0], "explained", "untrained", "variance explained"),
        (panels[1], "recovered", "shuffled", "loss recovered, all replaced"),
    ):
        values, beside = getattr(result, name), getattr(result, null)
        for kind, color in zip(kinds, LINES, strict=False):
            rows = [e for e, activation in enumerate(result.activations) if activation == kind]
            rows.sort(key=lambda e: result.active[e].mean())
            places = result.active[rows].mean(1)
            axes.plot(places, values[rows].mean(1), color=color, label=kind)
            axes.plot(result.active[rows].ravel(), values[rows].ravel(), ".", color=color, markersize=3)
            axes.plot(places, beside[rows].mean(1), color=color, linestyle=(0, (3, 2)), linewidth=0.8)
        if np.isfinite(beside).any():
            axes.plot([], [], color=GREY, linestyle=(0, (3, 2)), linewidth=0.8, label=NULLS[null])
        axes.set(title=title, xscale="log")
        ticks = sorted(set(result.ks))
        axes.set_xticks(ticks, [str(k) for k in ticks])
        axes.minorticks_off()
        axes.set_xlabel("features in use")
        style.in_percent(axes.yaxis)
        axes.legend(loc="best")
    style.footnote(figure, f"{result.of}; {result.active.shape[1]} seeds each; {result.evidence}")
    return figure


@style.figure_of("transcoders")
def transcoder_panels(result: TranscoderQuality) -> Figure:
    """The variance explained at every call and stream, and the loss recovered with one step function and
    stream replaced alone; the dashed line is with all of them replaced."""
    figure = style.new_figure(style.PAGE, 2.6)
    left, right = (
        figure.subplots(1, 2, width_ratios=(1, 1.2)) if result.replaced else (figure.subplots(), None)
    )
    image = left.imshow(result.explained, cmap=SHARE_MAP, aspect="auto", vmin=0, vmax=1)
    left.set(xlabel="stream", ylabel="call, grouped by transcoder", title="variance explained")
    figure.colorbar(image, ax=left)
    style.footnote(figure, f"{result.of} of every step; dashed: all replaced at once; {result.evidence}")
    if right is None:  # nothing was replaced alone
        return figure
    places = np.arange(len(result.replaced))
    style.bars(right, places, result, "recovered", ORANGE, width=0.8)
    right.axhline(result.all_recovered, color=GREY, linestyle=(0, (3, 2)), linewidth=0.8)
    right.set_xticks(places, result.replaced, rotation=90, fontsize=5)
    right.set_title("loss recovered")
    style.in_percent(right.yaxis)
    return figure
