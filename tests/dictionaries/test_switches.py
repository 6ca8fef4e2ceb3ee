"""Why an edge is open: pairs of features that add up to its logit, scores against slow counting, and a switch
whose cause is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from counting import text

import srmlab
import srmlab.dictionaries
from srmlab.analysis import load
from srmlab.cli.analyze import Command
from srmlab.dictionaries import Dictionary, DictionaryConfig, EdgeLogit, hold_features, switches
from srmlab.dictionaries.auc import auc, auc_draws
from srmlab.dictionaries.switching import HELD, PREDICTORS, Text, one_switch, perfect, random_like
from srmlab.errors import UserError
from srmlab.figures import figures_of
from subjects import SMALL, trained_run


@pytest.fixture(scope="module")
def every(small) -> Dictionary:
    return srmlab.dictionaries.learn(small, text, steps=30, features=40, k=3, layers="every")


@pytest.fixture(scope="module")
def states(small) -> torch.Tensor:
    _, cache = small.run_with_cache(text(2000), "layers.0.out")
    return cache["layers.0.out"].flatten(0, 1)


def test_pairs_of_terms_add_up_to_the_logit_and_logits_to_the_pattern(small, every, states):
    _, cache = small.run_with_cache(text(2000), "layers.1.connection.pattern")
    pattern = cache["layers.1.connection.pattern"].flatten(0, 1)
    for head, target, source in [(0, 0, 1), (0, 1, 1), (0, 1, 0)]:
        edge = EdgeLogit(small, every, head, target, source)
        torch.testing.assert_close(edge.row(states).softmax(-1), pattern[:, head, target])
        pairs = edge.pairs(states)
        assert pairs.shape[1:] == (42, 42)
        torch.testing.assert_close(pairs.sum((1, 2)), edge.row(states)[:, source], atol=1e-5, rtol=1e-5)


def test_sums_over_tokens_and_scores_are_those_of_the_pairs(small, every, states):
    edge = EdgeLogit(small, every, 0, 1, 0)
    pairs, terms = edge.pairs(states), edge.terms(states)
    weights = torch.linspace(-1, 1, len(states))
    expected = (pairs * weights[:, None, None]).sum(0)
    torch.testing.assert_close(edge.total(terms, weights), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(edge.score(terms), pairs[:, :-1, :-1].sum((1, 2)), atol=1e-5, rtol=1e-4)
    chosen = torch.tensor([[0, 3], [40, 7], [5, 40]])
    some = pairs[:, chosen[:, 0], chosen[:, 1]].sum(1)
    torch.testing.assert_close(edge.score(terms, chosen), some, atol=1e-5, rtol=1e-4)


def test_moving_a_state_is_holding_the_feature_in_the_model(small, every, states):
    tokens = text(2000)
    codes = every.encode(states)
    feature = int((codes[:, 1] > 0).sum(0).argmax())
    edge = EdgeLogit(small, every, 0, 0, 1)
    moved = states.clone()
    moved[:, 1] -= codes[:, 1, feature, None] * every.directions[1, feature].detach()
    site = "layers.1.connection.pattern"
    hooks = [hook for hook in hold_features(every, [(1, feature, 0.0)]) if hook[0] == "layers.0.out"]
    with small.hooks(hooks):
        _, cache = small.run_with_cache(tokens, site)
    held = cache[site].flatten(0, 1)[:, 0, 0]
    torch.testing.assert_close(edge.row(moved).softmax(-1), held, atol=1e-5, rtol=1e-4)


def slow_auc(score, positive) -> float:
    won = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a in score[positive].tolist()
        for b in score[~positive].tolist()
    ]
    return sum(won) / len(won)


def test_the_area_under_the_curve_counts_pairs_of_tokens():
    generator = torch.Generator().manual_seed(0)
    score = torch.randint(0, 9, (200,), generator=generator).float()  # many ties
    positive = torch.rand(200, generator=generator) < score / 12
    assert auc(score, positive) == pytest.approx(slow_auc(score, positive))
    assert auc(-score, positive) == pytest.approx(1 - slow_auc(score, positive))
    assert auc(score, torch.zeros(200, dtype=torch.bool)) == 0.5
    windows = torch.arange(200) // 50
    times = torch.tensor([[1.0, 1, 1, 1], [2, 0, 0, 1]])
    again = torch.cat([torch.arange(50), torch.arange(50), torch.arange(150, 200)])
    expected = [slow_auc(score, positive), slow_auc(score[again], positive[again])]
    assert auc_draws(score, positive, windows, times).tolist() == pytest.approx(expected, abs=5e-3)


def known_switch() -> tuple[EdgeLogit, torch.Tensor, Text]:
    """Feature 3 of stream 1 alone opens the edge S0 ← S1; S0 is always the same."""
    model = srmlab.build(SMALL.replace(streams=2, depth=2, gradient_depth=1))
    config = DictionaryConfig(streams=2, dim=16, features=16, k=2, model="")
    dictionary = Dictionary(config)
    with torch.no_grad():
        dictionary.directions.copy_(torch.eye(16).expand(2, -1, -1))
        dictionary.encoder.copy_(torch.eye(16).expand(2, -1, -1))
        weight = model.layer.connection.qkv.weight.zero_().view(2, 16, 3, model.config.stream_heads, -1)
        weight[0, 0, 0, 0, 0] = 10  # S0 asks along one direction
        weight[1, 3, 1, 0, 0] = 10  # and S1 has it in feature 3
    generator = torch.Generator().manual_seed(0)
    states = torch.zeros(400, 2, 16)
    states[:, 0, 0] = 1
    states[torch.arange(400), 1, torch.randint(4, 16, (400,), generator=generator)] = 0.5
    states[torch.rand(400, generator=generator) < 0.4, 1, 3] = 1
    tokens = torch.randint(0, 50, (400,), generator=generator)
    windows = torch.arange(400) // 20
    halves = Text([], tokens, torch.arange(400) % 20, windows, windows < 10)
    return EdgeLogit(model, dictionary, 0, 0, 1), states, halves


def test_a_switch_with_one_cause_is_found_predicted_and_flipped_by_it():
    edge, states, halves = known_switch()
    weights = edge.row(states).softmax(-1)[:, 1]
    found = one_switch(edge, edge.terms(states), states, weights, halves, weights)
    assert found.deciding == (1, 3, 1)
    assert found.pairs[0] == (0, 3, 1)
    assert float(found.shares[0]) == pytest.approx(1, abs=1e-4)
    for weight, _, token, _ in found.examples(halves, str):
        assert weight == pytest.approx(float(weights.max()), abs=1e-3)
        assert token in {str(int(one)) for one in halves.tokens[~halves.first & found.open]}
    assert found.explained == pytest.approx(1, abs=1e-4)
    there = ~halves.first
    score = {name: auc(found.scores[i, there], found.open[there]) for i, name in enumerate(PREDICTORS)}
    for name in ("logit", "features", "deciding feature", "best feature", "perfect feature"):
        assert score[name] == 1
    for name in ("token", "best token", "position", "shuffled"):
        assert 0.35 < score[name] < 0.65
    flipped = dict(zip(HELD, found.flipped.tolist(), strict=True))
    assert flipped == {"silenced": 1, "put in": 1, "another silenced": 0, "another put in": 0}


def test_one_token_is_chosen_on_one_half_and_says_no_more_than_where_it_is():
    edge, states, halves = known_switch()
    states[:, 1, 3] = (halves.tokens == 7).float()  # open at one token id, always
    weights = edge.row(states).softmax(-1)[:, 1]
    found = one_switch(edge, edge.terms(states), states, weights, halves, weights)
    assert found.scores[PREDICTORS.index("best token")].tolist() == (halves.tokens == 7).float().tolist()


def test_a_perfect_feature_fires_as_often_and_never_wrongly():
    wanted = torch.arange(100) < 40
    for count in (10, 40, 70):
        fires = torch.arange(100) >= 100 - count
        score = perfect(fires, wanted)
        assert score.sum() == min(count, 40)
        assert not score[~wanted].any()
        assert auc(score, wanted) == pytest.approx(0.5 + min(count, 40) / 80)


@pytest.mark.parametrize("activation", ["topk", "batchtopk", "jumprelu"])
def test_random_features_are_as_many_in_use(activation):
    config = DictionaryConfig(2, 16, 64, 4, activation=activation)
    states = torch.randn(500, 2, 16, generator=torch.Generator().manual_seed(0))
    codes = random_like(Dictionary(config), states).encode(states)
    assert float((codes > 0).sum(-1).float().mean()) == pytest.approx(4, abs=0.1)


def test_a_feature_that_closes_an_edge_is_said_to_close_it():
    edge, states, halves = known_switch()
    edge.query.neg_()
    edge.table.neg_()
    weights = edge.row(states).softmax(-1)[:, 1]
    found = one_switch(edge, edge.terms(states), states, weights, halves, weights)
    assert found.deciding == (1, 3, -1)
    assert found.pairs[0] == (0, 3, -1)
    assert found.flipped[:2].tolist() == [1, 1]


def test_switches_are_strong_edges_that_vary_more_than_any_twins(small, every, tmp_path):
    batches = [text(3000 + i) for i in range(3)]
    found = switches(small, every, batches, twins=2, decode=lambda token: f"<{token}>")
    for edge in found.edges:
        assert found.weight[edge] >= 1 / SMALL.streams
        assert found.deviation[edge] > found.twin_deviation.max() == found.bar
        assert edge[0] > 0  # the first layer reads z_0
    assert found.deviation[0].max() == 0
    assert found.twin_deviation.shape[0] == 2
    again = load(found.save(tmp_path / "switches"))
    assert again.summary() == found.summary()
    figures_of("switches")["switches"](again).savefig(tmp_path / "figure.png")
    all_edges = switches(small, every, batches, twins=0, decode=lambda token: f"<{token}>")
    assert len(all_edges.edges) >= len(found.edges)
    assert all_edges.auc.shape == (len(all_edges.edges), len(PREDICTORS))
    assert "[<" in all_edges.summary()
    assert len(all_edges.examples) == len(all_edges.edges)
    assert all_edges.dictionary == every.mark
    figures_of("switches")["switches"](all_edges).savefig(tmp_path / "figure.png")


@pytest.mark.parametrize(("features", "control"), [(1, "nan"), (8, "finite")])
def test_without_another_feature_to_hold_there_is_no_control(small, tmp_path, features, control):
    one = srmlab.dictionaries.learn(small, text, steps=3, features=features, k=1, layers="every")
    found = switches(small, one, [text(3000 + i) for i in range(3)], twins=0)
    assert found.edges
    assert np.isnan(found.flipped[:, HELD.index("another silenced")]).all()  # one at a time is in use
    put_in = found.flipped[:, HELD.index("another put in")]
    assert np.isnan(put_in).all() if control == "nan" else np.isfinite(put_in).any()
    assert "nan" not in found.summary()
    figures_of("switches")["switches"](load(found.save(tmp_path / "s"))).savefig(tmp_path / "figure.png")


def test_a_dictionary_of_the_last_layer_alone_is_refused(small, dictionary, unseen):
    with pytest.raises(UserError, match=r"has no features of layers.0.out.*--layers every"):
        switches(small, dictionary, unseen)


def test_too_little_text_is_refused(small, every):
    with pytest.raises(UserError, match="give four"):
        switches(small, every, [text(0)[:3]])


def test_the_switches_of_a_puzzle_model_are_those_of_its_cells():
    model = srmlab.build(SMALL.replace(causal=False, context=18, puzzle_positions=2))
    boards = [(text(i), text(i + 1)) for i in range(2)]
    dictionary = srmlab.dictionaries.learn(model, text, steps=2, features=16, k=2, layers="every")
    found = switches(model, dictionary, boards, twins=0)
    _, cache = model.run_with_cache(
        torch.cat([tokens for tokens, _ in boards]), "layers.2.connection.pattern"
    )
    cells = cache["layers.2.connection.pattern"][:, 2:].flatten(0, 1)
    assert found.weight[2] == pytest.approx(cells.mean(0).numpy(), abs=1e-6)
    assert found.open == pytest.approx(
        [
            float(((w := weights_of(model, boards, edge)) > w[: len(w) // 2].mean()).float().mean())
            for edge in found.edges
        ]
    )


def weights_of(model, boards, edge) -> torch.Tensor:
    """[N] An edge's weight at every cell."""
    layer, *place = edge
    site = f"layers.{layer}.connection.pattern"
    cached = [model.run_with_cache(tokens, site)[1][site][:, 2:].flatten(0, 1) for tokens, _ in boards]
    return torch.cat(cached)[(slice(None), *place)]


def test_the_command_finds_the_runs_dictionary_or_says_how_to_learn_one(tmp_path):
    run = trained_run(tmp_path)
    command = Command(path=run, only=("switches",), tokens=128, null=1, formats=("png",))
    with pytest.raises(
        UserError, match=r"no dictionary for all depths: .*srmlab dictionary .* --layers every"
    ):
        command.analyze(show=False)
    model = srmlab.load(run)
    words = torch.randint(0, 256, (4, 16), generator=torch.Generator().manual_seed(0))
    learned = srmlab.dictionaries.learn(model, lambda _: words, steps=2, features=16, k=2, layers="every")
    srmlab.dictionaries.save(learned, run / "dictionaries" / "every")
    answer = command.analyze(show=False)["results"]["switches"]
    assert "strong edges" in answer["finding"]
    assert (run / "figures" / "switches.png").is_file()
    assert "Switches (" in (run / "analysis" / "summary.txt").read_text()
