"""Figures of experiments: every cell is seen, and a model looks the same in all of them."""

from __future__ import annotations

import pytest

from srmlab.experiments import CellResult, SweepResult
from srmlab.experiments.catalogue import EXPERIMENTS
from srmlab.experiments.results import Run
from srmlab.figures.sweeps import LOOKS, sweep_figure


def result(name: str, scale="mini") -> SweepResult:
    """As if every cell of an experiment had been run with two seeds."""
    cells = [
        CellResult(
            cell.name, cell.series, cell.x, cell.paper, 1000, 10, 160, cell.model.to_dict(), {},
            [Run(seed, 3.0, 3.0 + 0.1 * seed + 0.01 * place, 60.0, [(1, 5.0), (10, 3.0)]) for seed in (0, 1)],
        )
        for place, cell in enumerate(EXPERIMENTS[name].cells(scale))
    ]  # fmt: skip
    about = {"source": "words", "vocab_size": 257, "references": {"bigram counts": 3.05}}
    return SweepResult(name, scale, 2 * len(cells), about, {}, cells)


@pytest.mark.parametrize("scale", ["mini", "small", "paper"])
@pytest.mark.parametrize("name", ["language-models", "family"])
def test_every_model_that_is_compared_has_a_look_of_its_own(name, scale):
    names = [cell.name for cell in EXPERIMENTS[name].cells(scale)]
    looks = [tuple(LOOKS[name].values()) for name in names]
    assert len(set(looks)) == len(names)


def test_a_model_has_the_same_colour_on_both_sides_of_a_figure():
    found = result("language-models")
    left, right = sweep_figure(found).axes
    for cell, line in zip(found.cells, left.lines, strict=True):
        dots = next(dots for dots in right.lines if list(dots.get_xdata()) == list(cell.losses))
        assert dots.get_color() == line.get_color() == LOOKS[cell.name]["color"]


def test_cells_of_a_series_at_one_place_stand_side_by_side_under_their_names():
    (axes,) = sweep_figure(result("training-depth"), "layers in training (n)").axes
    labels = axes.get_legend_handles_labels()[1]
    assert labels == ["fixed", "grow:2", "grow:2/1", "draw:2", "draw:2/1", "fixed, equal FLOP"]
    means = [line for line in axes.lines if line.get_label() in labels]
    at_eight = [float(line.get_xdata()[-1]) for line in means[:5]]
    assert at_eight[0] == 8
    assert len(set(at_eight)) == 5


@pytest.mark.parametrize("name", ["connection", "language-models", "training-depth", "backprop-depth"])
def test_figures_say_which_experiment_they_are_of_and_nothing_overlaps_it(name):
    figure = sweep_figure(result(name), EXPERIMENTS[name].axis)
    figure.draw_without_rendering()
    (print_,) = figure.texts
    assert print_.get_text().startswith(f"{name}, mini; ")
    box = print_.get_window_extent()
    assert box.x1 <= figure.bbox.x1
    for other in [*figure.axes, *figure.legends]:
        assert other.get_window_extent().y0 >= box.y1
