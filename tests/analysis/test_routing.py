from __future__ import annotations

import numpy as np
import pytest
import torch
from constructed import build, force_pattern

import srmlab.analysis
from srmlab.analysis.routing import Routing
from srmlab.errors import UserError


def test_a_connection_forced_to_a_permutation_gives_that_routing_matrix(model, batches):
    permutation = torch.eye(4)[[2, 0, 3, 1]]  # target 0 listens to source 2, and so on
    force_pattern(model, permutation)
    found = srmlab.analysis.routing(model, batches)
    for maps in (found.frequency, found.weight):
        np.testing.assert_array_equal(maps, np.broadcast_to(permutation.numpy(), maps.shape))
    assert not found.standard_error("frequency").any()
    assert not found.self_routing.any()
    np.testing.assert_allclose(found.stability, 1.0)


def test_a_stream_that_all_others_listen_to_is_the_hub_and_the_unheard_are_sinks(model, batches):
    star = torch.zeros(4, 4)
    star[:, 2] = 1.0
    force_pattern(model, star)
    found = srmlab.analysis.routing(model, batches)
    np.testing.assert_allclose(found.outgoing, [0, 0, 1, 0])
    np.testing.assert_allclose(found.sink_score, [1 / 3, 1 / 3, -1, 1 / 3], atol=1e-12)
    assert found.hubs == [2]
    assert found.sinks == [0, 1, 3]
    assert found.self_routing.tolist() == [0, 0, 1, 0]
    assert "S2 100.0%" in found.summary()
    assert found.most_attention == 1
    force_pattern(model, torch.tensor([[0.1, 0.2, 0.3, 0.4]] * 2 + [[0.4, 0.3, 0.2, 0.1]] * 2))
    faint = srmlab.analysis.routing(model, batches, threshold=0.5)  # no edge is over it
    assert faint.most_attention == pytest.approx(0.25)
    assert not faint.outgoing.any()


def test_the_threshold_is_strict(model, batches):
    force_pattern(model, torch.full((4, 4), 0.25))
    assert srmlab.analysis.routing(model, batches, threshold=0.25).frequency.max() == 0
    assert srmlab.analysis.routing(model, batches, threshold=0.2499).frequency.min() == 1


def test_frequency_and_weight_are_those_of_the_cached_patterns(model, batches):
    found = srmlab.analysis.routing(model, batches, threshold=0.3)
    rows = []
    for tokens in batches:
        _, cache = model.run_with_cache(tokens, "layers.*.connection.pattern")
        rows.append(torch.stack([cache[f"layers.{l}.connection.pattern"] for l in range(4)]))
    patterns = torch.cat(rows, dim=1).flatten(1, 2)  # [L, tokens, H, target, source]
    np.testing.assert_allclose(found.frequency, (patterns > 0.3).double().mean(1), atol=1e-6)
    np.testing.assert_allclose(found.weight, patterns.double().mean(1), atol=1e-6)


def test_standard_errors_are_those_of_the_sequence_means(model, batches):
    found = srmlab.analysis.routing(model, batches)
    _, cache = model.run_with_cache(torch.cat(batches), "layers.2.connection.pattern")
    means = cache["layers.2.connection.pattern"].double().mean(1)  # [sequence, H, target, source]
    expected = means.std(0, correction=1) / len(means) ** 0.5
    np.testing.assert_allclose(found.standard_error("weight")[2], expected, rtol=1e-4)


def test_layer_zero_is_marked_as_the_same_for_every_token_unless_it_reads_the_input(model, batches):
    found = srmlab.analysis.routing(model, batches)
    assert found.token_independent == (0,)
    assert not found.standard_error("weight")[0].any()
    assert found.standard_error("weight")[1].min() > 0
    assert srmlab.analysis.routing(build(z0="input"), batches).token_independent == ()


def test_one_stream_routes_only_to_itself(batches):
    found = srmlab.analysis.routing(build(streams=1), batches)
    assert found.self_routing.tolist() == [1.0]
    assert found.outgoing.tolist() == [0.0]
    assert found.summary()


def test_a_model_without_streams_is_refused_in_one_line(batches):
    with pytest.raises(UserError, match="; GPT2 has none"):
        srmlab.analysis.routing(srmlab.build(srmlab.preset("gpt2-nano")), batches)


def test_a_threshold_that_is_no_share_is_refused(model, batches):
    with pytest.raises(UserError, match=r"threshold = 1\.5"):
        srmlab.analysis.routing(model, batches, threshold=1.5)


def test_a_result_whose_weights_do_not_add_up_is_refused(model, batches):
    found = srmlab.analysis.routing(model, batches)
    fields = {name: getattr(found, name) for name in found.axes()}
    fields["weight"] = fields["weight"] * 0.5
    with pytest.raises(UserError, match="add up to 1"):
        Routing(evidence=found.evidence, threshold=0.1, token_independent=(0,), **fields)


def test_the_pgfplots_table_has_a_row_for_every_edge(model, batches, tmp_path):
    found = srmlab.analysis.routing(model, batches)
    (path,) = found.to_pgfplots(tmp_path, "baseline")
    table = np.genfromtxt(path, names=True)
    assert table.dtype.names == ("layer", "head", "target", "source", "frequency", "weight")
    assert len(table) == 4 * 2 * 4 * 4
    np.testing.assert_allclose(table["weight"], found.weight.ravel(), atol=1e-5)
