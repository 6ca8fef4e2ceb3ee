"""Curves over depth and over training: loss against depth, training curves from metrics.jsonl, dynamics of a
run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from srmlab.analysis.depth import Depth
from srmlab.analysis.dynamics import Dynamics
from srmlab.analysis.readout import BITS
from srmlab.figures import style
from srmlab.figures.palette import BLACK, BLUE, GREY, LINES, ORANGE, SHARE_MAP, VERMILION
from srmlab.storage.metrics_file import Losses

Curve = tuple[np.ndarray, np.ndarray]  # steps, losses


@style.figure_of("depth")
def depth_curve(result: Depth) -> Figure:
    """Above: loss against depth. Below: agreement with the trained depth, and where predictions settle."""
    figure = style.new_figure(style.COLUMN, 2.9)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    x = result.depths
    style.curve(top, x, result, "loss", BLUE, marker="o", markersize=2.5)
    top.set_ylabel("loss (nats)")
    spread = np.where(result.settled > 0, np.nan_to_num(result.standard_error("settled")), np.nan)
    style.bars(bottom, x, result, "settled", ORANGE, yerr=spread, width=0.7, label="settles here")
    style.curve(bottom, x, result, "agreement", BLACK, label="agrees with trained depth")
    bottom.set(ylabel="share of tokens", ylim=(0, 1.03), xlabel=f"depth ({result.unit})")
    bottom.legend(loc="lower left", bbox_to_anchor=(0, 0.98), ncols=2, borderpad=0.2)
    for axes in (top, bottom):
        axes.axvline(result.trained, color=GREY, linestyle=(0, (3, 2)), linewidth=0.8)
        style.grid_behind(axes)
    place = {"xycoords": ("data", "axes fraction"), "xytext": (3, -2), "textcoords": "offset points"}
    top.annotate("trained", (result.trained, 1), **place, fontsize=6, color=GREY, va="top")
    return figure


@style.styled
def training_curves(runs: Mapping[str, Curve]) -> Figure:
    """Training loss against steps on a log axis, smoothed by a rolling mean over 2 % of a run's steps (the
    paper's 200 of its 10,000), early on over the last fifth of those so far; each step faintly behind."""
    figure, axes = style.one_panel(style.COLUMN, 2.5)
    for i, (name, (steps, losses)) in enumerate(runs.items()):
        color, width = LINES[i % len(LINES)], rolling_window(len(losses))
        axes.plot(np.maximum(steps, 1), losses, color=color, alpha=0.25, linewidth=0.5)
        label = f"{name}, mean of up to {width} steps"
        windows = np.minimum(width, 1 + np.arange(len(losses)) // 5)
        axes.plot(np.maximum(steps, 1), rolling_mean(losses, windows), color=color, label=label)
    style.over_steps(axes)
    axes.legend(ncols=min(2, max(1, len(runs))), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


@style.figure_of("dynamics")
def dynamics_curves(result: Dynamics) -> Figure:
    """Over training steps: loss, outgoing frequency and impact by stream, and the drift's profile over
    layers."""
    figure = style.new_figure(style.PAGE, 3.6)
    grid = figure.subplots(2, 2)
    steps = result.steps
    loss, hubs, impact, drift = grid.ravel()
    style.curve(loss, steps, result, "loss", BLUE)
    loss.set_ylabel("loss (nats)")
    for axes, name, scale, title in (
        (hubs, "outgoing", 1.0, "outgoing frequency"),
        (impact, "ablation", BITS, "ablation KL (bits)"),
    ):
        values = getattr(result, name) * scale
        axes.set_ylabel(title)
        if not np.isfinite(values).all():
            axes.text(0.5, 0.5, "no learned connection", transform=axes.transAxes, ha="center")
            continue
        strongest = int(values[-1].argmax())
        axes.plot(steps, values, color=GREY, linewidth=0.7, alpha=0.7)
        label = f"S{strongest}, strongest at the end"
        style.curve(axes, steps, result, name, VERMILION, at=np.s_[:, strongest], scale=scale, label=label)
        axes.legend(loc="lower right", bbox_to_anchor=(1, 0.97), borderpad=0)
    profile = result.profile
    image = drift.imshow(profile.T, aspect="auto", origin="lower", cmap=SHARE_MAP, vmin=0)
    ticks = style.sparse_ticks(len(steps))
    drift.set_xticks(ticks, [str(steps[i]) for i in ticks], rotation=45 if len(ticks) > 6 else 0)
    drift.set_yticks(range(profile.shape[1]), [f"{t}→{t + 1}" for t in range(profile.shape[1])])
    drift.set_ylabel("transition")
    if result.boundary:
        drift.axhline(result.boundary - 1, color=GREY, linestyle=":", linewidth=1.0)
    figure.colorbar(image, ax=drift, pad=0.02, label="cosine drift")
    for axes in grid.ravel():
        axes.set_xlabel("training step")
    return figure


def rolling_window(steps: int) -> int:
    """2 % of the steps, of 5 to 200."""
    return min(200, max(5, steps // 50))


def rolling_mean(values: np.ndarray, window: int | np.ndarray) -> np.ndarray:
    """The mean of the last `window` values (a number for each, or one for all), of fewer at the start."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)


def read_losses(metrics: str | Path) -> Curve:
    """Steps and training losses from a metrics.jsonl; evaluations, and steps that were not taken, are passed
    over."""
    found = Losses.read(Path(metrics))
    return np.array(found.steps, dtype=int), np.array(found.training, dtype=float)
