"""Every number of every result has a standard error, and the errors are right."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from constructed import SMALL, build, force_pattern

import srmlab.analysis
from srmlab.analysis import interventions
from srmlab.analysis.bootstrap import spread
from srmlab.analysis.result import Result, ResultError, plus_minus

GIVEN = {"depths", "sizes", "steps", "top_tokens"}  # not measured, so without error
EACH_TOKEN = {
    "kl",
    "loss_before",
    "loss_after",
    "top_before",
    "top_after",
}  # of an effect: one token's, no mean
# of puzzles, of pairs of prompts and of repeated tokens rather than of text; looked at in their own tests
WITH_OTHER_INPUT = {"cells", "fixed_points", "cell_probe", "patch_grid", "path_grid", "induction"}
NOT_NUMBERS = {  # properties that name, rank or describe
    "groups", "hubs", "labels", "names", "pairs", "ranking", "routed", "sinks", "streams", "uniform",
}  # fmt: skip


def text(seed: int, sequences: int = 12) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, SMALL.vocab_size, (sequences, 16), generator=generator)]


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    model, (tokens,) = build(), text(7)
    batches = list(tokens.split(3))
    cut = interventions.cut_edges(model, [(1, None, 0, 2)])
    return {
        **srmlab.analysis.survey(model, batches),
        "effect": srmlab.analysis.effect(model, batches[0], cut),
        "dynamics": srmlab.analysis.dynamics([(0, model), (10, build(init_seed=5))], batches),
        "edges": srmlab.analysis.edges(model, batches, draws=2),
    }


def test_every_kind_of_result_is_looked_at(results):
    kinds = {kind for kind, cls in Result.kinds.items() if cls.__module__.startswith("srmlab.analysis.")}
    assert {result.kind for result in results.values()} == kinds - WITH_OTHER_INPUT


def test_every_measured_field_has_its_standard_error(results):
    for kind, result in results.items():
        exempt = GIVEN | (EACH_TOKEN if kind == "effect" else set())
        for name in result.axes():
            if name in exempt:
                continue
            value, error = getattr(result, name), result.standard_error(name)
            assert error.shape == value.shape, f"{kind}.{name}"
            assert (np.isfinite(error) & (error >= 0)).all(), f"{kind}.{name}"


def test_every_derived_number_has_its_standard_error(results):
    for kind, result in results.items():
        properties = {name for name in dir(type(result)) if isinstance(getattr(type(result), name), property)}
        assert properties - set(result.derived()) <= NOT_NUMBERS, kind
        for name in result.derived():
            value, error = getattr(result, name), result.standard_error(name)
            assert error.shape == np.shape(value), f"{kind}.{name}"
            assert (np.isfinite(error) & (error >= 0)).all(), f"{kind}.{name}"


def test_the_summary_tells_the_errors(results):
    for kind, result in results.items():
        assert "±" in result.summary(), kind


def test_one_sequence_alone_has_no_errors(model):
    one = text(0, sequences=1)
    for result in srmlab.analysis.survey(model, one).values():
        for name in result.derived():
            assert np.isnan(result.standard_error(name)).all()
        assert "nan" not in result.summary()


def test_what_is_the_same_in_every_sequence_has_no_error(model, batches):
    force_pattern(model, torch.eye(4).roll(1, 0))
    found = srmlab.analysis.routing(model, batches)
    for name in found.derived():
        assert found.standard_error(name).max() < 1e-12, name


def test_a_bootstrapped_mean_has_the_error_of_a_mean(model):
    """Mean alignment is linear in the sequences, so its error is known without a bootstrap."""
    (tokens,) = text(1, sequences=32)
    found = srmlab.analysis.alignment(model, [tokens])
    each = np.array([srmlab.analysis.alignment(model, [row[None]]).mean for row in tokens])
    assert found.standard_error("mean") == pytest.approx(each.std(ddof=1) / len(each) ** 0.5, rel=0.25)


@pytest.mark.parametrize(
    ("analysis", "name"),
    [
        ("routing", "hub_score"),
        ("routing", "mean_stability"),
        ("drift", "cosine_median"),
        ("ablation", "cumulative_share"),
        ("logit_lens", "stream_mean"),
        ("depth", "mean_settling"),
    ],
)
def test_errors_are_the_spread_over_texts(model, analysis, name):
    """Measured on many texts, a number varies by what each measurement says is its error."""
    found = [getattr(srmlab.analysis, analysis)(model, text(seed)) for seed in range(40)]
    spread = np.std([getattr(result, name) for result in found], axis=0, ddof=1)
    told = np.mean([result.standard_error(name) for result in found], axis=0)
    ratio = np.sqrt((told**2).sum() / (spread**2).sum())
    assert 0.65 < ratio < 1.5


def test_errors_do_not_depend_on_the_batch_size(model, batches):
    whole = torch.cat(batches)
    one, other = (srmlab.analysis.routing(model, parts) for parts in (batches, whole.split(5)))
    for name in one.derived():
        np.testing.assert_allclose(one.standard_error(name), other.standard_error(name), atol=1e-9)


def test_errors_are_those_of_more_sequences_than_folds(model):
    few, many = (srmlab.analysis.routing(model, text(3, sequences)) for sequences in (24, 24 * 16))
    shrunk = many.standard_error("hub_score").mean() / few.standard_error("hub_score").mean()
    assert shrunk == pytest.approx(1 / 4, rel=0.4)


def test_a_number_that_is_not_there_is_refused_with_those_that_are(model, batches):
    with pytest.raises(
        ResultError, match="no standard error of 'hubs' in routing; there are frequency, weight"
    ):
        srmlab.analysis.routing(model, batches).standard_error("hubs")


def test_saved_arrays_of_another_result_are_refused(model, batches, tmp_path):
    srmlab.analysis.routing(model, batches).save(tmp_path / "one")
    srmlab.analysis.routing(model, batches[:2]).save(tmp_path / "other")
    (tmp_path / "other.npz").replace(tmp_path / "one.npz")
    with pytest.raises(
        ResultError, match=r"one\.npz is damaged, or not of one\.json; run the analysis again"
    ):
        srmlab.analysis.load(tmp_path / "one")


def test_sequences_without_targets_count_where_targets_do_not_matter(model):
    """Ablation's KL needs no targets; its errors are of all windows, whatever the loss has."""
    (tokens,) = text(5, sequences=24)
    targets = torch.full_like(tokens, -100)
    targets[:4] = tokens[:4]
    found = srmlab.analysis.ablation(model, [(tokens, targets)])
    ratio = found.standard_error("bits") / (found.standard_error("kl") * found.bits / found.kl)
    assert ((ratio > 0.7) & (ratio < 1.3)).all()


def test_a_number_that_most_draws_lack_has_an_infinite_error_and_one_that_is_unknown_none():
    value = np.array([1.0, 1.0, np.nan, 2.0])
    draws = np.array([[1.0, np.nan, 0.0, 2.0], [3.0, np.nan, 0.0, 2.0], [2.0, 1.0, 0.0, 2.0]])
    np.testing.assert_allclose(spread(value, draws), [np.std([1, 3, 2]), np.inf, np.nan, 0])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((0.1234, 0.0056, ".3f"), "0.123 ± 0.006"),
        ((0.5, np.nan, ".0%"), "50%"),
        ((np.nan, 0.1, ".0%"), "–"),
        ((0.5, np.inf, ".1f"), "0.5 ± inf"),
        ((128, 3.2, "d"), "128 ± 3"),
        ((-0.5, 0.012, "+.3g"), "-0.5 ± 0.01"),
    ],
)
def test_a_number_is_told_with_its_error(arguments, told):
    assert plus_minus(*arguments) == told
