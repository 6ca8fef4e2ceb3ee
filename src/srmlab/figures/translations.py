"""Translations: the rank of every stream-to-stream map, and how near features come to features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from srmlab.analysis.result import Result
from srmlab.dictionaries.translations import Translations
from srmlab.figures import style
from srmlab.figures.palette import BLUE, GREY, SHARE_MAP, VERMILION


@style.figure_of("translations")
def translation_panels(result: Translations, twins: Sequence[Result] = ()) -> Figure:
    """Above, the effective rank by head; below, ranks beside the twins', cosines beside chance, and lifts."""
    heads = len(result.rank)
    figure = style.new_figure(style.PAGE, 4.0)
    above, below = np.asarray(figure.subfigures(2, 1)).ravel()
    maps = above.subplots(1, heads, squeeze=False)[0]
    for head, axes in enumerate(maps):
        axes.imshow(result.rank[head], cmap=SHARE_MAP, vmin=result.rank.min(), vmax=result.rank.max())
        axes.set(title=f"head {head}", xlabel="source", ylabel="target" if head == 0 else "")
    above.colorbar(maps[0].images[0], ax=list(maps), label=f"effective rank, of {result.dim}")
    left, middle, right = below.subplots(1, 3)
    bins = np.linspace(0, result.dim, 4 * result.dim + 1).tolist()
    left.hist(result.rank.ravel(), bins, color=BLUE, label="trained", density=True)
    for i, twin in enumerate(twins):
        assert isinstance(twin, Translations)
        label = "untrained twins" if i == 0 else None
        left.hist(twin.rank.ravel(), bins, color=GREY, alpha=0.5, label=label, density=True)
    ranks = np.concatenate([one.rank.ravel() for one in (result, *twins) if isinstance(one, Translations)])
    left.set(xlim=(ranks.min() - 0.5, ranks.max() + 0.5), xlabel="effective rank")
    left.set_yticks([])
    left.legend()
    if result.becomes:
        middle.scatter(result.chance.ravel(), result.match.ravel(), s=5, color=BLUE, alpha=0.6, linewidths=0)
        style.diagonal(middle, result.chance, result.match)
        middle.set(xlabel="best cosine, rotated features", ylabel="best cosine, features")
        lifts = [np.array(values)[np.isfinite(values)] for values in (result.lifts, result.other_lifts)]
        top = max(4.0, float(np.quantile(np.concatenate(lifts), 0.98))) if sum(map(len, lifts)) else 4.0
        edges = np.linspace(0, top, 30).tolist()
        right.hist(np.clip(lifts[0], 0, top), edges, color=BLUE, alpha=0.8, label="the feature it becomes")
        right.hist(np.clip(lifts[1], 0, top), edges, color=GREY, alpha=0.6, label="another feature")
        right.axvline(1, color=VERMILION, linewidth=0.8, linestyle="--")
        right.set_xlabel("lift: P(after | before) / P(after)")
        right.legend()
    style.footnote(figure, str(result.evidence))
    return figure
