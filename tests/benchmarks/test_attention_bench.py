"""The bench of the arithmetic written by hand, at the smallest size that is computed so."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_every_part_and_a_step_are_timed_against_torchs_own(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import attention

    tiny = {"srm-nano": (1, 32)}
    rows = list(attention.run(1, sizes=tiny, steps=tiny))
    assert [row.denominator for row in rows] == ["by hand"] * 4 + ["its matmuls"]
    assert all(row.numerator == "torch's own" and row.ratio > 0 for row in rows)
