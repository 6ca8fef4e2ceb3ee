"""Pruned graphs, and what cutting features really does, beside features at random."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from counting import text

import srmlab.dictionaries
from srmlab.cli import main
from srmlab.cli.circuit import newest
from srmlab.dictionaries import Target, attribute
from srmlab.dictionaries.circuit import Linear
from srmlab.dictionaries.circuit_checks import (
    TARGET,
    CircuitCheck,
    check_circuit,
    cut,
    fewest,
    partners,
    prune,
)
from srmlab.dictionaries.features import features_of
from srmlab.errors import UserError
from srmlab.interop.neuronpedia import document
from subjects import trained_run

PROMPT = text(3)[0, :6].tolist()


@pytest.fixture(scope="module")
def transcoders(small):
    return srmlab.dictionaries.learn(small, text, of="mlp", steps=30, features=48, k=4)


@pytest.fixture(scope="module")
def graph(small, transcoders):
    with torch.no_grad():
        token = int(small(torch.tensor([PROMPT]))[0, -1].argmax())
    return attribute(small, transcoders, PROMPT, Target(token=token), nodes=150)


def test_the_fewest_that_have_a_share():
    values = np.array([1.0, 5.0, 0.0, 4.0])
    assert fewest(values, 0.5).tolist() == [False, True, False, False]
    assert fewest(values, 0.9).tolist() == [False, True, False, True]
    assert fewest(values, 1.0).tolist() == [True, True, False, True]
    assert not fewest(np.zeros(3), 0.5).any()


def test_pruning_keeps_the_influential_and_every_node_leads_to_the_target(graph):
    kept = prune(graph)
    influence = graph.influence
    assert len(kept.nodes) < graph.nodes / 4
    ends = set(kept.target.tolist())
    assert TARGET in ends
    for n in kept.features(graph):
        assert n in kept.source
    assert ends - {TARGET} <= set(kept.nodes.tolist())
    assert influence[kept.features(graph)].mean() > influence[: len(graph.active)].mean()
    weights = {(int(s), int(t)): w for s, t, w in zip(kept.source, kept.target, kept.weight, strict=True)}
    source = next(s for s, t in weights if t == TARGET)
    assert weights[source, TARGET] == graph.edges[0, source]
    assert len(prune(graph, 0.5).nodes) < len(kept.nodes)


def test_cutting_takes_out_what_a_feature_writes_and_all_else_follows(small, transcoders, graph):
    linear = Linear(small, transcoders, PROMPT)
    node, a = int(graph.expanded[0]), graph.active
    member, _ = linear.member[a.call[node]]
    wrote = a.activation[node] * member.directions[a.stream[node], a.feature[node]].detach()

    def take(value, _):
        value = value.clone()
        value[0, a.token[node], a.stream[node]] -= wrote
        return value

    site = linear.written[a.call[node]]
    with torch.no_grad():
        logits = small.run_with_hooks(torch.tensor([PROMPT]), fwd_hooks=[(site, take)])[0, -1]
    expected = float(logits[graph.target.token] - logits.mean()) - graph.value
    (found,) = cut(linear, small, graph, [np.array([node])])
    assert found == pytest.approx(expected, abs=1e-4)


def test_predictions_hold_and_the_graphs_features_matter_more_than_others(small, transcoders, graph):
    found = check_circuit(small, transcoders, graph, prune(graph), count=24, draws=5)
    assert found.correlation > 0.5
    assert found.interval[0] < found.correlation < found.interval[1]
    assert np.abs(found.actual).mean() > 1.5 * np.abs(found.random_actual).mean()
    assert set(found.each) == set(prune(graph).features(graph).tolist())
    assert set(found.actual) <= set(found.each.values())
    assert len(found.random_whole) == 5
    assert abs(found.whole) > np.abs(found.random_whole).mean()
    assert "random ones" in found.summary()
    assert len(found.matched_actual) == len(found.actual)
    assert len(found.paired_whole) == len(found.matched_whole) == 5
    assert 0 < found.pairs <= len(found.each)
    effects = graph.effect[prune(graph).features(graph)]
    assert found.whole_predicted == pytest.approx(-effects.sum())
    assert sorted(found.each_predicted.values()) == pytest.approx(sorted(-effects))
    assert f"predicted {found.whole_predicted:+.3f}" in found.summary()


def test_a_prompt_without_active_features_is_checked_too(small):
    silent = srmlab.dictionaries.learn(small, text, of="mlp", steps=1, features=8, k=1, activation="jumprelu")
    for member in silent:
        member.threshold.data.fill_(1e9)
    found = attribute(small, silent, PROMPT, Target(token=5))
    checked = check_circuit(small, silent, found, prune(found))
    assert len(found.active) == len(checked.each) == 0
    assert checked.whole == pytest.approx(0, abs=1e-4)
    assert checked.summary()


def test_the_slope_tells_how_far_sizes_are_right_and_signs_are_counted():
    none = np.zeros(1)
    found = CircuitCheck(
        predicted=np.array([2.0, -1.0, 1.0]), actual=np.array([1.0, -0.5, 0.5]), random_actual=none,
        matched_actual=none, whole=0.0, whole_predicted=0.0, random_whole=none, paired_whole=none,
        matched_whole=none, pairs=0, each={0: 1.0, 1: -0.5, 2: 0.5, 3: 0.1},
        each_predicted={0: 2.0, 1: -1.0, 2: 1.0, 3: -0.2},
    )  # fmt: skip
    assert found.slope == pytest.approx(0.5)
    assert found.sign_agreement == 1
    assert found.sign_agreement_all == pytest.approx(3 / 4)


def test_partners_are_of_the_same_call_and_token_and_stream_if_there_is_one(graph):
    features, a = prune(graph).features(graph), graph.active
    pool = np.setdiff1d(np.arange(len(a)), features)
    for again in (False, True):
        found = partners(graph, features, pool, np.random.default_rng(0), again)
        here, there = features[found >= 0], found[found >= 0]
        assert len(there)
        assert set(there) <= set(pool)
        assert (a.call[here] == a.call[there]).all()
        assert (a.token[here] == a.token[there]).all()
        if not again:
            assert len(set(there)) == len(there)
    for n, partner in zip(here, there, strict=True):  # with `again`, none is used up
        places = [(int(a.call[p]), int(a.token[p]), int(a.stream[p])) for p in pool]
        if (int(a.call[n]), int(a.token[n]), int(a.stream[n])) in places:
            assert a.stream[n] == a.stream[partner]


def test_a_features_own_graph_is_checked_too(small, transcoders, graph):
    node, a = int(graph.expanded[np.argmax(graph.active.call[graph.expanded])]), graph.active
    place = int(a.call[node]), int(a.stream[node]), int(a.feature[node])
    target = Target(feature=place, position=int(a.token[node]))
    other = attribute(small, transcoders, PROMPT, target, nodes=40)
    found = check_circuit(small, transcoders, other, prune(other), count=8, draws=2)
    assert np.isfinite(found.actual).all()


def test_the_document_has_every_node_and_edge(graph):
    kept = prune(graph)
    found = document(graph, kept, lambda token: f"<{token}>", probability=0.25)
    ids = [node["node_id"] for node in found["nodes"]]
    assert len(ids) == len(set(ids)) == len(kept.nodes) + 1
    assert all(link["source"] in ids and link["target"] in ids for link in found["links"])
    assert found["metadata"]["prompt_tokens"] == [f"<{token}>" for token in PROMPT]
    assert {node["feature_type"] for node in found["nodes"]} >= {
        "embedding",
        "logit",
        "cross layer transcoder",
    }
    assert found["metadata"]["node_threshold"] == 0.8
    half = document(graph, prune(graph, 0.5), str)["metadata"]
    assert half["node_threshold"] == 0.5
    assert half["srmlab"]["replacement"] == graph.replacement
    assert not [name for name in half["srmlab"] if name.endswith("_score")]
    goal = found["nodes"][-1]
    assert goal["is_target_logit"]
    assert goal["token_prob"] == 0.25
    models = pytest.importorskip("circuit_tracer.frontend.graph_models", reason="not installed")
    read = models.Model(**found)
    assert len(read.nodes) == len(ids)


def test_features_of_one_transcoder_for_each_depth_are_described_too(small):
    apart = srmlab.dictionaries.learn(small, text, of="mlp", per_depth=True, steps=3, features=16, k=2)
    graph = attribute(small, apart, PROMPT, Target(token=5), nodes=20)
    assert graph.members[:4] == ("A-0", "B-1", "C-2", "A-3")
    found = features_of(small, apart, [text(0)], 2)
    known = {member.config.name: one for member, one in zip(apart, found, strict=True)}
    nodes = document(graph, prune(graph), chr, known)["nodes"]
    described = [node for node in nodes if node["feature_type"] == "cross layer transcoder"]
    assert any("examples" in node["srmlab"] for node in described)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = trained_run(tmp_path_factory.mktemp("circuit"))
    with pytest.raises(SystemExit):
        main(["transcoder", str(folder), "--tokens", "256", "--eval-tokens", "64", "--no-each", "--json"])
    return folder


def call(capsys, *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["circuit", *map(str, arguments)])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_the_command_writes_a_graph(run, capsys, tmp_path):
    view = tmp_path / "circuit.js"
    code, out, _ = call(
        capsys, run, "--prompt", "stream", "--out", tmp_path / "g.json", "--nodes", 32, "--view", view
    )
    assert code == 0
    assert '"prompt": "stream"' in view.read_text()
    assert "__GRAPH__" not in view.read_text()
    assert "predicted and actual change correlate" in out
    written = json.loads((tmp_path / "g.json").read_text())
    assert written["metadata"]["prompt"] == "stream"
    feature = next(node for node in written["nodes"] if node["feature_type"] == "cross layer transcoder")
    assert set(feature["srmlab"]) >= {"level", "step", "stream", "effect", "examples", "actual"}
    last = [
        n for n in written["nodes"] if n["ctx_idx"] == 5 and n["feature_type"] == "cross layer transcoder"
    ]
    about = last[0]["srmlab"]
    place = f"{about['level']}.{about['step']}.{about['stream']}.{about['feature']}"
    code, out, _ = call(
        capsys, run, "--prompt", "stream", "--feature", place, "--json", "--out", tmp_path / "f.json"
    )
    assert code == 0
    answer = json.loads(out)
    assert answer["value"] == pytest.approx(last[0]["activation"], abs=1e-4)
    assert answer["largest_error_of_sums"] < 1e-4
    assert {"slope", "sign_agreement", "sign_agreement_all", "change_matched"} <= set(answer)
    assert {"whole_predicted", "pairs", "whole_paired", "whole_matched"} <= set(answer)
    code, out, _ = call(
        capsys, run, "--prompt", "stream", "--target", "s", "--against", "a", "--no-check", "--json",
        "--out", tmp_path / "d.json",
    )  # fmt: skip
    assert code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--prompt", "a", "--target", "ab"), "'ab' is 2 tokens"),
        (("--prompt", ""), "--prompt is empty"),
        (("--prompt", "a", "--feature", "9.Z"), "give LAYER.STEP.STREAM.FEATURE"),
        (("--prompt", "a", "--feature", "0.A.0.1", "--target", "a"), "--feature cannot be combined with"),
        (("--prompt", "a", "--node-share", 2), "--node-share 2.0: must be above 0"),
        (("--prompt", "a", "--transcoders", "nowhere"), "no transcoders in nowhere"),
        (("--prompt", "a", "--nodes", 0), "--nodes 0: must be at least 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run, capsys, tmp_path, options, message):
    code, out, err = call(capsys, run, *options, "--out", tmp_path / "never.json")
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "never.json").exists()


def test_nothing_is_overwritten_and_a_run_without_transcoders_says_so(run, capsys, tmp_path):
    (tmp_path / "g.json").write_text("mine")
    code, _, err = call(capsys, run, "--prompt", "a", "--out", tmp_path / "g.json")
    assert code == 2
    assert "is not overwritten" in err
    assert (tmp_path / "g.json").read_text() == "mine"
    export = srmlab.save(srmlab.load(run), tmp_path / "export", srmlab.storage.load_tokenizer(run))
    code, _, err = call(capsys, export, "--prompt", "a", "--out", tmp_path / "h.json")
    assert code == 2
    assert f"`srmlab transcoder {export}` trains them" in err
    assert "has no transcoders of MLPs: " in err


def test_a_run_with_other_transcoders_only_says_which_are_needed(tmp_path):
    folder = tmp_path / "dictionaries" / "transcoders-attention-64-1"
    folder.mkdir(parents=True)
    (folder / "transcoders.json").write_text('{"of": "attention"}')
    with pytest.raises(UserError, match="no transcoders of MLPs, only of attention: `srmlab transcoder"):
        newest(tmp_path)
