"""Translations: ranks that are known, features that are made to become others, and lifts counted slowly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from counting import text

import srmlab
import srmlab.dictionaries
from srmlab.analysis import load
from srmlab.cli.analyze import Command
from srmlab.dictionaries import Dictionary, translations
from srmlab.dictionaries.translations import effective_rank, matches, measured_lifts
from srmlab.errors import UserError
from srmlab.figures import figures_of
from subjects import SMALL, trained_run


def test_the_effective_rank_counts_directions_that_are_passed_on_alike():
    values = torch.tensor([[3.0, 3, 3, 3], [5, 0, 0, 0], [2, 2, 0, 0]])
    assert effective_rank(values).tolist() == pytest.approx([4, 1, 2], abs=1e-4)


def test_ranks_are_those_of_the_maps_of_the_model(small):
    found = translations(small, [text(0)])
    matrix = small.translations[1, 2, 3].detach().numpy()
    values = np.linalg.svd(matrix, compute_uv=False)
    shares = values[values > 1e-9] / values.sum()
    assert found.rank[1, 2, 3] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-3)
    assert found.rank.max() <= SMALL.head_dim  # of 16 dimensions a head of 8 passes on 8
    assert found.becomes == ()
    assert np.isnan(found.match).all()


@pytest.fixture(scope="module")
def every(small) -> Dictionary:
    return srmlab.dictionaries.learn(small, text, steps=30, features=40, k=3, layers="every")


def test_a_map_that_turns_features_into_features_is_seen_to(every):
    maps = torch.randn(1, 4, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    source, target = every.directions[2, :10].detach(), every.directions[1, 20:30].detach()
    maps[0, 1, 2] = torch.linalg.lstsq(source, target).solution  # features 0…9 become 20…29
    fields, found = matches(maps, every, top=10, seed=0)
    assert sorted(becomes for _, becomes in found) == [(0, 1, 2, i, 20 + i) for i in range(10)]
    assert [cosine for cosine, _ in found] == pytest.approx([1.0] * 10, abs=1e-3)
    assert fields["clear"][0, 1, 2] >= 10 / 40
    assert fields["clear"][0, 0, 3] < 0.2


def test_lifts_are_counted_over_layers(small, every):
    tokens = text(5)
    pairs = [(0, 1, 2, 3, 4), (1, 0, 0, 7, 7)]
    found, _ = measured_lifts(small, every, list(placed_of(tokens)), pairs, seed=0)
    _, cache = small.run_with_cache(tokens, "layers.*.out")
    fired = [(every.encode(cache[f"layers.{l}.out"]) > 0).flatten(0, 1) for l in range(3)]
    for k, (_, target, source, before, after) in enumerate(pairs):
        was = torch.cat([fired[l - 1][:, source, before] for l in (1, 2)])
        now = torch.cat([fired[l][:, target, after] for l in (1, 2)])
        if was.any() and now.any():
            expected = float(now[was].float().mean() / now.float().mean())
            assert found[k] == pytest.approx(expected)
        else:
            assert np.isnan(found[k])


def test_lifts_of_a_puzzle_model_are_counted_over_cells():
    model = srmlab.build(SMALL.replace(causal=False, context=18, puzzle_positions=2))
    dictionary = srmlab.dictionaries.learn(model, text, steps=2, features=8, k=2, layers=[0, 1])
    tokens, pairs = text(5), [(0, 1, 2, i, j) for i in range(8) for j in range(8)]
    found, _ = measured_lifts(model, dictionary, list(placed_of(tokens)), pairs, seed=0)
    _, cache = model.run_with_cache(tokens, "layers.*.out")
    was, now = (dictionary.encode(cache[f"layers.{l}.out"][:, 2:]).flatten(0, 1) > 0 for l in (0, 1))
    both = (was[:, 2, :, None] & now[:, 1, None]).float().mean(0)
    expected = both / (was[:, 2].float().mean(0)[:, None] * now[:, 1].float().mean(0))
    known = np.isfinite(found)
    assert known.any()
    assert found[known] == pytest.approx(expected.flatten().numpy()[known], rel=1e-5)


def placed_of(tokens):
    from srmlab.analysis.capture import placed

    return placed([tokens], torch.device("cpu"))


def test_a_result_is_saved_summed_up_and_drawn(small, every, tmp_path):
    found = translations(small, [text(1)], every, describe=lambda s, f: f"S{s}:{f}")
    again = load(found.save(tmp_path / "translations"))
    assert again.summary() == found.summary()
    assert again.becomes == found.becomes
    figure = figures_of("translations")["translations"]
    figure(again, twins=[translations(small, [text(1)])]).savefig(tmp_path / "figure.png")


def test_where_no_feature_becomes_one_there_are_no_lifts(small, every):
    lifts = measured_lifts(small, every, list(placed_of(text(5))), [], seed=0)
    assert [len(found) for found in lifts] == [0, 0]


def test_a_dictionary_of_one_feature_has_no_other_to_compare_with(small, tmp_path):
    one = srmlab.dictionaries.learn(small, text, steps=3, features=1, k=1, layers="every")
    found = translations(small, [text(1)], one)
    assert np.isnan(found.other_lifts).all()
    figures_of("translations")["translations"](found).savefig(tmp_path / "figure.png")
    assert "nan" not in found.summary()


def test_a_connection_without_translations_is_refused():
    with pytest.raises(UserError, match="need a connection with values and outputs"):
        translations(srmlab.build(SMALL.replace(connection="mixing")), [text(0)])


def test_the_command_puts_a_twin_beside(tmp_path):
    run = trained_run(tmp_path)
    words = torch.randint(0, 256, (4, 16), generator=torch.Generator().manual_seed(0))
    learned = srmlab.dictionaries.learn(
        srmlab.load(run), lambda _: words, steps=2, features=16, k=2, layers="every"
    )
    srmlab.dictionaries.save(learned, run / "dictionaries" / "every")
    command = Command(path=run, only=("translations",), tokens=64, null=2, formats=("png",))
    answer = command.analyze(show=False)["results"]["translations"]
    assert answer["finding"].startswith("effective rank")
    assert any(line.startswith("mean rank") for line in answer["twins"])
    assert (run / "figures" / "translations.png").is_file()
