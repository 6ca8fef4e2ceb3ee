"""How good the dictionaries of the streams are: bars of what they explain and of what the model recovers."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from srmlab.dictionaries.quality import Quality
from srmlab.figures.style import BLUE, COLUMN, GREY, ORANGE, PAGE, footnote, new_figure, styled


@styled
def dictionary_bars(result: Quality) -> Figure:
    """For each stream the variance explained and the loss recovered, with standard errors; the dashed line is
    the loss recovered with all streams replaced at once."""
    count = len(result.recovered)
    figure = new_figure(COLUMN if count <= 16 else PAGE, 2.2)
    axes = figure.subplots()
    streams = np.arange(count)
    for shift, name, color, label in (
        (-0.2, "stream_explained", BLUE, "variance explained"),
        (0.2, "recovered", ORANGE, "loss recovered"),
    ):
        errors = np.nan_to_num(result.standard_error(name))
        axes.bar(
            streams + shift,
            getattr(result, name),
            yerr=errors,
            width=0.38,
            color=color,
            label=label,
            error_kw={"linewidth": 0.7},
        )
    axes.axhline(result.all_recovered, color=GREY, linestyle=(0, (3, 2)), linewidth=0.8)
    axes.set_xticks(streams, [str(s) for s in streams], fontsize=6 if count <= 32 else 4.5)
    axes.set_xlabel("stream")
    axes.set_ylim(top=1.0)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, borderpad=0.2)
    footnote(figure, f"{result.features} features, {result.k} in use; dashed: all streams replaced at once")
    return figure
