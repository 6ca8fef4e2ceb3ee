"""Patching: the grid is that of single patched passes, its approximation is the derivative, and paths are
those of one message at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import srmlab
from models.small_models import ONE_OF_EACH, SMALL, small, some_tokens
from oracle import patching as oracle
from srmlab.analysis import kl_from, log_probability, logit_difference, path_grid
from srmlab.data.tokenizers import Padded
from srmlab.errors import UserError
from srmlab.figures import figures_of
from srmlab.models.forward import gradient_everywhere

CLEAN, CORRUPT = some_tokens(2, 4, seed=1), some_tokens(2, 4, seed=2)
RIGHT, WRONG = torch.tensor([3, 5]), torch.tensor([4, 1])
METRIC = logit_difference(RIGHT, WRONG)


def of_pair(p: int):
    return logit_difference(RIGHT[p : p + 1], WRONG[p : p + 1])


@torch.no_grad()
def mean(model, tokens) -> float:
    return float(METRIC(model(tokens)).mean())


@pytest.mark.parametrize("name", [*ONE_OF_EACH, "srm with pre- and post-steps", "srm from x"])
def test_the_grid_is_that_of_single_patched_passes(name):
    model = small(SMALL[name])
    found = srmlab.patch_grid(model, CLEAN, CORRUPT, METRIC)
    S, T = len(model.streams), CLEAN.shape[1]
    assert found.change.shape == (len(model.points), S, T)
    for layer, stream, position in [(0, 0, 0), (1, S - 1, 2), (len(model.points) - 1, S - 1, T - 1)]:
        patched = [
            oracle.cell(model, CORRUPT[p], CLEAN[p], of_pair(p), layer, [stream], [position])
            for p in range(2)
        ]
        expected = np.mean(patched) - mean(model, CORRUPT)
        assert found.change[layer, stream, position] == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("over", [("layer",), ("position", "layer"), ("layer", "stream")])
def test_what_is_not_named_is_patched_together(over):
    model = small(ONE_OF_EACH["srm"])
    found = srmlab.patch_grid(model, CLEAN, CORRUPT, METRIC, over)
    S, T = len(model.streams), CLEAN.shape[1]
    streams = [1] if "stream" in over else list(range(S))
    positions = [2] if "position" in over else list(range(T))
    cell = (1, streams[0] if len(streams) == 1 else 0, positions[0] if len(positions) == 1 else 0)
    patched = [oracle.cell(model, CORRUPT[p], CLEAN[p], of_pair(p), 1, streams, positions) for p in range(2)]
    expected = np.mean(patched) - mean(model, CORRUPT)
    assert found.change[cell] == pytest.approx(expected, abs=1e-10)


def test_the_whole_last_state_brings_all_of_the_difference_back_in_either_direction():
    for name, config in ONE_OF_EACH.items():
        model = small(config)
        for into in ("corrupt", "clean"):
            found = srmlab.patch_grid(model, CLEAN, CORRUPT, METRIC, "layer", into=into)
            assert found.share[-1, 0, 0] == pytest.approx(1, abs=1e-9), name
    assert found.before == pytest.approx(mean(model, CLEAN))


def test_all_layers_at_once_have_an_exact_effect_and_no_attribution():
    found = srmlab.patch_grid(small(ONE_OF_EACH["srm"]), CLEAN, CORRUPT, METRIC, ("stream", "position"))
    assert found.share.shape == (1, 3, 4)
    assert np.isfinite(found.share).all()
    assert np.isnan(found.approximate).all()
    assert np.isnan(found.correlation)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_attribution_is_the_derivative_through_every_level(name):
    model = small(ONE_OF_EACH[name])
    found = srmlab.patch_grid(model, CLEAN, CORRUPT, METRIC)
    point, stream, position = model.points[0], len(model.streams) - 1, 1
    slopes = []
    for p in range(2):
        mine, theirs = (oracle.state(model, tokens[p], point) for tokens in (CORRUPT, CLEAN))
        ends = []
        for step in (1e-4, -1e-4):
            own = mine[position, stream]
            moved = {(position, stream): own + step * (theirs[position, stream] - own)}
            ends.append(float(of_pair(p)(oracle.put(model, CORRUPT[p], point, moved)[None])))
        slopes.append((ends[0] - ends[1]) / 2e-4)
    assert found.approximate[0, stream, position] == pytest.approx(np.mean(slopes), rel=1e-5, abs=1e-9)
    assert abs(found.approximate).max() > 0


def test_attribution_needs_no_weights_with_gradient_and_leaves_the_model_as_it_was():
    model = small(ONE_OF_EACH["srm"]).train()
    free = srmlab.patch_grid(model, CLEAN, CORRUPT, METRIC)
    assert model.training
    frozen = srmlab.patch_grid(model.requires_grad_(False), CLEAN, CORRUPT, METRIC)
    np.testing.assert_allclose(free.approximate, frozen.approximate)


def test_a_gradient_everywhere_is_that_of_a_model_trained_through_every_layer():
    config = ONE_OF_EACH["srm"]
    found = []
    for model in (small(config), small(config.replace(gradient_depth=config.depth))):
        with gradient_everywhere():
            loss = model(CLEAN, CORRUPT)
        found.append(torch.autograd.grad(loss, model.embedding.weight)[0])
    assert found[0].equal(found[1])
    plain = small(config)
    assert not torch.autograd.grad(plain(CLEAN, CORRUPT), plain.embedding.weight)[0].equal(found[0])


def test_left_padding_gives_each_pair_what_it_has_alone():
    model = small(ONE_OF_EACH["srm"])
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    found = srmlab.patch_grid(
        model, Padded(CLEAN, mask), Padded(CORRUPT, mask), METRIC, ("layer", "position")
    )
    short = srmlab.patch_grid(model, CLEAN[1:, 2:], CORRUPT[1:, 2:], of_pair(1), ("layer", "position"))
    long = srmlab.patch_grid(model, CLEAN[:1], CORRUPT[:1], of_pair(0), ("layer", "position"))
    for name in ("change", "approximate"):
        first, second = getattr(long, name), getattr(short, name)
        np.testing.assert_allclose(getattr(found, name)[..., :2], first[..., :2], atol=1e-12)  # one pair only
        np.testing.assert_allclose(getattr(found, name)[..., 2:], (first[..., 2:] + second) / 2, atol=1e-12)
    assert np.isnan(found.mismatched[..., :2]).all()
    assert found.positions == ("−4", "−3", "−2", "−1")


@pytest.mark.parametrize("grid", [lambda *given: srmlab.patch_grid(*given, ("layer", "stream")), path_grid])
def test_a_shorter_prompts_padding_is_never_put_in(grid):
    model = small(ONE_OF_EACH["srm"])
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    with_others = [torch.where(mask.bool(), tokens, tokens.flip(1)) for tokens in (CLEAN, CORRUPT)]
    found, other = (
        grid(model, *(Padded(tokens, mask) for tokens in both), METRIC)
        for both in ((CLEAN, CORRUPT), with_others)
    )
    for name in ("change", "mismatched"):
        np.testing.assert_allclose(getattr(found, name), getattr(other, name), atol=1e-12)


def test_errors_are_over_pairs_and_the_null_is_another_corrupt_prompts_state():
    model = small(ONE_OF_EACH["srm"])
    found = srmlab.patch_grid(model, CLEAN, CORRUPT, METRIC)
    alone = [
        srmlab.patch_grid(model, CLEAN[p : p + 1], CORRUPT[p : p + 1], of_pair(p)).change for p in range(2)
    ]
    np.testing.assert_allclose(
        found.standard_error("change"), np.std(alone, axis=0, ddof=1) / 2**0.5, atol=1e-12
    )
    assert found.standard_error("share").shape == found.share.shape
    other = [oracle.cell(model, CORRUPT[p], CORRUPT[1 - p], of_pair(p), 1, [2], [3]) for p in range(2)]
    expected = np.mean(other) - mean(model, CORRUPT)
    assert found.mismatched[1, 2, 3] == pytest.approx(expected, abs=1e-10)
    single = srmlab.patch_grid(model, CLEAN[:1], CORRUPT[:1], of_pair(0))
    assert np.isnan(single.standard_error("change")).all()
    assert np.isnan(single.null).all()


def test_small_batches_give_the_same_grid(monkeypatch):
    model = small(ONE_OF_EACH["srm"])
    whole = srmlab.patch_grid(model, CLEAN, CORRUPT, METRIC)
    seen = []
    monkeypatch.setattr("srmlab.analysis.prompt_pairs.ROWS", 6)
    parts = srmlab.patch_grid(model, CLEAN, CORRUPT, METRIC, progress=lambda *done: seen.append(done))
    np.testing.assert_allclose(whole.change, parts.change, atol=1e-12)
    assert seen[-1] == (72, 72)
    assert len(seen) == 24


@pytest.mark.parametrize("name", ["srm", "srm from x", "srm with addition", "srm with pre- and post-steps"])
def test_a_path_is_one_message_changed_and_all_others_held(name):
    model = small(SMALL[name])
    found = path_grid(model, CLEAN, CORRUPT, METRIC)
    assert found.change.shape == (3, 3, 3)
    before = mean(model, CORRUPT)
    for layer, target, source in [(0, 0, 1), (1, 0, 2), (2, 1, 1), (2, 2, 0)]:
        patched = [
            oracle.path(model, CORRUPT[p], CLEAN[p], of_pair(p), layer, target, source) for p in range(2)
        ]
        assert found.change[layer, target, source] == pytest.approx(np.mean(patched) - before, abs=1e-10)
    constant = model.token_independent == (0,)
    assert (np.abs(found.change[0]).max() < 1e-12) == constant


def test_paths_from_streams_that_are_still_one_are_not_known(tmp_path):
    model = small(SMALL["hyper"])
    found = path_grid(model, CLEAN, CORRUPT, METRIC)
    assert np.isnan(found.share[0]).all()
    assert np.isfinite(found.share[1:]).all()
    before = mean(model, CORRUPT)
    for target, source in ((0, 1), (1, 1)):
        patched = [oracle.path(model, CORRUPT[p], CLEAN[p], of_pair(p), 1, target, source) for p in range(2)]
        assert found.change[1, target, source] == pytest.approx(np.mean(patched) - before, abs=1e-10)
    assert found.summary()
    found.figure().savefig(tmp_path / "paths.png")


def test_without_a_connection_no_path_has_an_effect():
    found = path_grid(small(SMALL["srm"].replace(connection="none")), CLEAN, CORRUPT, METRIC)
    assert np.abs(found.change).max() < 1e-12


def test_prompts_that_do_not_differ_have_no_shares():
    model = small(ONE_OF_EACH["srm"])
    for found in (srmlab.patch_grid(model, CLEAN, CLEAN, METRIC), path_grid(model, CLEAN, CLEAN, METRIC)):
        assert np.isnan(found.share).all()
        assert np.isnan(found.null).all()
        assert "nan" not in found.summary()
        assert all(draw(found).axes for draw in figures_of(found.kind).values())


def test_the_metrics_are_what_they_are_called():
    logits = torch.randn(2, 3, 13, dtype=torch.float64)
    last = logits[:, -1].log_softmax(-1)
    torch.testing.assert_close(METRIC(logits), last[[0, 1], RIGHT] - last[[0, 1], WRONG])
    torch.testing.assert_close(
        log_probability(RIGHT)(logits).double(), last[[0, 1], RIGHT], rtol=1e-5, atol=0
    )
    assert float(kl_from(logits)(logits).abs().max()) == 0
    found = srmlab.patch_grid(
        small(ONE_OF_EACH["srm"]), CLEAN, CORRUPT, kl_from(small(ONE_OF_EACH["srm"])(CLEAN)), "layer"
    )
    assert found.goal == 0 < found.before
    assert found.share[-1, 0, 0] == pytest.approx(1, abs=1e-6)


def test_results_are_saved_and_loaded(tmp_path):
    model = small(ONE_OF_EACH["srm"])
    for found in (
        srmlab.patch_grid(model, CLEAN, CORRUPT, METRIC, labels=list("abcd")),
        path_grid(model, CLEAN, CORRUPT, METRIC),
    ):
        again = srmlab.analysis.load(found.save(tmp_path / found.kind))
        np.testing.assert_array_equal(again.share, found.share)
        assert again.summary() == found.summary()
        assert again.figure() is not None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda m: srmlab.patch_grid(m, CLEAN, CORRUPT[:, :3], METRIC), "need equally many tokens"),
        (lambda m: srmlab.patch_grid(m, CLEAN, CORRUPT, METRIC, ("layer", "head")), "name some of layer"),
        (lambda m: srmlab.patch_grid(m, CLEAN, CORRUPT, lambda l: l.mean()), "a number for each pair"),
        (lambda m: srmlab.patch_grid(m, CLEAN, CORRUPT, METRIC, into="both"), "one of corrupt, clean"),
        (lambda m: srmlab.patch_grid(m, "a", "b", METRIC), r"or tokenizer\(texts\), not str"),
        (lambda m: srmlab.patch_grid(m, CLEAN, CORRUPT, METRIC, labels=["a"]), "1 labels for 4 positions"),
        (lambda _: path_grid(small(ONE_OF_EACH["gpt2"]), CLEAN, CORRUPT, METRIC), "gpt2 has none"),
    ],
)
def test_wrong_calls_are_refused_in_one_line(wrong, message):
    with pytest.raises(UserError, match=message) as refusal:
        wrong(small(ONE_OF_EACH["srm"]))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["srm", "hrm", "transformer"])
def test_the_positions_of_a_puzzle_model_are_its_cells(name):
    T = CLEAN.shape[1]
    config = SMALL[name].replace(causal=False, context=2 + T, puzzle_positions=2)
    model, stream = small(config), len(small(config).streams) - 1
    found = srmlab.patch_grid(model, CLEAN, CORRUPT, METRIC)
    together = srmlab.patch_grid(model, CLEAN, CORRUPT, METRIC, over=("layer", "stream"))
    before, last = mean(model, CORRUPT), len(model.points) - 1
    for position, places, grid in ((0, [2], found), (T - 1, [T + 1], found), (0, range(T + 2), together)):
        patched = [
            oracle.cell(model, CORRUPT[p], CLEAN[p], of_pair(p), last, [stream], list(places))
            for p in range(2)
        ]
        at = last, stream, position
        assert grid.change[at] == pytest.approx(np.mean(patched) - before, abs=1e-10)
        assert np.isfinite(grid.approximate[at])
    if model.exchanges:
        paths = path_grid(model, CLEAN, CORRUPT, METRIC)
        _, cache = model.run_with_cache(CLEAN, "layers.1.out")
        assert cache["layers.1.out"].shape[1] == T + 2
        assert np.abs(paths.change[2]).max() > 1e-9


@pytest.mark.parametrize("answer", [" States", 7, torch.tensor(7), torch.tensor([0.5])])
def test_answers_that_are_no_ids_are_refused_when_the_metric_is_made(answer):
    with pytest.raises(UserError, match=r"wrong = .*: give ids \[pair\], such as torch"):
        logit_difference(RIGHT, answer)
    with pytest.raises(UserError, match=r"right = .*: give ids"):
        log_probability(answer)
