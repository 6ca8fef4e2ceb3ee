"""Edges between streams: how few keep the loss, whether gradients find them, and the circuit they make."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from srmlab.analysis.edges import Edges
from srmlab.analysis.result import Result, plus_minus
from srmlab.figures import style
from srmlab.figures.palette import BLACK, BLUE, GREEN, GREY, ORANGE, VERMILION

DRAWN = 200  # edges of a circuit, at most


@style.figure_of("edges")
def edge_curves(result: Edges, twins: Sequence[Result] = ()) -> Figure:
    """Left, the loss over the edges kept; right, gradients beside the exact effect of random edges."""
    figure = style.new_figure(style.PAGE, 2.6)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    _losses(left, result, twins)
    for name, values, correlation, color in (
        ("attribution", result.attribution, result.agreement, BLACK),
        ("integrated gradients", result.integrated, result.integrated_agreement, BLUE),
    ):
        right.scatter(result.sample, values, s=5, color=color, alpha=0.5, linewidths=0,
                      label=f"{name}, r = {plus_minus(correlation, form='.2f')}")  # fmt: skip
    style.diagonal(right, result.sample)
    right.set(xlabel="exact effect of closing an edge (nats)", ylabel="by gradients (nats)")
    right.legend(loc="upper left")
    style.footnote(figure, str(result.evidence))
    return figure


def _losses(axes: Axes, result: Edges, twins: Sequence[Result]) -> None:
    sizes = result.sizes
    for name, label, color in (
        ("by_integrated", "by integrated gradients", BLUE),
        ("by_attribution", "by attribution", BLACK),
        ("by_weight", "by mean weight", ORANGE),
    ):
        style.curve(axes, sizes, result, name, color, label=label)
    low, high = result.random.min(0), result.random.max(0)
    axes.plot(sizes, result.random.mean(0), color=GREY, marker=".", markersize=3, label="at random")
    axes.fill_between(sizes, low, high, color=GREY, alpha=0.3, linewidth=0)
    for i, twin in enumerate(twins):
        label = "untrained twins" if i == 0 else None
        axes.plot(twin.sizes, twin.by_integrated, color=GREEN, linewidth=0.8, label=label)  # pyright: ignore
    axes.axhline(result.margin, color=VERMILION, linewidth=0.8, linestyle="--")
    axes.axvline(result.smallest, color=VERMILION, linewidth=0.8, linestyle="--")
    note = f"{result.smallest:.0f} within {result.margin:g} nats "
    axes.annotate(note, (result.smallest, result.margin), xytext=(-2, -2), textcoords="offset points",
                  fontsize=6.5, color=VERMILION, ha="right", va="top")  # fmt: skip
    axes.set_xscale("symlog", linthresh=1)
    axes.set(
        xlim=(0, sizes.max() * 1.1),
        xlabel=f"edges kept, of {sizes.max():,}",
        ylabel="loss − loss of the whole model (nats)",
    )
    axes.legend(loc="lower left", bbox_to_anchor=(0, 0.12))
    axes.set_ylim(bottom=min(-0.06, 1.1 * float(result.by_integrated.min())))


@style.figure_of("edges", name="edge_circuit")
def edge_circuit(result: Edges) -> Figure:
    """The smallest circuit within the margin: streams as lanes, layers as columns, a line from source to
    target; wide where the integrated gradient is large, a colour for each head."""
    layers, heads, streams, _ = result.integrated.shape
    figure, axes = style.one_panel(style.PAGE, max(1.8, 0.28 * streams + 0.7))
    shown = sorted(result.circuit, key=lambda edge: -abs(result.integrated[edge]))[:DRAWN]
    most = max((abs(result.integrated[edge]) for edge in shown), default=1.0)
    colors = (BLACK, VERMILION, BLUE, GREEN, ORANGE)
    for edge in reversed(shown):
        layer, head, target, source = edge
        width = abs(result.integrated[edge]) / most
        axes.plot([layer + 0.06, layer + 0.94], [source, target], color=colors[head % len(colors)],
                  linewidth=0.3 + 2.7 * width, alpha=0.25 + 0.7 * width, solid_capstyle="butt")  # fmt: skip
    places = np.array([(x, s) for x in range(layers + 1) for s in range(streams)])
    axes.scatter(*places.T, s=14, color="white", edgecolors=GREY, linewidths=0.7, zorder=3)
    axes.set_yticks(range(streams), labels=[f"S{s}" for s in range(streams)])
    axes.set_xticks(np.arange(layers) + 0.5, labels=[f"layer {l}" for l in range(layers)])
    axes.tick_params(length=0)
    axes.invert_yaxis()
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    for head in range(heads):
        axes.plot([], [], color=colors[head % len(colors)], label=f"head {head}")
    axes.legend(ncols=heads, loc="lower right", bbox_to_anchor=(1, 1))
    part = "" if len(shown) == len(result.circuit) else f", the {len(shown)} strongest drawn"
    axes.set_title(f"{len(result.circuit)} of {result.integrated.size:,} edges{part}", loc="left")
    style.footnote(figure, f"source on the left, target on the right of each layer · {result.evidence}")
    return figure
