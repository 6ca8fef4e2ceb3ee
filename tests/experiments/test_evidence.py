"""Verdicts from numbers: intervals by Student, pairs by seed, and no effect only within a margin."""

from dataclasses import replace

import numpy as np
import pytest

from srmlab.analysis.student import student
from srmlab.experiments.evidence import Claim, Difference, alike, below, every, not_above, paired, some
from srmlab.experiments.rates import MOST, Search


@pytest.mark.parametrize("level", [0.95, 0.99, 0.9917])
def test_the_bounds_are_students(level):
    from scipy.stats import t

    degrees = [1, 2, 3, 5, 9, 30]
    expected = [t.ppf((1 + level) / 2, freedom) for freedom in degrees]
    assert [student(freedom, level) for freedom in degrees] == pytest.approx(expected, rel=1e-4)


def test_the_interval_is_the_textbooks():
    from scipy.stats import ttest_rel

    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(2, 5))
    found = paired(dict(enumerate(a)), dict(enumerate(b)))
    expected = ttest_rel(a, b).confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-4)


def test_only_common_seeds_are_paired():
    found = paired({0: 1.0, 1: 2.0, 2: 9.0}, {0: 2.0, 1: 3.0, 3: 0.0})
    assert found == Difference(-1.0, 0.0, 2)
    assert paired({0: 1.0, 1: 2.0}, {0: 2.0}) is None


def test_intervals_cover_the_truth_as_often_as_they_say():
    generator = np.random.default_rng(1)
    hits = 0
    for _ in range(1000):
        seeds, own = generator.normal(size=3), generator.normal(0.5, 0.1, size=3)
        found = paired(dict(enumerate(seeds + own)), dict(enumerate(seeds)))
        assert found is not None
        hits += found.low < 0.5 < found.high
    assert 0.93 < hits / 1000 < 0.97


@pytest.mark.parametrize(
    ("mean", "half", "lower", "same", "no_higher"),
    [
        (-0.10, 0.05, "holds", "does not hold", "holds"),
        (-0.01, 0.005, "holds", "holds", "holds"),  # clear, and small
        (0.00, 0.01, "does not hold", "holds", "holds"),
        (0.00, 0.10, "undecided", "undecided", "undecided"),
        (-0.03, 0.04, "undecided", "undecided", "holds"),
        (0.10, 0.05, "does not hold", "does not hold", "does not hold"),
        (0.042, 0.039, "does not hold", "does not hold", "does not hold"),
    ],
)
def test_an_interval_decides_or_does_not(mean, half, lower, same, no_higher):
    found = Difference(mean, half, 3)
    assert below(found, 0.02) == lower
    assert alike(found, 0.02) == same
    assert not_above(found, 0.02) == no_higher


def test_without_pairs_nothing_is_decided():
    assert {test(None, 0.02) for test in (below, alike, not_above)} == {"undecided"}


def test_several_claims_stand_or_fall_together():
    yes, no, open_ = (Claim(v, v, v) for v in ("holds", "does not hold", "undecided"))  # pyright: ignore
    assert every("all", [yes, yes]).verdict == "holds"
    assert every("all", [yes, open_]).verdict == "undecided"
    assert every("all", [open_, no, yes]) == Claim("all", "does not hold", "does not hold")
    assert every("all", []).verdict == "undecided"
    assert [some("any", [c]).verdict for c in (yes, no, open_)] == ["does not hold", "holds", "undecided"]
    unrun = Claim("", "undecided", "b has not been run", missing="b")
    assert some("any", [unrun]) == replace(unrun, text="any")  # it stays known that runs are missing
    assert str(yes) == "“holds” holds: holds."
    assert str(open_) == "“undecided” is undecided: undecided."


def test_a_search_that_finds_no_end_gives_up_at_the_edge():
    losses: dict[float, float] = {}
    while missing := Search(losses).missing(4e-3):
        losses |= {rate: -rate for rate in missing}  # the higher the better
    assert len(losses) == MOST
    assert not Search(losses).interior
    assert Search(losses).best == max(losses) == 4e-3 * 2 ** (MOST - 2)
    assert str(Search({1e-3: 2.0, 2e-3: float("inf")})) == "0.001 of 0.001: 2.000, 0.002: diverged"
