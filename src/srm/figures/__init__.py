"""Figures of results, drawn with matplotlib to the standard of a printed paper. One file a family of figures.

result.figure()                          → a matplotlib Figure
srm.figures.save(figure, "figures/routing")    → routing.png, routing.svg, routing.pdf
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure

from srm.analysis.result import Result
from srm.figures.routing import routing_wall
from srm.figures.style import save

FIGURES: dict[
    str, dict[str, Callable[..., Figure]]
] = {  # kind of result → its figures by name, the main one first
    "routing": {"routing": routing_wall},
}

__all__ = ["FIGURES", "draw", "routing_wall", "save"]


def draw(result: Result, **options: Any) -> Figure:
    """The main figure of a result."""
    return next(iter(FIGURES[result.kind].values()))(result, **options)
