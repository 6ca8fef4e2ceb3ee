"""The worth of edges: against cutting them one by one and against finite differences; circuits against a loss
computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from constructed import SMALL, build

from models.small_models import HYPER_TINY, VOCAB, small
from srmlab.analysis import Edges, cut_edges, edges, gate_edges, load
from srmlab.analysis.edges import shrinking, smallest_within
from srmlab.cli.analyze import Command
from srmlab.errors import UserError
from srmlab.figures import figures_of
from subjects import trained_run

EDGES = (SMALL.depth, SMALL.stream_heads, SMALL.streams, SMALL.streams)


@pytest.fixture(scope="module")
def text() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(0, SMALL.vocab_size, (3, 12), generator=generator) for _ in range(2)]


@pytest.fixture(scope="module")
def model():
    return build()


@pytest.fixture(scope="module")
def found(model, text) -> Edges:
    return edges(model, text, draws=2, margin=0.01)


def loss(model, batches, hooks) -> float:
    """Mean over the targets of batches of one shape."""
    with model.hooks(hooks), torch.no_grad():
        return float(np.mean([float(model(b, return_type="loss")) for b in batches]))


def test_the_exact_effect_is_that_of_cutting_the_edge(model, text, found):
    before = loss(model, text[:1], [])
    for edge in [(0, 0, 0, 1), (1, 1, 2, 2), (3, 0, 3, 0)]:
        cut = loss(model, text[:1], cut_edges(model, [edge], renormalise=False))
        assert found.exact[edge] == pytest.approx(cut - before, abs=2e-6)


def test_attribution_is_the_slope_of_the_loss_in_the_gate(text, found):
    wide = build().double()
    for edge in [(0, 1, 3, 1), (2, 0, 1, 3), (3, 1, 0, 0)]:
        losses = []
        for gate in (1 - 1e-3, 1 + 1e-3):
            gates = torch.ones(EDGES, dtype=torch.float64)
            gates[edge] = gate
            losses.append(loss(wide, text[:1], gate_edges(wide, gates)))
        slope = (losses[1] - losses[0]) / 2e-3
        assert found.attribution[edge] == pytest.approx(-slope, abs=2e-6)


def test_integrated_gradients_add_up_to_what_all_edges_are_worth(model, text, found):
    none = loss(model, text[:1], gate_edges(model, torch.zeros(EDGES)))
    full = loss(model, text[:1], [])
    assert found.integrated.sum() == pytest.approx(none - full, rel=0.02)
    assert found.chosen[-1] == pytest.approx(none - full, abs=1e-5)
    assert found.cost_of_none == pytest.approx(
        loss(model, text[1:], gate_edges(model, torch.zeros(EDGES))) - loss(model, text[1:], []), abs=1e-5
    )


def test_a_circuit_costs_what_the_model_loses_when_all_else_is_closed(model, text, found):
    gates = torch.zeros(EDGES)
    for edge in found.circuit:
        gates[edge] = 1
    hooks = gate_edges(model, gates)
    assert len(found.circuit) == found.smallest
    assert found.cost == pytest.approx(loss(model, text[1:], hooks) - loss(model, text[1:], []), abs=1e-5)
    within = loss(model, text[:1], hooks) - loss(model, text[:1], [])
    assert within <= found.margin + 1e-6
    assert set(shrinking(gates.numel())) <= set(found.sizes.tolist())
    assert (np.diff(found.sizes) < 0).all()
    for curve, smallest in ((found.chosen, found.smallest), (found.random.mean(0), found.smallest_random)):
        at = found.sizes.tolist().index(smallest)
        assert curve[at] <= found.margin
        if smallest:  # FINE fewer are too few
            assert smallest - found.sizes[at + 1] <= 4
            assert curve[at + 1] > found.margin
    for curve in (found.by_attribution, found.by_integrated, found.by_weight, *found.random):
        assert curve[0] == 0
        assert curve[-1] == pytest.approx(found.cost_of_none)


def test_an_edge_held_at_its_mean_still_speaks(model, text):
    found = edges(model, text, by="mean", exact=40, draws=1)
    assert np.isfinite(found.sample).sum() == 40
    assert np.isfinite(found.exact).sum() == 40 + len(found.named)
    assert np.isfinite(found.exact.flat[np.argsort(-found.integrated, axis=None)[:5]]).all()
    assert "exact –" not in found.summary()
    # The first layer reads z_0: its weights are their own means.
    assert np.nanmax(np.abs(found.exact[0])) < 1e-6
    assert np.abs(found.attribution[0]).max() < 1e-6
    with torch.no_grad():
        _, cache = model.run_with_cache(torch.cat(text[:1]), "layers.*.connection.pattern")
    levels = torch.stack([pattern.mean((0, 1)) for pattern in cache.values()])
    assert np.allclose(found.weight, levels, atol=1e-6)
    constant = loss(model, text[1:], gate_edges(model, torch.zeros(EDGES), levels))
    assert found.cost_of_none == pytest.approx(constant - loss(model, text[1:], []), abs=1e-5)


def test_edges_are_those_of_any_model_with_patterns_also_one_that_has_a_single_depth(text):
    model = small(HYPER_TINY).float()
    text = [tokens % VOCAB for tokens in text]
    found = edges(model, text, draws=1)
    before = loss(model, text[:1], [])
    for edge in [(0, 0, 0, 0), (1, 0, 2, 1)]:
        cut = loss(model, text[:1], cut_edges(model, [edge], renormalise=False))
        assert found.exact[edge] == pytest.approx(cut - before, abs=2e-6)
    assert np.abs(found.attribution).max() > 0
    none = loss(model, text[:1], gate_edges(model, torch.zeros(found.weight.shape)))
    assert found.chosen[-1] == pytest.approx(none - before, abs=1e-5)


def test_text_without_a_next_token_is_refused(model):
    with pytest.raises(UserError, match="half of the text has no next token: give windows of at least two"):
        edges(model, [torch.tensor([[3]]), torch.tensor([[3, 4]])])


def test_the_circuit_has_the_one_edge_that_matters(text):
    model = build(depth=2, gradient_depth=1)
    with torch.no_grad():  # only the last layer's connection says anything, and only what stream 2 gives to 1
        weights = dict(model.layer.connection.named_parameters())
        weights["out.weight"][[0, 2, 3]] = 0
        weights["qkv.weight"][[0, 1, 3], :, 2 * SMALL.stream_heads * SMALL.head_dim :] = 0
        model.embedding.weight.mul_(4)
        pairs = [(tokens, model(tokens).argmax(-1)) for tokens in text]  # it is right as it is
    found = edges(model, pairs, draws=1, margin=1e-6, exact=8)
    assert {edge[2:] for edge in found.circuit} == {(1, 2)}
    assert len(found.circuit) <= 2 * SMALL.stream_heads
    silent = np.ones(found.attribution.shape, bool)
    silent[:, :, 1, 2] = False
    assert np.abs(found.attribution[silent]).max() < 1e-6


@pytest.mark.parametrize(
    ("costs", "place"), [([0, 0.1, 0.2], 1), ([0, 0.3, 0.1], 0), ([0, -1, -2], 2), ([0, np.nan, 0], 0)]
)
def test_the_smallest_set_is_where_all_larger_ones_are_within_the_margin_too(costs, place):
    assert smallest_within(np.array(costs), 0.1) == place


def test_a_result_is_saved_summed_up_and_drawn(found, tmp_path):
    again = load(found.save(tmp_path / "edges"))
    assert again.circuit == found.circuit
    assert again.summary() == found.summary()
    assert "edges keep the loss within 0.01 nats" in found.summary()
    for figure in figures_of("edges").values():
        figure(again).savefig(tmp_path / "figure.png")


def test_without_exact_effects_of_random_edges_there_is_no_agreement(found, tmp_path):
    unknown = replace(found, exact=np.full_like(found.exact, np.nan))
    assert np.isnan(unknown.agreement)
    assert "attribution –, integrated gradients –, mean weight –" in unknown.summary()
    figures_of("edges")["edges"](unknown).savefig(tmp_path / "figure.png")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"margin": 0.0}, "margin = 0.0: give nats above 0"),
        ({"by": "noise"}, "must be one of zero, mean"),
        ({"draws": 0}, "draws = 0"),
    ],
)
def test_wrong_calls_are_refused(model, text, options, message):
    with pytest.raises(UserError, match=message):
        edges(model, text, **options)


def test_text_of_one_batch_has_no_other_half(model, text):
    with pytest.raises(UserError, match="give two batches"):
        edges(model, text[:1])


def test_a_model_without_a_pattern_has_no_edges(text):
    with pytest.raises(UserError, match="a connection with a pattern"):
        edges(build(connection="mixing"), text)


def test_the_weights_of_a_puzzle_model_are_means_over_cells(text):
    model = build(causal=False, context=14, puzzle_positions=2)
    found = edges(model, [(board, board) for board in text], exact=1, draws=1)
    np.testing.assert_allclose(found.weight.sum(-1), 1, atol=1e-5)
    _, cache = model.run_with_cache(text[0], "layers.2.connection.pattern")
    expected = cache["layers.2.connection.pattern"][:, 2:].mean((0, 1))
    np.testing.assert_allclose(found.weight[2], expected, atol=1e-6)


def test_the_command_measures_edges_and_a_twin_when_asked(tmp_path):
    run = trained_run(tmp_path)
    command = Command(path=run, only=("edges",), tokens=64, exact=4, null=1, formats=("png",))
    answer = command.analyze(show=False)["results"]["edges"]
    assert "of 54 edges keep the loss" in answer["finding"]
    assert any(line.startswith("smallest ") for line in answer["twins"])
    assert (run / "figures" / "edge_circuit.png").is_file()
    (twin,) = (run / "analysis" / "null").glob("seed-*/edges.json")
    before = (run / "analysis" / "edges.json").stat().st_mtime_ns, twin.stat().st_mtime_ns
    assert command.analyze(show=False)["results"]["edges"] == answer
    assert ((run / "analysis" / "edges.json").stat().st_mtime_ns, twin.stat().st_mtime_ns) == before
    command.margin = 0.5  # another margin is another result
    command.analyze(show=False)
    assert load(run / "analysis" / "edges").margin == load(twin).margin == 0.5
    assert "Edges (" in (run / "analysis" / "summary.txt").read_text()
