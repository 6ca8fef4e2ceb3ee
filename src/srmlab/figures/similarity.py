"""Curves over depth: similarity of tokens, similarity of streams, effective number of sources. With untrained
twins, their range is a grey band.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from srmlab.analysis.effective_sources import EffectiveSources
from srmlab.analysis.result import Result
from srmlab.analysis.stream_similarity import StreamSimilarity
from srmlab.analysis.token_similarity import TokenSimilarity
from srmlab.figures import style
from srmlab.figures.palette import BLUE, GREY


@style.figure_of("token_similarity")
def token_similarity_curve(result: TokenSimilarity, twins: Sequence[Result] = ()) -> Figure:
    figure, axes = by_depth(
        result, twins, "cosine between tokens", result.cosine, "streams; dotted: all alike"
    )
    axes.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
    return figure


@style.figure_of("stream_similarity")
def stream_similarity_curve(result: StreamSimilarity, twins: Sequence[Result] = ()) -> Figure:
    pairs = np.triu_indices(len(result.streams), 1)
    return by_depth(result, twins, "cosine between streams", result.cosine[:, *pairs], "pairs of streams")[0]


@style.figure_of("effective_sources")
def effective_sources_curve(result: EffectiveSources, twins: Sequence[Result] = ()) -> Figure:
    each = result.number.reshape(len(result.number), -1)
    faint = "heads and targets; dotted: all read alike"
    figure, axes = by_depth(result, twins, "streams read at a token", each, faint)
    axes.axhline(result.weight.shape[-1], color=GREY, linewidth=0.8, linestyle=":")
    return figure


def by_depth(
    result: Result, twins: Sequence[Result], label: str, each: np.ndarray, faint: str
) -> tuple[Figure, Axes]:
    """The mean by depth with its standard error, every part of it faintly, and the twins' range."""
    figure, axes = style.one_panel(style.COLUMN, 2.2)
    places = np.arange(1, len(each) + 1)
    axes.plot(places, each, color=BLUE, alpha=0.2, linewidth=0.5)
    style.curve(axes, places, result, "by_depth", BLUE, label="trained")  # all three have it
    style.range_of_twins(axes, places, twins, "by_depth", label="untrained twins")
    if twins:
        axes.legend(ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    axes.set(xlabel="depth", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.ticklabel_format(axis="y", useOffset=False)
    style.grid_behind(axes)
    style.footnote(figure, f"faint: single {faint}")
    return figure, axes
