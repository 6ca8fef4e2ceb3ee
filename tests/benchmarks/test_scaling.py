"""The bench of growth: fitted exponents are those of the numbers, and each point varies one thing."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def scaling(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import scaling

    return scaling


@pytest.mark.parametrize("power", [0, 0.5, 1, 2])
def test_the_exponent_of_a_power_is_found(scaling, power):
    assert scaling.exponent([3 * x**power for x in (5, 10, 20)]) == pytest.approx(power)


def test_batch_and_depth_grow_as_the_formulas_say(scaling):
    points = scaling.points()
    assert scaling.exponent([point.flops for point in points["batch"]]) == pytest.approx(1)
    assert scaling.exponent([point.bytes for point in points["depth"]]) == pytest.approx(0)
    assert 0 < scaling.exponent([point.flops for point in points["depth"]]) < 1


def test_a_point_is_measured(scaling):
    smallest = scaling.points()["batch"][0]
    seconds, peak = scaling.measure(smallest.model, 1, steps=1)
    assert seconds > 0
    assert peak >= 0
