"""Whether something happens at mid-depth, and whether it moves with the gradient: from curves over layers."""

from pathlib import Path

import pytest
from measured_runs import measured

import srmlab
from srmlab.analysis import survey
from srmlab.experiments import CellResult, SweepResult, experiment
from srmlab.experiments.evidence import Claim
from srmlab.experiments.results import Run
from srmlab.experiments.transition import (
    GRADIENT_DEPTHS,
    drift_ratios,
    judge,
    largest,
    lens_falls,
    place,
    table,
)
from srmlab.figures.sweeps import sweep_figure
from srmlab.models import SRMConfig
from srmlab.training.config import TrainConfig

MODEL = SRMConfig(
    vocab_size=257, context=16, embedding_dim=8, streams=3, stream_dim=8, mlp_dim=16,
    token_heads=2, head_dim=4, stream_heads=2, depth=8, gradient_depth=2, init_seed=5,
)  # fmt: skip
STILL = [0.5 * 0.4**t for t in range(7)]  # contracts
RISING = [-4.0 + 0.1 * layer for layer in range(8)]


def with_a_spike(layer: int, by: float) -> list[float]:
    """Drift that rises at the transition to this layer."""
    return [value * (by if t + 1 == layer else 1.0) for t, value in enumerate(STILL)]


def with_a_fall(layer: int) -> list[float]:
    return [value - (0.5 if at >= layer else 0.0) for at, value in enumerate(RISING)]


def result(**layers: int | list[int] | None) -> SweepResult:
    """Three seeds for each l; the curves have their events at these layers (a list: by seed), or none."""
    cells = []
    for l in GRADIENT_DEPTHS:
        given = layers[f"l{l}"]
        runs = []
        for seed in range(3):
            layer = given[seed] if isinstance(given, list) else given
            trained = (
                (STILL, RISING) if layer is None else (with_a_spike(layer, 5 + seed), with_a_fall(layer))
            )
            curves = {"drift": (trained[0], STILL), "logit lens": (trained[1], RISING)}
            runs.append(Run(seed, 2.0, 2.0, 60.0, [(1, 2.0)], profiles=curves))
        model, training = MODEL.replace(gradient_depth=l).to_dict(), TrainConfig().to_dict()
        cells.append(CellResult(f"l = {l}", "", l, None, 1, 1, 1, model, training, runs))
    about = {"source": "words", "vocab_size": 257, "fingerprint": "f"}
    return SweepResult("transition", "mini", 9, about, {"srmlab": "0"}, cells)


def verdicts(found: SweepResult) -> dict[str, str]:
    return {claim.text: claim.verdict for claim in judge(found) if not isinstance(claim, str)}


def test_the_largest_step_against_the_trend_and_the_layer_it_leads_to():
    ratios, falls = drift_ratios(with_a_spike(4, 5.0)), lens_falls(with_a_fall(3))
    assert (place(ratios), place(falls)) == (4, 3)
    assert largest(ratios) == pytest.approx(0.6931, abs=1e-3)  # 5 × 0.4
    assert largest(falls) == pytest.approx(0.4)
    assert largest(drift_ratios(STILL)) < 0
    assert largest(drift_ratios([0.1, 1e-9, 1e-7])) <= 0  # rounding is no spike


def test_an_effect_of_the_gradient_moves_with_it():
    found = verdicts(result(l2=6, l4=4, l8=None))
    assert found["drift has a spike, l = 2"] == found["drift has a spike, l = 4"] == "holds"
    assert found["drift has a spike, l = 8"] == "does not hold"
    assert found["drift has a spike, and it moves with l"] == "holds"
    assert found["the logit lens falls on the way, and it moves with l"] == "holds"


def test_a_phase_of_the_computation_stays():
    found = verdicts(result(l2=4, l4=4, l8=4))
    assert found["drift has a spike, l = 8"] == "holds"
    assert found["drift has a spike, and it moves with l"] == "does not hold"


def moved(found: SweepResult) -> Claim:
    text = "drift has a spike, and it moves with l"
    return next(claim for claim in judge(found) if isinstance(claim, Claim) and claim.text == text)


def test_seeds_are_counted_that_agree_on_a_layer():
    """An interval over equal whole numbers has no width, and would claim a certainty that nobody has."""
    agree = moved(result(l2=6, l4=4, l8=None))
    assert agree.because.endswith("by seed: 6 and 4, 6 and 4, 6 and 4; later in 3 of 3")
    some = moved(result(l2=[6, 6, 4], l4=4, l8=None))
    assert (some.verdict, some.because[-6:]) == ("undecided", "2 of 3")
    assert moved(result(l2=[4, 4, 3], l4=4, l8=4)).verdict == "does not hold"


def test_whether_it_moves_waits_for_cells_that_have_not_been_run():
    found = result(l2=6, l4=4, l8=None)
    found.cells[:] = found.cells[1:]
    assert (moved(found).verdict, moved(found).missing) == ("undecided", "l = 2")


def test_what_is_not_there_does_not_move():
    found = verdicts(result(l2=None, l4=None, l8=None))
    assert found["the logit lens falls on the way, l = 4"] == "does not hold"
    assert found["drift has a spike, and it moves with l"] == "undecided"


def test_the_second_table_and_the_figure():
    found = result(l2=6, l4=4, l8=None)
    heads, first, *_ = table(found)
    assert heads[1:] == ["trained", "untrained"]
    assert first[1] == "+0.693 (6), +0.875 (6), +1.030 (6)"
    assert "largest step" in found.markdown(experiment("transition"))
    drift, lens = sweep_figure(found).axes
    assert (drift.get_yscale(), lens.get_yscale()) == ("log", "linear")
    assert len(drift.lines) == len(lens.lines) == 3 * (3 * 2 + 1)


def test_a_run_is_measured_next_to_the_weights_it_began_from(tmp_path: Path):
    model, batches, found = measured(tmp_path, MODEL, "profiles")
    for position, one in enumerate((model, srmlab.build(MODEL))):
        whole = survey(one, batches, only=["drift", "logit_lens"])
        assert found["drift"][position] == pytest.approx(whole["drift"].profile, abs=1e-12)  # pyright: ignore
        lens = whole["logit_lens"].stream_mean[0]  # pyright: ignore
        assert found["logit lens"][position] == pytest.approx(lens, abs=1e-12)
    assert found["drift"][0] != found["drift"][1]
