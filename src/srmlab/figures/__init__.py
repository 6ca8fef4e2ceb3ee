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
from srmlab.figures.ablation import ablation_bars, attribution_bars, interaction_matrix
from srmlab.figures.alignment import alignment_maps, connection_by_layer
from srmlab.figures.dictionaries import dictionary_bars, sparsity_curves, transcoder_panels
from srmlab.figures.drift import drift_curves, drift_kl_curves
from srmlab.figures.edges import edge_circuit, edge_curves
from srmlab.figures.induction import induction_map
from srmlab.figures.lens import lens_curves, lens_map
from srmlab.figures.patching import patch_attribution, patch_maps, path_maps
from srmlab.figures.plain import plain_panels
from srmlab.figures.puzzles import cell_probe_maps, cells_curves, fixed_points_curves
from srmlab.figures.routing import routing_wall
from srmlab.figures.similarity import (
    effective_sources_curve,
    stream_similarity_curve,
    token_similarity_curve,
)
from srmlab.figures.style import save
from srmlab.figures.switches import switch_panels
from srmlab.figures.training import depth_curve, dynamics_curves, read_losses, rolling_mean, training_curves
from srmlab.figures.translations import translation_panels

FIGURES: dict[
    str, dict[str, Callable[..., Figure]]
] = {  # kind of result → its figures by name, the main one first
    "routing": {"routing": routing_wall},
    "alignment": {"alignment": alignment_maps, "connection_by_layer": connection_by_layer},
    "drift": {"drift": drift_curves, "drift_kl": drift_kl_curves},
    "ablation": {"ablation": ablation_bars},
    "ablation_everywhere": {"ablation_everywhere": ablation_bars},
    "token_similarity": {"token_similarity": token_similarity_curve},
    "stream_similarity": {"stream_similarity": stream_similarity_curve},
    "effective_sources": {"effective_sources": effective_sources_curve},
    "attribution": {"attribution": attribution_bars},
    "interaction": {"interaction": interaction_matrix},
    "induction": {"induction": induction_map},
    "logit_lens": {"logit_lens_map": lens_map, "logit_lens_curves": lens_curves},
    "depth": {"depth": depth_curve},
    "cells": {"cells": cells_curves},
    "fixed_points": {"fixed_points": fixed_points_curves},
    "cell_probe": {"cell_probe": cell_probe_maps},
    "dynamics": {"dynamics": dynamics_curves},
    "dictionary": {"dictionary": dictionary_bars},
    "sparsity": {"sparsity": sparsity_curves},
    "switches": {"switches": switch_panels},
    "translations": {"translations": translation_panels},
    "edges": {"edges": edge_curves, "edge_circuit": edge_circuit},
    "patch_grid": {"patch_grid": patch_maps, "patch_attribution": patch_attribution},
    "path_grid": {"path_grid": path_maps},
    "transcoders": {"transcoders": transcoder_panels},
}

FORMATS = ("png", "svg", "pdf")

__all__ = [
    "FIGURES",
    "FORMATS",
    "ablation_bars",
    "alignment_maps",
    "attribution_bars",
    "cell_probe_maps",
    "cells_curves",
    "connection_by_layer",
    "depth_curve",
    "dictionary_bars",
    "draw",
    "draw_beside",
    "draw_missing",
    "drift_curves",
    "drift_kl_curves",
    "dynamics_curves",
    "edge_circuit",
    "edge_curves",
    "figures_of",
    "fixed_points_curves",
    "induction_map",
    "interaction_matrix",
    "lens_curves",
    "lens_map",
    "patch_attribution",
    "patch_maps",
    "path_maps",
    "paths",
    "plain_panels",
    "read_losses",
    "remove_all",
    "rolling_mean",
    "routing_wall",
    "save",
    "save_all",
    "sparsity_curves",
    "switch_panels",
    "training_curves",
    "training_figure",
    "transcoder_panels",
    "translation_panels",
]


def figures_of(kind: str) -> dict[str, Callable[..., Figure]]:
    """The figures of a kind of result by name, the main one first; a plain one if it has none of its own."""
    plain = {kind: plain_panels} if kind in Result.kinds and Result.kinds[kind].drawn else {}
    return FIGURES.get(kind, plain)


def draw(result: Result, **options: Any) -> Figure:
    """The main figure of a result."""
    for figure in figures_of(result.kind).values():
        return figure(result, **options)
    raise UserError(f"there is no figure of {result.kind}; print(result.summary()) shows what was found")


def save_all(result: Result, directory: str | Path, formats: Iterable[str] = FORMATS) -> list[Path]:
    """Every figure of a result, by its name, in a directory."""
    written = []
    for name, function in figures_of(result.kind).items():
        written += save(function(result), Path(directory) / name, formats)
    return written


def paths(kind: str, directory: str | Path, formats: Iterable[str] = FORMATS) -> list[Path]:
    """The files of the figures of a kind of result."""
    return [Path(directory) / f"{name}.{suffix}" for name in figures_of(kind) for suffix in formats]


def draw_missing(result: Result, directory: str | Path, formats: Iterable[str] = FORMATS) -> None:
    """The figures of a result in the formats in which one of them is not there yet."""
    files = paths(result.kind, directory, formats)
    if missing := {file.suffix[1:] for file in files if not file.is_file()}:
        save_all(result, directory, sorted(missing))


def draw_beside(
    result: Result, twins: Sequence[Result], directory: str | Path, formats: Iterable[str] = FORMATS
) -> None:
    """The figures that have a place for untrained twins, with them."""
    for name, function in figures_of(result.kind).items():
        if "twins" in signature(function).parameters:
            save(function(result, twins=twins), Path(directory) / name, formats)


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
