"""Attribution graphs: the edges into a node add up to its activation, and say what an intervention does."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from counting import text

import srmlab
import srmlab.dictionaries
from oracle import circuit as oracle
from srmlab.cli.circuit import place_of
from srmlab.dictionaries import Target, Transcoders, attribute
from srmlab.dictionaries.circuit import Linear, call_names, influence_of, mlp_calls
from srmlab.errors import UserError
from srmlab.models.streams import RMSNorm

PROMPT = text(3)[0, :6].tolist()


def doubled(model, transcoders: Transcoders):
    """Both in float64, and not the fixtures themselves."""
    members = tuple(copy.deepcopy(member).double() for member in transcoders)
    other = copy.deepcopy(model).double()
    for i, member in enumerate(members):
        member.config = transcoders.members[i].config.__class__(**{**vars(member.config), "model": ""})
    return other, Transcoders(members)


def learned(model, **options) -> Transcoders:
    return srmlab.dictionaries.learn(model, text, **({"of": "mlp"} | options), steps=6, features=24, k=3)


@pytest.fixture(scope="module")
def transcoders(small) -> Transcoders:
    return learned(small)


@pytest.fixture(scope="module")
def graph(small, transcoders):
    return attribute(small, transcoders, PROMPT, Target(token=5))


def test_the_edges_into_every_node_add_up_to_its_activation(graph):
    assert len(graph.expanded) > 100
    assert np.abs(graph.completed).max() < 1e-4


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({}, {}),
        ({}, {"reach": 3}),
        ({}, {"skip": True, "activation": "batchtopk"}),
        ({}, {"per_depth": True}),
        ({"pre_steps": 1, "post_steps": 1, "order": "ABBC", "norm_affine": True}, {"reach": 2}),
        ({"z0": "input", "connection": "mixing", "update": "norm(c) + norm(x)"}, {}),
        ({"connection": "gate"}, {"activation": "jumprelu"}),
    ],
)
def test_in_float64_they_add_up_to_the_last_digits(small, changes, options):
    model = small if not changes else srmlab.build(small.config.replace(depth=2, gradient_depth=1, **changes))
    wide, members = doubled(model, learned(model, **options))
    for target in (Target(token=5), Target(token=5, against=7, position=3)):
        found = attribute(wide, members, PROMPT, target, nodes=60)
        assert len(found.expanded) == 60
        assert np.abs(found.completed).max() < 1e-8


def test_the_targets_value_is_its_logit_against_the_mean_or_another(small, transcoders, graph):
    with torch.no_grad():
        logits = small(torch.tensor([PROMPT]))[0, -1]
    assert graph.value == pytest.approx(float(logits[5] - logits.mean()), abs=1e-4)
    against = attribute(small, transcoders, PROMPT, Target(token=5, against=9), nodes=1)
    assert against.value == pytest.approx(float(logits[5] - logits[9]), abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({}, {}),
        ({}, {"reach": 3}),
        ({}, {"per_depth": True}),
        ({"order": "ABBC", "pre_steps": 1, "post_steps": 1, "norm_affine": True}, {"reach": 2, "skip": True}),
        ({"z0": "input", "update": "norm(c) + norm(x)", "post_steps": 1, "post_input": "state+update"}, {}),
    ],
)
def test_every_edge_is_what_its_source_alone_does_with_all_else_held(small, changes, options):
    model = small if not changes else srmlab.build(small.config.replace(depth=2, gradient_depth=1, **changes))
    if model.config.norm_affine:
        with torch.no_grad():
            for norm in (module for module in model.modules() if isinstance(module, RMSNorm)):
                norm.weight.copy_(torch.linspace(0.5, 1.5, norm.weight.numel()).view_as(norm.weight))
    wide, members = doubled(model, learned(model, **options))
    for target in (Target(token=5), Target(token=5, against=7, position=2)):
        found = attribute(wide, members, PROMPT, target, nodes=40)
        edges, constants = oracle.edges(wide, members, found)
        np.testing.assert_allclose(found.edges, edges, atol=1e-12)
        np.testing.assert_allclose(found.constants, constants, atol=1e-12)


def test_a_feature_can_be_the_target(small, transcoders, graph):
    node = int(graph.expanded[0])
    a = graph.active
    place = int(a.call[node]), int(a.stream[node]), int(a.feature[node])
    found = attribute(
        small, transcoders, PROMPT, Target(feature=place, position=int(a.token[node])), nodes=10
    )
    assert found.value == pytest.approx(a.activation[node], abs=1e-5)
    np.testing.assert_allclose(found.edges[0], graph.edges[1], atol=1e-5)
    later = a.call >= place[0]
    assert not found.edges[0, : len(a)][later].any()


def test_influence_is_handed_on_and_effects_are_the_sum_over_all_ways():
    """Two features in a row: target ← 1 (3) and ← 0 (1); 1 ← 0 (2) and an error (2). Activations 4 and 5."""
    edges = np.array([[1.0, 3.0, 0.0], [2.0, 0.0, 2.0]])  # nodes: features 0 and 1, an error
    np.testing.assert_allclose(influence_of(edges, np.array([1])), [0.25 + 0.75 / 2, 0.75, 0.75 / 2])


def test_scores_are_those_of_walks_over_the_graph(graph):
    """Passed on from the last call to the first: by absolute weight, or with signs and per activation."""
    inputs = dict(zip(graph.expanded.tolist(), graph.edges[1:], strict=True))
    influence, effect = np.zeros(graph.nodes), np.zeros(graph.nodes)
    nodes = sorted(inputs, key=lambda n: -graph.active.call[n])  # no edge leads to an earlier call
    sizes = {n: np.abs(row).sum() for n, row in inputs.items()}
    influence += np.abs(graph.edges[0]) / np.abs(graph.edges[0]).sum()
    effect += graph.edges[0]
    for n in nodes:
        influence += influence[n] * np.abs(inputs[n]) / sizes[n]
        effect += effect[n] * inputs[n] / graph.active.activation[n]
    np.testing.assert_allclose(graph.influence, influence, atol=1e-8)
    np.testing.assert_allclose(graph.effect, effect, rtol=1e-4, atol=1e-8)
    errors, tokens = (influence[graph.kinds == kind].sum() for kind in (1, 2))
    assert graph.replacement == pytest.approx(tokens / (tokens + errors))
    shares = [(1.0, graph.edges[0]), *((influence[n], row) for n, row in inputs.items())]
    explained = [w * (1 - np.abs(row[graph.kinds == 1]).sum() / np.abs(row).sum()) for w, row in shares]
    assert graph.completeness == pytest.approx(sum(explained) / sum(w for w, _ in shares))


def test_scores_are_shares_and_more_nodes_leave_less_unexplained(small, transcoders, graph):
    assert 0 < graph.replacement < 1
    assert 0 < graph.completeness < 1
    assert graph.influence[graph.kinds != 0].sum() <= 1 + 1e-9
    few = attribute(small, transcoders, PROMPT, Target(token=5), nodes=10)
    assert len(few.expanded) == 10
    np.testing.assert_allclose(few.edges[0], graph.edges[0], atol=1e-5)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (Target(token=999), "give a token id from 0 to 96"),
        (Target(), "give a token id"),
        (Target(token=5, position=6), "the prompt has 6 tokens"),
        (Target(feature=(0, 0, 99)), "feature 99 of feature .*: there are 0 to 23"),
        (Target(feature=(0, 4, 0)), "stream 4 of feature .*: there are 0 to 3"),
    ],
)
def test_a_target_that_is_not_there_is_refused(small, transcoders, target, message):
    with pytest.raises(UserError, match=message):
        attribute(small, transcoders, PROMPT, target)


def test_of_a_feature_that_is_not_active_it_is_said_which_are(small, transcoders):
    linear = Linear(small, transcoders, PROMPT)
    active = linear.codes[4][5, 2].nonzero().flatten().tolist()
    silent = next(f for f in range(24) if f not in active)
    words = f"feature 1.B.2.{silent} is not active at token 5 .* there are {', '.join(map(str, active))}$"
    with pytest.raises(UserError, match=words):
        attribute(small, transcoders, PROMPT, Target(feature=(4, 2, silent)))


def test_calls_of_a_step_in_one_layer_have_names_of_their_own(small):
    model = srmlab.build(small.config.replace(depth=2, gradient_depth=1, order="ABBC"))
    names = call_names(mlp_calls(model))
    assert names[:5] == ("0.A", "0.B:1", "0.B:2", "0.C", "1.A")
    assert place_of("1.B:2.3.7", model) == (6, 3, 7)
    with pytest.raises(UserError, match=r"no 1\.B; say which call: 1\.B:1, 1\.B:2"):
        place_of("1.B.3.7", model)
    with pytest.raises(UserError, match="no stream 9; there are 0 to 3"):
        place_of("1.A.9.7", model)


def test_a_graph_is_the_same_where_gradients_are_turned_off(small, transcoders, graph):
    with torch.no_grad():
        found = attribute(small, transcoders, PROMPT, Target(token=5))
    np.testing.assert_array_equal(found.edges, graph.edges)


def test_an_empty_prompt_and_another_precision_are_refused_in_one_line(small, transcoders):
    with pytest.raises(UserError, match="at least one token"):
        attribute(small, transcoders, [], Target(token=5))
    with pytest.raises(UserError, match=r"use model.to\(torch.float32\)"):
        attribute(copy.deepcopy(small).bfloat16(), transcoders, PROMPT, Target(token=5))


def test_a_puzzle_model_with_positions_before_its_board_is_refused(small):
    model = srmlab.build(small.config.replace(causal=False, puzzle_positions=2))
    with pytest.raises(UserError, match="puzzle_positions"):
        attribute(model, learned(model), PROMPT, Target(token=5))


def test_transcoders_of_other_parts_are_refused(small):
    with pytest.raises(UserError, match="transcoders of its MLPs"):
        attribute(small, learned(small, of="attention"), PROMPT, Target(token=5))
