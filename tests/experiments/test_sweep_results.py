"""From runs to sentences: means over seeds, what counts as clear, and what is read back."""

import json
import math

import numpy as np
import pytest

from srmlab.errors import UserError
from srmlab.experiments import Cell, CellResult, Experiment, SweepResult, collect
from srmlab.experiments.results import STUDENT, Run, holds, read_run, thinned
from srmlab.models import preset
from srmlab.training.config import TrainConfig

TRAINING = TrainConfig(steps=10, batch_size=2, context=8, warmup=0)
CELL = Cell(name="a", model=preset("srm-nano"), training=TRAINING, x=1.0)
EXPERIMENT = Experiment(
    name="tiny",
    question="Which?",
    claim="a.",
    cells=lambda _: [CELL],
    verdict=lambda found: [found.compare("a", "b")],
)


def cell(name: str, *losses: float, x: float | None = None, depths=None) -> CellResult:
    runs = [
        Run(seed, loss + 0.1, loss, 60.0, [(1, 5.0), (10, loss)], depths) for seed, loss in enumerate(losses)
    ]
    return CellResult(name, "s", x, None, 1000, 10, 160, {"depth": 8}, TRAINING.to_dict(), runs)


def result(*cells: CellResult) -> SweepResult:
    about = {"source": "words", "vocab_size": 257, "fingerprint": "f"}
    return SweepResult("tiny", "mini", 6, about, {"srmlab": "0"}, list(cells))


def test_noise_is_pooled_within_cells():
    found = result(cell("a", 1.0, 1.2), cell("b", 3.0, 3.1, 3.2), cell("c", 9.0))
    by_hand = math.sqrt((2 * 0.1**2 + 2 * 0.1**2) / 3)  # sums of squares over 1 + 2 degrees of freedom
    assert found.noise == pytest.approx(by_hand)
    assert math.isnan(result(cell("a", 1.0)).noise)


def test_a_difference_is_clear_past_students_bound():
    near = result(cell("a", 1.00, 1.10), cell("b", 1.30, 1.40))  # 4.2 standard errors; 2 degrees ask 4.3
    far = result(cell("a", 1.00, 1.10), cell("b", 2.10, 2.20))
    assert "lower by 0.300 ± 0.071, within the noise of the seeds" in near.compare("a", "b")
    assert "lower by 1.100 ± 0.071, clear" in far.compare("a", "b")
    assert "higher by 1.100" in far.compare("b", "a")
    assert "noise is not known" in result(cell("a", 1.0), cell("b", 2.0)).compare("a", "b")


def test_the_bounds_are_students():
    from scipy.stats import t

    assert pytest.approx([t.ppf(0.975, df) for df in range(1, len(STUDENT) + 1)], abs=0.005) == STUDENT


def test_a_cell_of_one_seed_is_judged_by_the_noise_of_all():
    """Three calm seeds say nothing about another cell's noise."""
    calm, wild, lone = cell("calm", 1.0, 1.01, 1.02), cell("wild", 3.0, 4.0, 5.0), cell("lone", 1.5)
    assert result(calm, lone).order("calm", "lone") == "lower"
    assert result(calm, wild, lone).order("calm", "lone") == "within the noise"
    assert result(calm, wild, lone).order("lone", "nowhere") is None
    assert result(lone, cell("other", 1.0)).order("lone", "other") is None


def test_a_missing_cell_says_nothing():
    found = result(cell("a", 1.0))
    assert found.compare("a", "b") == found.share("a", "b", "c") == found.spread("a") == ""
    assert found.verdict(EXPERIMENT) == ["Not enough runs for a verdict yet."]


def test_the_other_sentences():
    found = result(cell("a", 3.0, 3.0, x=1), cell("b", 2.2, x=4), cell("c", 2.0, 2.0, x=8))
    assert found.share("a", "b", "c") == "b has 80% of the 1.000 gained from a to c."
    assert found.share("c", "b", "a") == ""  # nothing is gained
    assert holds("it is so", True) == "“it is so” holds here."
    assert holds("it is so", None) == "“it is so” cannot be told from these runs."
    assert found.ranking("a", "b", "c") == "c 2.000 < b 2.200 < a 3.000."
    assert found.spread("a", "b").startswith("From 2.200 (b) to 3.000 (a), a spread of 0.800")
    assert (found.best("s"), found.best("none")) == ("c", "")
    assert found.best_of("s") == "s: best 2.000 at 8 (1: 3.000, 4: 2.200, 8: 2.000)."
    deep = result(cell("a", 3.0, depths={d: 3 + abs(d - 9) / 10 for d in range(1, 17)}))
    assert deep.depth_line("a") == "a: 3.500 at 4 layers, 3.100 at the trained 8, 3.700 at 16; least at 9."


def test_what_is_saved_is_read_back(tmp_path):
    found = result(cell("a", 1.0, 1.2, depths={8: 1.0, 9: 1.1}), cell("b", 2.0, 2.1))
    found.save(tmp_path, EXPERIMENT)
    assert SweepResult.load(tmp_path) == found
    text = (tmp_path / "table.md").read_text()
    assert "| a | 1,000 | 1e-05M | 1:00 | 1.200 | 1.100 ± 0.141 | 2 |" in text
    assert "The paper: a." in text
    assert "- a 1.100 against b 2.050: lower by 0.950" in text


def test_a_damaged_result_is_one_line(tmp_path):
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        SweepResult.load(tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        SweepResult.load(tmp_path / "nowhere")


def write_metrics(folder, losses, val_at: int | None) -> None:
    folder.mkdir(parents=True)
    rows = [{"step": s, "loss": loss, "tokens_per_second": 8.0} for s, loss in enumerate(losses, start=1)]
    if val_at is not None:
        rows.append({"step": val_at, "val_loss": 2.5})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_run_counts_when_it_has_finished(tmp_path):
    losses = [5.0, 4.0, 3.5, 3.3, 3.2, 3.1, 3.0, 2.9, 2.8, 2.6]
    write_metrics(tmp_path / "whole", losses, val_at=10)
    write_metrics(tmp_path / "half", losses[:5], val_at=5)
    found = read_run(tmp_path / "whole", CELL, 3)
    assert found is not None
    assert (found.seed, found.val_loss) == (3, 2.5)
    assert found.loss == pytest.approx((2.8 + 2.6) / 2)  # the last fifth
    assert found.seconds == pytest.approx(10 * 16 / 8.0)
    assert read_run(tmp_path / "half", CELL, 3) is None
    assert read_run(tmp_path / "nowhere", CELL, 3) is None
    assert read_run(tmp_path / "whole", CELL, 3, test_depth=16) is None  # not measured yet
    (tmp_path / "whole" / "depths.json").write_text('{"8": 2.5}')
    measured = read_run(tmp_path / "whole", CELL, 3, test_depth=16)
    assert measured is not None
    assert measured.depths == {8: 2.5}


def test_collecting_leaves_out_what_is_not_done(tmp_path):
    write_metrics(CELL.run_folder(tmp_path, 0), [3.0] * 10, val_at=10)
    write_metrics(CELL.run_folder(tmp_path, 1), [3.0] * 4, val_at=None)
    found = collect(EXPERIMENT, "mini", [CELL], tmp_path, 3, {"source": "words"})
    assert (found.finished, found.planned) == (1, 3)
    assert found["a"].parameters == 491_520


def test_a_curve_keeps_its_ends():
    losses = list(np.linspace(6, 3, 1000))
    curve = thinned(losses)
    assert len(curve) <= 60
    assert curve[0] == (1, 6.0)
    assert curve[-1][0] == 1000
    assert curve[-1][1] == pytest.approx(np.mean(losses[949:]), abs=1e-3)
