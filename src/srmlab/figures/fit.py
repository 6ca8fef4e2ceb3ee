"""The loss of runs against tokens, the laws fitted to them, and where these lead."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from srmlab.experiments.fit import Curve, Fit
from srmlab.figures import style
from srmlab.figures.palette import LINES


@style.styled
def fit_figure(found: Sequence[tuple[Curve, Fit]], tokens: float) -> Figure:
    """Dots: what was measured; lines: the laws, with 95 % of the bootstrap's draws."""
    figure, axes = style.one_panel(style.COLUMN, 2.6)
    for number, (curve, fit) in enumerate(found):
        color = LINES[number % len(LINES)]
        places = np.geomspace(fit.first, max(tokens, fit.last), 100)
        bands = np.array([fit.interval(float(place)) for place in places])
        axes.plot(curve.tokens, curve.loss, ".", color=color, markersize=3, label=curve.name)
        axes.plot(places, fit.law(places), color=color, linewidth=0.9)
        axes.fill_between(places, bands[:, 0], bands[:, 1], color=color, alpha=0.2, linewidth=0)
    axes.set(xscale="log", xlabel="tokens", ylabel="training loss (nats)")
    style.grid_behind(axes, "both")
    axes.legend()
    style.footnote(figure, "beyond the dots: extrapolated; band: 95 % of the fit's bootstrap alone")
    return figure
