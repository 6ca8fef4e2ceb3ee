"""Induction: the score of every head of every attention call."""

from __future__ import annotations

from matplotlib.figure import Figure

from srmlab.analysis.induction import Induction
from srmlab.figures import style
from srmlab.figures.palette import SHARE_MAP


@style.figure_of("induction")
def induction_map(result: Induction) -> Figure:
    """Attention calls down, in their order; heads across, those of all streams side by side."""
    calls, heads = result.score.shape
    figure, axes = style.one_panel(style.COLUMN, min(5.5, 0.09 * calls + 1.2))
    image = axes.imshow(
        result.score, cmap=SHARE_MAP, vmin=0, vmax=max(float(result.score.max()), 1e-9), aspect="auto"
    )
    axes.set_xlabel("head")
    axes.set_xticks(style.sparse_ticks(heads, at_most=16))
    axes.set_ylabel("attention call")
    axes.set_yticks(style.sparse_ticks(calls, at_most=12))
    style.color_bar(figure, image, axes, "weight on what came next before")
    style.footnote(
        figure,
        f"uniform attention: {result.uniform:.3f}; second copy {result.text('gain', '+.2f')} nats easier",
    )
    return figure
