from __future__ import annotations

import dataclasses
import json
from inspect import signature

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from PIL import Image

import srmlab
import srmlab.analysis
import srmlab.dictionaries
import srmlab.experiments.fit
import srmlab.figures
from srmlab.figures.fit import fit_figure
from srmlab.figures.palette import SIGNED_MAP
from srmlab.models import SRMConfig

CONFIG = SRMConfig(
    vocab_size=61,
    context=16,
    embedding_dim=16,
    streams=3,
    stream_dim=8,
    mlp_dim=8,
    token_heads=1,
    stream_heads=2,
    head_dim=8,
    order="ABC",
    depth=4,
    gradient_depth=2,
)


@pytest.fixture(scope="module")
def results():
    model = srmlab.build(CONFIG)
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(0, 61, (2, 12), generator=generator) for _ in range(2)]
    found = srmlab.analysis.survey(model, batches)
    found["dynamics"] = srmlab.analysis.dynamics(
        [(0, model), (5, srmlab.build(CONFIG.replace(init_seed=1)))], batches
    )
    dictionary = srmlab.dictionaries.learn(model, lambda step: batches[step % 2], steps=4, features=16, k=2)
    found["dictionary"] = srmlab.dictionaries.quality(model, dictionary, batches)
    return found


def texts(figure) -> set[str]:
    return {text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))}


# Drawn in tests of their own: they need puzzles, prompts or transcoders, or are measured only when asked for
ELSEWHERE = {
    "cells", "fixed_points", "cell_probe", "induction", "sparsity", "switches", "translations", "edges",
    "patch_grid", "path_grid", "transcoders",
}  # fmt: skip


def test_every_result_with_a_figure_draws_it(results):
    plain = {"routing_controls"}  # two numbers each, drawn without a figure of their own
    drawn = set(results) - {"states"} - plain
    assert set(srmlab.figures.FIGURES) == drawn | ELSEWHERE
    for name in drawn:
        assert results[name].figure().axes


def test_places_that_have_names_are_bars_with_them(results):
    figure = results["routing_controls"].figure()
    for axes in figure.axes:
        assert [label.get_text() for label in axes.get_xticklabels()] == ["uniform", "shuffled"]
        assert len(axes.patches) == 2
    assert any("loss change: nats" in text for text in texts(figure))


def test_curves_over_depth_name_whole_layers_and_whole_numbers():
    model = srmlab.build(CONFIG.replace(depth=3))
    found = srmlab.analysis.stream_similarity(model, [torch.arange(24).view(2, 12)])
    alike = 0.9999 + 1e-6 * np.arange(3)[:, None, None]  # next to no difference
    figure = dataclasses.replace(found, cosine=np.broadcast_to(alike, found.cosine.shape)).figure()
    figure.canvas.draw()
    (axes,) = figure.axes
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert {"1", "2", "3"} <= set(names) <= set("01234")  # one more on either side is not drawn
    assert axes.yaxis.get_offset_text().get_text() == ""


def test_figures_are_saved_as_png_svg_and_pdf_with_embedded_fonts(results, tmp_path):
    paths = srmlab.figures.save_all(results["ablation"], tmp_path)
    assert [path.name for path in paths] == ["ablation.png", "ablation.svg", "ablation.pdf"]
    png, svg, pdf = (path.read_bytes() for path in paths)
    assert png.startswith(b"\x89PNG")
    assert b"<text" in svg
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf


def test_the_same_result_gives_the_same_files(results, tmp_path):
    for folder in ("a", "b"):
        srmlab.figures.save_all(results["drift"], tmp_path / folder)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_a_palette_makes_a_png_smaller_and_leaves_it_looking_the_same(results, tmp_path):
    figure, sizes, pixels = results["drift"].figure(), [], []
    for palette in (False, True):
        (path,) = srmlab.figures.save(figure, tmp_path / "drift", ("png",), palette=palette)
        sizes.append(path.stat().st_size)
        with Image.open(path) as image:
            assert round(image.info["dpi"][0]) == 300
            pixels.append(np.asarray(image.convert("RGB"), dtype=float))
    assert sizes[1] < 0.5 * sizes[0]
    assert np.abs(pixels[0] - pixels[1]).mean() < 1


def test_the_routing_wall_names_source_and_target(results):
    found = texts(results["routing"].figure())
    assert {"source", "head 1\ntarget", "layer 0*", "layer 3"} <= found


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", ["ablation", "connection_by_layer", "drift", "drift_kl", "token_similarity"])
def test_untrained_twins_are_seen_beside_the_model(results, name, count):
    kind = {"connection_by_layer": "alignment", "drift_kl": "drift"}.get(name, name)
    draw = srmlab.figures.figures_of(kind)[name]
    twins = [results[kind]] * count
    for alone, beside in zip(draw(results[kind]).axes, draw(results[kind], twins=twins).axes, strict=True):
        band = beside.collections[len(alone.collections) :]
        assert len(band) == (alone.get_ylabel() != "cumulative share")
        assert all(one.get_linewidth().min() > 0 for one in band)  # of one twin the band is a line


def test_small_print_is_within_the_figure(results):
    x = np.geomspace(1e5, 1e7, 20)
    law = srmlab.experiments.fit.fit_curve(x, 2 + 50 * x**-0.3)
    curve = srmlab.experiments.fit.Curve("a run", x, 2 + 50 * x**-0.3, 1e6)
    figures = [fit_figure([(curve, law)], 3e11)]
    for name in (
        "ablation",
        "drift",
        "alignment",
        "token_similarity",
        "stream_similarity",
        "effective_sources",
    ):
        for draw in srmlab.figures.figures_of(name).values():
            options = {"twins": [results[name]]} if "twins" in signature(draw).parameters else {}
            figures.append(draw(results[name], **options))
    for figure in figures:
        figure.draw_without_rendering()
        for text in figure.texts:
            assert text.get_window_extent().x1 <= figure.bbox.x1, text.get_text()


def test_the_smooth_training_loss_does_not_lag_behind_early_on():
    steps = np.arange(1, 4001)
    losses = 3 + 3 / np.sqrt(steps)
    smooth = srmlab.figures.training_curves({"x": (steps, losses)}).axes[0].lines[1].get_ydata()
    assert np.abs(smooth - losses).max() < 0.1


def test_the_uniform_weight_is_marked_among_weights_only(results):
    assert "1/S = 0.333" in texts(results["routing"].figure(show="weight"))
    assert "1/S = 0.333" not in texts(results["routing"].figure())


def test_a_transposed_wall_swaps_maps_and_labels_together(results):
    plain, turned = (results["routing"].figure(transpose=flag) for flag in (False, True))
    a, b = (figure.axes[5].images[0].get_array() for figure in (plain, turned))
    np.testing.assert_array_equal(a, b.T)
    assert plain.axes[4].get_xlabel() == "source"
    assert turned.axes[4].get_ylabel() == "head 1\nsource"


def test_alignment_maps_are_symmetric_and_the_connections_small_cosines_have_a_scale_of_their_own(results):
    left, right = (axes.images[0] for axes in results["alignment"].figure().axes[:2])
    most = np.abs(results["alignment"].connection).max()
    assert left.get_clim() == (-max(0.05, most), max(0.05, most))
    assert right.get_clim() == (-1, 1)
    assert left.get_cmap().name == right.get_cmap().name == SIGNED_MAP


def test_the_ablation_figure_ends_at_one_hundred_percent_in_the_order_of_the_ranking(results):
    figure = results["ablation"].figure()
    bars, share = figure.axes
    assert [label.get_text() for label in bars.get_xticklabels()] == [
        str(s) for s in results["ablation"].ranking
    ]
    assert share.lines[0].get_ydata()[-1] == pytest.approx(1)


def test_drawing_leaves_the_users_matplotlib_settings_alone(results):
    import matplotlib

    before = dict(matplotlib.rcParams)
    results["depth"].figure()
    assert dict(matplotlib.rcParams) == before


def test_training_curves_read_metrics_and_smooth_over_the_last_steps(tmp_path):
    rows = [{"step": step, "loss": float(step)} for step in range(1, 6)]
    lines = [json.dumps(row) for row in rows] + [
        json.dumps({"step": 5, "val": {"loss": 1.0}}),
        '{"step": 6, "lo',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    steps, losses = srmlab.figures.read_losses(tmp_path / "metrics.jsonl")
    assert steps.tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(srmlab.figures.rolling_mean(losses, 2), [1, 1.5, 2.5, 3.5, 4.5])
    figure = srmlab.figures.training_curves({"nano": (steps, losses)})
    assert figure.axes[0].get_xscale() == "log"


@pytest.mark.parametrize(("steps", "window"), [(10_000, 200), (40_000, 200), (560, 11), (60, 5)])
def test_the_rolling_mean_is_over_two_percent_of_a_run(steps, window):
    losses = np.linspace(5, 3, steps)
    figure = srmlab.figures.training_curves({"x": (np.arange(1, steps + 1), losses)})
    assert texts(figure) >= {f"x, mean of up to {window} steps"}
    smooth = figure.axes[0].lines[1].get_ydata()
    assert smooth[-1] == pytest.approx(losses[-window:].mean())


def test_all_panels_of_a_drift_figure_have_room_for_their_streams(results):
    curves = results["drift"].kl.copy()
    curves[1] += 10
    figure = dataclasses.replace(results["drift"], kl=curves).figure(metric="kl")
    assert figure.axes[1].get_yscale() == "log"
    low, high = figure.axes[1].get_ylim()
    assert 0 < low < curves[curves > 0].min()
    assert high > curves.max()


@pytest.mark.parametrize("name", sorted(srmlab.figures.FIGURES.keys() - ELSEWHERE))
def test_no_label_leaves_its_figure(results, name):
    for draw in srmlab.figures.FIGURES[name].values():
        figure = draw(results[name])
        figure.draw_without_rendering()
        named = [text for axes in figure.axes for text in (axes.title, axes.xaxis.label, axes.yaxis.label)]
        for text in filter(Text.get_text, named + figure.texts):
            box = text.get_window_extent()
            assert box.x0 >= -1, text
            assert box.y0 >= -1, text
            assert box.x1 <= figure.bbox.width + 1, text
            assert box.y1 <= figure.bbox.height + 1, text
