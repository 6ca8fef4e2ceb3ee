"""The law of a loss: what is known is found again, and what cannot be known is said."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from srmlab.cli import main
from srmlab.errors import UserError
from srmlab.experiments.fit import PowerLaw, fit, fit_curve, read_curve, smoothed
from subjects import trained_run

X = np.geomspace(1e5, 1e8, 50)


@pytest.mark.parametrize(("offset", "scale", "exponent"), [(2.0, 50, 0.3), (0.0, 30, 0.15), (1.7, 4e4, 0.9)])
def test_known_laws_are_found_again(offset, scale, exponent):
    found = fit(X, PowerLaw(offset, scale, exponent)(X))
    assert found.exponent == pytest.approx(exponent, rel=2e-3)
    assert found.offset == pytest.approx(offset, abs=0.01)
    assert found.scale == pytest.approx(scale, rel=0.03)


def test_the_fit_is_that_of_a_general_least_squares():
    from scipy.optimize import curve_fit

    loss = PowerLaw(2.0, 50, 0.3)(X) + np.random.default_rng(0).normal(0, 0.01, len(X))
    slow, _ = curve_fit(lambda x, e, a, b: e + a * x**-b, X, loss, p0=(2, 50, 0.3))
    found = fit(X, loss)
    assert (found.offset, found.exponent) == pytest.approx((slow[0], slow[2]), rel=5e-3)


def test_intervals_hold_the_truth_and_widen_with_distance():
    truth = PowerLaw(2.0, 50, 0.3)
    inside = 0
    for seed in range(8):
        found = fit_curve(X, truth(X) + np.random.default_rng(seed).normal(0, 0.01, len(X)), seed)
        low, high = found.interval(3e11)
        inside += low < float(truth(3e11)) < high
        near = found.interval(1e7)
        assert high - low > near[1] - near[0]
    assert inside >= 6


def test_it_says_how_far_to_trust_it():
    found = fit_curve(X, PowerLaw(2.0, 50, 0.3)(X))
    assert found.trust(1e7) == "within what was run"
    assert found.trust(5e8) == "5 times beyond the last point"
    assert "3,000 times beyond the last point; past ten times it is a guess" in found.trust(3e11)
    bare = fit_curve(X, PowerLaw(0.0, 30, 0.15)(X))
    assert "no floor is visible yet" in bare.trust(3e11) or bare.law.offset > 1e-6


def test_an_exponent_at_the_edge_of_those_searched_is_said_not_to_be_a_fit():
    words = "the exponent is at the edge of those searched, so this is not a fit"
    slow, steep, rising = 4 - 0.01 * np.log(X), 2 + (1e5 / X) ** 5, 3 + 0.01 * np.log(X)
    for loss in (slow, steep, rising):
        found = fit_curve(X, loss)
        assert found.trust(1e7) == f"within what was run; {words}"
        assert found.trust(3e11).endswith(words)
    assert words not in fit_curve(X, PowerLaw(2.0, 50, 0.3)(X)).trust(3e11)


def test_a_loss_that_does_not_fall_has_no_slope():
    assert fit(X, np.full(len(X), 3.0))(1e12) == pytest.approx(3.0)


def test_smoothing_keeps_the_mean_of_a_bin():
    steps = np.arange(1.0, 1001)
    places, means = smoothed(steps, np.log(steps))
    assert len(places) <= 60
    assert means == pytest.approx(np.log(places))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    run = trained_run(tmp_path_factory.mktemp("fit"))
    rows = [{"step": s, "loss": 2 + 5 * s**-0.5, "tokens_per_second": 1.0} for s in range(1, 201)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def copied(run: Path, to: Path, **changes: dict) -> Path:
    """The run with another run.json."""
    shutil.copytree(run, to)
    record = json.loads((run / "run.json").read_text())
    changed = record | {part: record[part] | own for part, own in changes.items()}
    (to / "run.json").write_text(json.dumps(changed))
    (to / "run.sha256").unlink()
    return to


def test_runs_are_named_by_what_tells_them_apart(run, tmp_path, capsys):
    one, other = (copied(run, tmp_path / name / "seed-0") for name in "ab")
    with pytest.raises(SystemExit):
        main(["fit", str(one), str(other), "--json"])
    assert [found["run"] for found in json.loads(capsys.readouterr().out)] == ["a/seed-0", "b/seed-0"]


def test_flop_are_those_of_the_depths_that_were_run(run, tmp_path):
    """Of steps at one and at two layers: between those of a run at one and of a run at two."""
    whole = read_curve(run).flops_per_token
    grown = copied(run, tmp_path / "grown", training={"depth_schedule": "grow:1"})
    flat = copied(run, tmp_path / "flat", model={"depth": 1, "gradient_depth": 1})
    assert read_curve(flat).flops_per_token < read_curve(grown).flops_per_token < whole


def test_a_decaying_rate_and_a_growing_depth_are_said_to_bend_the_curve(run, tmp_path, capsys):
    decay, growth = "the learning rate decays (cosine)", "the depth grows (grow:1)"
    both = {"schedule": "cosine", "depth_schedule": "grow:1"}
    for name, changes, told in (
        ("neither", {}, []),
        ("decays", {"schedule": "cosine"}, [decay]),
        ("both", both, [decay, growth]),
        ("in name only", {"schedule": "cosine", "lr_end": 1.0, "depth_schedule": "grow:3"}, []),
    ):
        path = str(copied(run, tmp_path / name, training=changes))
        with pytest.raises(SystemExit):
            main(["fit", path, "--json"])
        (found,) = json.loads(capsys.readouterr().out)
        assert [words in found["trust"] for words in (decay, growth)] == [w in told for w in (decay, growth)]
        with pytest.raises(SystemExit):
            main(["fit", path])
        shown = " ".join(capsys.readouterr().out.split())
        assert all(f"{words}, which bends the curve" in shown for words in told)
        assert shown.count("bends the curve") == len(told)


@pytest.mark.filterwarnings("default::srmlab.errors.Notice")
def test_puzzles_have_no_law_in_tokens(run, tmp_path, capsys):
    puzzles = copied(run, tmp_path / "sudoku", data={"puzzles": "sudoku:4x4"})
    with pytest.raises(SystemExit) as left:
        main(["fit", str(puzzles), str(run)])
    out, err = capsys.readouterr()
    assert left.value.code == 0
    assert out.startswith("run: loss")
    assert err == "srmlab fit: left out 1 of 2 runs: they are on puzzles, not counted in tokens\n"
    with pytest.raises(SystemExit) as left:
        main(["fit", str(puzzles)])
    assert left.value.code == 2
    assert "give runs on text" in capsys.readouterr().err


def test_a_run_of_too_few_steps_is_told_how_many_it_takes(run, tmp_path):
    short = copied(run, tmp_path / "short")
    rows = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    for steps in (0, 1, 10):
        (short / "metrics.jsonl").write_text("".join(rows[:steps]))
        with pytest.raises(UserError, match=f"short has {steps} steps, too few to fit: train for 16 or more"):
            read_curve(short)
    (short / "metrics.jsonl").write_text("".join(rows[:16]))
    assert fit_curve(read_curve(short).tokens, read_curve(short).loss).residual >= 0


def test_the_command_reads_runs_draws_and_refuses(run, tmp_path, capsys):
    curve = read_curve(run)
    capsys.readouterr()
    assert curve.tokens[-1] <= 200 * 4 * 16
    with pytest.raises(SystemExit) as left:
        main(["fit", str(run), "--out", str(tmp_path / "fit"), "--json"])
    assert left.value.code == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["law"]["offset"] == pytest.approx(2.0, abs=0.02)
    assert found["law"]["exponent"] == pytest.approx(0.5, abs=0.02)
    assert (tmp_path / "fit.png").stat().st_size > 1000
    with pytest.raises(SystemExit):
        main(["fit", str(run)])
    assert "it is a guess" in capsys.readouterr().out
    blocked = str(tmp_path / "fit.png" / "inside")
    for wrong in ([tmp_path], [run, "--tokens", "-1"], [run, "--tokens", "nan"], [run, "--out", blocked]):
        with pytest.raises(SystemExit) as left:
            main(["fit", *map(str, wrong)])
        assert left.value.code == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
    with pytest.raises(UserError, match="too few"):
        fit(X[:3], X[:3])
