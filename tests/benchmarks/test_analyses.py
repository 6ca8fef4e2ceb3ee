"""The bench of the analyses measures what it says, on as few tokens as asked."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def test_cost_is_told_as_two_ratios_with_their_token_count():
    from analyses import cost

    first_pass, ablation = cost("srm-nano", 256, rounds=1)
    assert (first_pass.asked, ablation.asked) == ("≤ 1.6", "≤ 1")
    assert first_pass.ratio == pytest.approx(first_pass.seconds[0] / first_pass.seconds[1])
    assert "256 tokens" in first_pass.note
    assert ablation.name == "ablation of 8 streams ÷ (forward + 1.2 × 8 output functions), srm-nano"


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text():
    from analyses import memory

    row = memory("srm-nano", 4096, 1024)
    assert row.unit == "MB"
    assert row.met
