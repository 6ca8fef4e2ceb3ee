"""Ablation bars, ranked, with the cumulative share; attribution bars; the interaction of stream pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from srmlab.analysis.ablation import Ablation
from srmlab.analysis.attribution import Attribution
from srmlab.analysis.interaction import Interaction
from srmlab.analysis.readout import BITS
from srmlab.analysis.result import Result
from srmlab.figures import style
from srmlab.figures.palette import BLACK, BLUE, GREY, SIGNED_MAP, VERMILION

TIER_COLORS = ("#08519c", "#3182bd", "#6baed6", "#bdd7e7")


@style.figure_of("ablation", "ablation_everywhere")
def ablation_bars(result: Ablation, twins: Sequence[Result] = ()) -> Figure:
    """Bars by rank in the colours of their tiers, with standard errors; the line is the cumulative share of
    all impact. Untrained twins are grey, by their own ranks."""
    ranking, count = result.ranking, len(result.kl)
    figure, axes = style.one_panel(style.COLUMN if count <= 16 else style.PAGE, 2.2)
    tier_of = {g: t for t, tier in enumerate(result.tiers()) for g in tier}
    colors = [TIER_COLORS[min(tier_of[g], len(TIER_COLORS) - 1)] for g in ranking]
    style.bars(axes, range(count), result, "kl", colors, at=ranking, scale=BITS)
    style.range_of_twins(axes, range(count), twins, "ranked_bits")
    names = [
        result.names[g].replace("S", "") if max(map(len, result.groups)) == 1 else result.names[g]
        for g in ranking
    ]
    axes.set_xticks(range(count), names, fontsize=6 if count <= 32 else 4.5)
    axes.set(xlabel="stream, ranked", ylabel="ablation KL (bits)", xlim=(-0.7, count - 0.3))
    share = axes.twinx()
    share.plot(
        range(count), result.cumulative_share, color=VERMILION, marker=".", markersize=3.5, linewidth=1
    )
    share.set_ylim(0, 1.05)
    style.in_percent(share.yaxis)
    share.set_ylabel("cumulative share", color=VERMILION)
    share.tick_params(axis="y", colors=VERMILION)
    share.spines["right"].set_visible(True)
    share.spines["right"].set_color(VERMILION)
    half = result.groups_for(0.5)
    share.plot(
        [half - 1, half - 1, count - 0.3], [0, 0.5, 0.5], color=GREY, linewidth=0.6, linestyle=(0, (3, 2))
    )
    note = "shades: tiers of similar impact; dashed: half of all"
    style.footnote(figure, note + ("; grey: untrained" if twins else ""))
    return figure


@style.figure_of("attribution")
def attribution_bars(result: Attribution) -> Figure:
    """What each stream adds to the correct token's logit, above the vocabulary's mean."""
    figure, axes = style.one_panel(style.COLUMN if len(result.centred) <= 16 else style.PAGE, 2.0)
    streams = np.arange(len(result.centred))
    colors = [BLUE if value >= 0 else VERMILION for value in result.centred]
    style.bars(axes, streams, result, "centred", colors)
    axes.axhline(0, color=BLACK, linewidth=0.6)
    axes.set_xticks(streams, [str(s) for s in streams])
    axes.set(xlabel="stream", ylabel="added to the correct logit,\nabove the vocabulary's mean")
    return figure


@style.figure_of("interaction")
def interaction_matrix(result: Interaction) -> Figure:
    """Joint KL less the sum of the two, for all pairs; orange where two streams cover for each other."""
    values = result.interaction * BITS
    limit = float(np.abs(values).max()) or 1.0
    figure, axes = style.one_panel(style.COLUMN, 2.7, "compressed")
    shown = np.ma.masked_where(np.eye(len(values), dtype=bool), values)
    axes.set_facecolor("#e6e6e6")
    image = axes.imshow(shown, cmap=SIGNED_MAP, vmin=-limit, vmax=limit)
    ticks = style.sparse_ticks(len(values), at_most=8)
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    axes.set(xlabel="stream", ylabel="stream")
    for spine in axes.spines.values():
        spine.set_visible(True)
    style.color_bar(figure, image, axes, "joint KL − sum of both (bits)", fraction=0.046, pad=0.03)
    return figure
