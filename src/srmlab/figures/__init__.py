"""Figures of results, drawn with matplotlib to the standard of a printed paper. One file a family of figures.

result.figure()                                → a matplotlib Figure
srmlab.figures.save(figure, "figures/routing")    → routing.png, routing.svg, routing.pdf
srmlab.figures.save_all(result, "figures")        → every figure of a result
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from srmlab.analysis.result import Result
from srmlab.errors import UserError
from srmlab.figures import (  # noqa: F401  (each registers what it draws)
    ablation,
    alignment,
    dictionaries,
    drift,
    edges,
    induction,
    lens,
    patching,
    puzzles,
    routing,
    similarity,
    switches,
    training,
    translations,
)
from srmlab.figures.plain import plain_panels
from srmlab.figures.style import FIGURES, FORMATS, figure_of, save
from srmlab.figures.training import read_losses, rolling_mean, training_curves

__all__ = [
    "FIGURES",
    "FORMATS",
    "draw",
    "draw_missing",
    "figure_of",
    "figures_of",
    "paths",
    "read_losses",
    "remove_all",
    "rolling_mean",
    "save",
    "save_all",
    "training_curves",
    "training_figure",
]


def figures_of(kind: str) -> dict[str, Callable[..., Figure]]:
    """The figures of a kind of result by name, the main one first; a plain one if it has none of its own."""
    plain = {kind: plain_panels} if kind in Result.kinds and Result.kinds[kind].drawn else {}
    return FIGURES.get(kind, plain)


def draw(result: Result, **options: Any) -> Figure:
    """The main figure of a result."""
    for figure in figures_of(result.kind).values():
        return figure(result, **options)
    raise UserError(f"there is no figure for {result.kind}; print(result.summary()) shows the numbers")


def save_all(result: Result, directory: str | Path, formats: Iterable[str] = FORMATS) -> list[Path]:
    """Every figure of a result, by its name, in a directory."""
    written = []
    for name, function in figures_of(result.kind).items():
        written += save(function(result), Path(directory) / name, formats)
    return written


def paths(kind: str, directory: str | Path, formats: Iterable[str] = FORMATS) -> list[Path]:
    """The files of the figures of a kind of result."""
    return [Path(directory) / f"{name}.{suffix}" for name in figures_of(kind) for suffix in formats]


def draw_missing(
    result: Result, directory: str | Path, formats: Iterable[str], twins: Sequence[Result] = ()
) -> None:
    """The figures of a result that are not there yet; those with a place for untrained twins, with them."""
    for name, function in figures_of(result.kind).items():
        stem = Path(directory) / name
        if twins and "twins" in signature(function).parameters:
            save(function(result, twins=twins), stem, formats)
        elif missing := [kind for kind in formats if not stem.with_name(f"{name}.{kind}").is_file()]:
            save(function(result), stem, missing)


def remove_all(kind: str, directory: str | Path) -> None:
    """Remove the figures of a kind of result, in every format: they are of another text or model."""
    for file in paths(kind, directory):
        file.unlink(missing_ok=True)


def training_figure(run: Path, directory: str | Path, formats: Iterable[str] = FORMATS) -> None:
    """The losses of a run, if it has a log."""
    if (run / "metrics.jsonl").is_file():
        curve = read_losses(run / "metrics.jsonl")
        if len(curve[0]):
            save(training_curves({run.name: curve}), Path(directory) / "training", formats)
