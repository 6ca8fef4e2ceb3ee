"""From runs to sentences: means over seeds, what counts as clear, and what is read back."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from srmlab.errors import UserError
from srmlab.experiments import (
    EXPERIMENTS,
    Cell,
    CellResult,
    Claim,
    Experiment,
    SweepResult,
    collect,
    experiment,
)
from srmlab.experiments.evidence import below
from srmlab.experiments.jobs import make_jobs
from srmlab.experiments.results import Run, markdown_table
from srmlab.experiments.runs import Records, read_run, thinned
from srmlab.experiments.verdicts import verdicts
from srmlab.models import preset
from srmlab.training.config import TrainConfig

PUBLISHED = Path(__file__).parents[2] / "results"
TRAINING = TrainConfig(steps=10, batch_size=2, context=8, warmup=0, eval_windows="first")
CELL = Cell(name="a", model=preset("srm-nano"), training=TRAINING, x=1.0)
EXPERIMENT = Experiment(
    name="tiny",
    question="Which?",
    claim="a.",
    cells=lambda _: [CELL],
    verdict=lambda found: [found.compare("a", "b")],
)


PUZZLES = replace(EXPERIMENT, puzzles={"mini": "sudoku:6x6"})


def cell(name: str, *losses: float, x: float | None = None, depths=None) -> CellResult:
    runs = [
        Run(seed, loss + 0.1, loss, 60.0, [(1, 5.0), (10, loss)], depths) for seed, loss in enumerate(losses)
    ]
    return CellResult(name, "s", x, None, 1000, 10, 160, {"depth": 8}, TRAINING.to_dict(), runs)


def result(*cells: CellResult) -> SweepResult:
    about = {"source": "words", "vocab_size": 257, "fingerprint": "f"}
    return SweepResult("tiny", "mini", 6, about, {"srmlab": "0"}, list(cells))


def test_differences_are_paired_by_seed():
    """What a seed does to both cells does not count as noise."""
    found = result(cell("a", 1.0, 2.0, 3.0), cell("b", 1.1, 2.1, 3.2))
    assert found.compare("a", "b") == (
        "a at 2.000 against b at 2.133: -0.133 [-0.277, +0.010] over 3 seeds, "
        "at equal parameters, tokens and FLOP."
    )
    unpaired = replace(found["b"], runs=[replace(run, seed=run.seed + 2) for run in found["b"].runs])
    assert "no two seeds in common" in result(found["a"], unpaired).compare("a", "b")


def test_a_comparison_says_what_is_equal():
    big = replace(cell("b", 2.0), parameters=2000, training_flops_per_token=51)
    found = result(cell("a", 1.0), big)
    assert found.equalities("a", "b") == "equal tokens, 0.5 × the parameters, 0.196 × the FLOP"
    assert found.equalities("b", "a") == "equal tokens, 2 × the parameters, 5.1 × the FLOP"


def test_the_table_says_where_a_rate_comes_from():
    assert cell("a", 1.0).rate == "0.001, given"
    assert replace(cell("a", 1.0), rates={5e-4: 2.0, 1e-3: 1.0, 2e-3: 3.0}).rate == "0.001"
    assert replace(cell("a", 1.0), rates={1e-3: 1.0, 2e-3: 3.0}).rate == "0.001, edge"


def elsewhere(losses, **changes):
    """A row of another machine's table: runs of CELL."""
    return replace(cell("there", *losses), model=CELL.model.to_dict(), **changes)


def test_what_a_table_holds_counts_under_any_name_if_it_was_trained_in_that_way(tmp_path):
    plan = [
        CELL,
        replace(CELL, name="the same"),
        replace(CELL, name="longer", training=TRAINING.replace(steps=20)),
    ]
    write_metrics(CELL.run_folder(tmp_path, 1), [3.0] * 10, val_at=10, val=1.5)
    records = Records(tmp_path, (result(elsewhere([1.0, 2.0, 3.0, 4.0])),))
    found = collect(EXPERIMENT, "mini", plan, records, 3, {"source": "words"})
    assert [one.name for one in found.cells] == ["a", "the same"]
    for one in found.cells:  # the run on this disk rather than the table's
        assert one.by_seed == {0: 1.0, 1: 1.5, 2: 3.0, 3: 4.0}
    assert (found.finished, found.planned) == (8, 4 + 4 + 3)
    assert collect(replace(EXPERIMENT, measures=("depths",)), "mini", plan, records, 3, {}).cells == []


def test_tables_of_other_data_do_not_count(tmp_path):
    folder = tmp_path / "results" / "tiny-mini"
    result(elsewhere([1.0])).save(folder, EXPERIMENT)
    assert len(Records.of(tmp_path, tmp_path / "results", "here", "f").tables) == 1
    assert Records.of(tmp_path, tmp_path / "results", "f", "other").tables == ()
    assert Records.of(tmp_path, None, "f", "f").tables == ()


def test_runs_on_other_data_are_refused_not_taken_for_these(tmp_path):
    folder = CELL.run_folder(tmp_path, 0)
    write_metrics(folder, [3.0] * 10, val_at=10)
    (folder / "run.json").write_text('{"data": {"fingerprint": "f"}}')
    assert collect(EXPERIMENT, "mini", [CELL], Records.of(tmp_path, None, "f", "f"), 1, {}).finished == 1
    with pytest.raises(UserError, match=r"seed-0 is a run on other data: choose another --out"):
        collect(EXPERIMENT, "mini", [CELL], Records.of(tmp_path, None, "other", "f"), 1, {})


def test_every_seed_that_has_been_run_counts_however_many_are_asked_for(tmp_path):
    for seed in range(4):
        write_metrics(CELL.run_folder(tmp_path, seed), [3.0] * 10, val_at=10)
    found = collect(EXPERIMENT, "mini", [CELL], Records(tmp_path), 2, {"source": "words"})
    assert (found.finished, found.planned) == (4, 4)


def test_a_seed_that_diverged_is_said_and_decides_nothing(tmp_path):
    for seed in range(3):
        write_metrics(CELL.run_folder(tmp_path, seed), [3.0] * 10, val_at=10 if seed else None)
    with open(CELL.run_folder(tmp_path, 0) / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 11, "loss": math.nan, "event": "nonfinite"}) + "\n")
    found = collect(EXPERIMENT, "mini", [CELL], Records(tmp_path), 3, {"source": "words"})
    assert (found.finished, found.planned) == (2, 3)
    assert found.table()[1][0][8] == "2, 1 diverged"
    assert "a diverged with seed 0" in found["a"].breaches
    there = Records(tmp_path / "elsewhere", (found,))  # and it is not forgotten on another machine
    assert collect(EXPERIMENT, "mini", [CELL], there, 3, {"source": "words"})["a"].diverged == [0]


def test_the_table_says_what_made_it_and_how_much_text_was_read():
    even, more = cell("a", 1.0, 2.0, 3.0), replace(cell("b", 1.0, 2.0), tokens=320)
    found = result(even)
    assert found.command == "`srmlab sweep tiny --scale mini --seeds 3`"
    assert found.tokens == "160 tokens"
    assert (
        replace(result(even, more), data=found.data | {"folder": "enwik8"}).command
        == "`srmlab sweep tiny --scale mini --data enwik8 --seeds 3`, "
        "with `--seeds 2` and `--only` for the cells that have fewer"
    )
    assert result(even, more).tokens == "160 to 320 tokens"


def test_a_cell_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(KeyError, match=r"'b' has not been run; there are \['a'\]"):
        result(cell("a", 1.0))["b"]


def test_a_search_and_its_seeds_go_on_where_another_machine_stopped(tmp_path):
    tuned = replace(CELL, tuned=True)

    def left(**table):
        jobs = make_jobs(EXPERIMENT, [tuned], 3, Records(tmp_path, (result(elsewhere(**table)),)), tmp_path)
        return [job.label for job in jobs]

    training = CELL.training.replace(lr=2e-3).to_dict()
    table = {"training": training, "rates": {1e-3: 2.5, 2e-3: 2.0}}
    assert left(losses=[2.0], **table) == ["a, rate 0.0005, seed 0"]
    table["rates"] |= {5e-4: 3.0}
    assert left(losses=[2.0], **table) == ["a, rate 0.004, seed 0"]  # the best is at the upper edge
    table["rates"] |= {4e-3: math.inf}
    assert left(losses=[2.0], **table) == ["a, seed 1", "a, seed 2"]
    assert left(losses=[2.0, 2.1, 2.2], **table) == []


def test_a_missing_cell_says_nothing():
    found = result(cell("a", 1.0))
    assert found.compare("a", "b") == found.share("a", "b", "c") == found.spread("a") == ""
    assert found.verdict(EXPERIMENT) == ["Not enough runs for a verdict yet."]


def test_claims_that_wait_for_a_cell_share_one_line():
    found = result(cell("a", 1.0, 1.1), cell("b", 2.0, 2.1))
    judged = replace(
        EXPERIMENT,
        verdict=lambda result: [
            result.claim("first", below, "a", "c"),
            result.claim("second", below, "a", "b"),
            result.claim("third", below, "d", "c"),
        ],
    )
    second, waiting = found.verdict(judged)
    assert second.startswith("“second” ")
    assert waiting == "Open, because these have not been run (c; d): “first”, “third”."


def test_the_other_sentences():
    found = result(cell("a", 3.0, 3.0, x=1), cell("b", 2.2, x=4), cell("c", 2.0, 2.0, x=8))
    assert found.share("a", "b", "c") == "b has 80 % of the 1.000 gained from a to c."
    assert found.share("c", "b", "a") == ""  # nothing is gained
    assert found.ranking() == "c 2.000 < b 2.200 < a 3.000."
    assert found.spread("a", "b").startswith("From 2.200 (b) to 3.000 (a), a spread of 0.800")
    assert found.best_of("s") == "s: best 2.000 at 8, at the edge of the grid (1: 3.000, 4: 2.200, 8: 2.000)."
    deep = result(cell("a", 3.0, depths={d: 3 + abs(d - 9) / 10 for d in range(1, 17)}))
    assert deep.depth_line("a") == "a: 3.500 at 4 layers, 3.100 at the trained 8, 3.700 at 16; least at 9."
    fixed = result(
        replace(deep["a"], model={"depth": 3}, runs=[replace(deep["a"].runs[0], depths={1: 3, 2: 2, 3: 1})])
    )
    assert fixed.depth_line("a") == "a: 3.000 at 1 layer, 1.000 at the trained 3; least at 3."


def test_columns_of_numbers_are_aligned_on_the_right():
    rows = [["", "loss", "seeds"], ["a", "1.2 ± 0.1", "3"], ["b", "13.4", "10"]]
    assert markdown_table(rows, numbers=True)[1] == "|---|--:|--:|"
    assert markdown_table(rows)[1] == "|---|---|---|"


def test_what_is_saved_is_read_back(tmp_path):
    found = result(cell("a", 1.0, 1.2, depths={8: 1.0, 9: 1.1}), cell("b", 2.0, 2.1))
    found.save(tmp_path, EXPERIMENT)
    assert SweepResult.load(tmp_path) == found
    text = (tmp_path / "table.md").read_text()
    assert "| a | 1,000 | 0.00016M | 0.0016M | 0.001, given | 1:00 | 1.200 | 1.100 ± 0.141 | 2 |" in text
    assert "The paper: a." in text
    assert "- a at 1.100 against b at 2.050: -0.950 [-1.585, -0.315] over 2 seeds" in text
    assert "do not meet the rules of evidence** (rates were not searched; validation read the head" in text


def test_boards_solved_and_machines_are_shown_where_they_are_known(tmp_path):
    bare = result(cell("a", 1.0, 1.2), cell("b", 2.0, 2.1))
    assert "boards" not in bare.markdown(PUZZLES)
    assert "Known to have run on" not in bare.markdown(PUZZLES)
    runs = [
        replace(run, solved=share, machine=machine)
        for run, share, machine in zip(bare["a"].runs, (0.25, 0.5), ("Y, 2 cores", "X, 4 cores"), strict=True)
    ]
    half = [replace(bare["b"].runs[0], solved=0.1), bare["b"].runs[1]]  # the other of an older table
    found = result(replace(bare["a"], runs=runs), replace(bare["b"], runs=half))
    found.save(tmp_path, PUZZLES)
    assert SweepResult.load(tmp_path) == found
    text = (tmp_path / "table.md").read_text()
    assert "| validation | seeds | boards |" in text
    assert "| 1.100 ± 0.141 | 2 | 37.5 % |" in text
    assert "| 2.050 ± 0.071 | 2 |  |" in text
    assert "boards are the test boards solved" in text
    assert text.endswith("`. Known to have run on: X, 4 cores; Y, 2 cores.\n")


def test_runs_of_another_machine_keep_its_name_in_a_table_that_goes_on_here(tmp_path):
    there = elsewhere([1.0])
    there = replace(there, runs=[replace(run, solved=0.5, machine="far") for run in there.runs])
    write_metrics(CELL.run_folder(tmp_path, 1), [3.0] * 10, val_at=10, val_solved=0.25)
    (CELL.run_folder(tmp_path, 1) / "run.json").write_text('{"machine": "near"}')
    records = Records(tmp_path, (result(there),))
    found = collect(EXPERIMENT, "mini", [CELL], records, 3, {"source": "words"})
    assert found.machines == ["far", "near"]
    assert found["a"].solved == 0.375


def test_a_table_of_before_is_read(tmp_path):
    result(cell("a", 1.0)).save(tmp_path, EXPERIMENT)
    content = json.loads((tmp_path / "result.json").read_text())
    for name in ("solved", "machine"):
        del content["cells"][0]["runs"][0][name]
    del content["cells"][0]["diverged"]
    (tmp_path / "result.json").write_text(json.dumps(content))
    assert SweepResult.load(tmp_path) == result(cell("a", 1.0))


def test_a_search_is_read_back_with_the_rates_that_diverged(tmp_path):
    searched = replace(cell("a", 1.0), rates={1e-3: 1.0, 2e-3: math.inf})
    result(searched).save(tmp_path, EXPERIMENT)
    assert "Infinity" not in (tmp_path / "result.json").read_text()
    assert SweepResult.load(tmp_path)["a"].rates == {1e-3: 1.0, 2e-3: math.inf}


@pytest.mark.parametrize("folder", sorted(PUBLISHED.glob("*/result.json")), ids=lambda path: path.parent.name)
def test_the_published_tables_say_what_the_rules_allow(folder):
    found = SweepResult.load(folder.parent)
    made = experiment(found.experiment)
    assert (folder.parent / "table.md").read_text() == found.markdown(made)
    if found.breaches(made):
        assert not any(
            f"” {word}: " in line for line in found.verdict(made) for word in ("holds", "does not hold")
        )


def test_the_published_page_of_verdicts_is_that_of_the_tables():
    assert (PUBLISHED / "verdicts.md").read_text() == verdicts(PUBLISHED)


def test_the_page_of_verdicts_counts_claims_and_says_which_wait_for_runs(tmp_path, monkeypatch):
    def judge(found: SweepResult) -> list[str | Claim]:
        claims = [found.claim(f"a is better than {other}", below, "a", other) for other in ("b", "c")]
        return [*claims, found.compare("a", "b")]

    cells = [replace(CELL, name=name) for name in "abc"]
    tiny = replace(EXPERIMENT, cells=lambda _: cells, verdict=judge)
    monkeypatch.setitem(EXPERIMENTS, "tiny", tiny)
    assert "In all: none yet." in verdicts(tmp_path)
    result(cell("a", 1.0, 2.0), cell("b", 2.0, 3.0)).save(tmp_path / "tiny-mini", tiny)
    page = verdicts(tmp_path)
    assert "In all: 1 undecided, 1 not run." in page  # the rates were not searched
    assert "Which? 2 of 3 cells, 2 seeds: [table](tiny-mini/table.md)." in page
    assert "| a is better than b | **undecided** | rates were not searched" in page
    assert "| a is better than c | **not run** | c has not been run |" in page


INTERVAL = re.compile(r"\[([+−-]?\d+\.\d\d+), ([+−-]?\d+\.\d\d+)\]")
ELSEWHERE = {  # what no table prints: added seeds alone, the first ones alone, and what was asked afterwards
    "docs/findings.md": [
        "[−0.008, +0.025]",
        "[−0.067, +0.223]",
        "[−0.342, +0.644]",
        "[−0.197, +0.484]",
        "[−0.079, −0.034]",
    ],
    "docs/reasoning.md": ["[−0.342, +0.644]", "[0.034, 0.079]"],
}


@pytest.mark.parametrize("page", ["README.md", "docs/findings.md", "docs/reasoning.md", "docs/family.md"])
def test_every_interval_on_the_page_is_one_of_a_table(page):
    """Or minus it: "a is 0.1 better" and "b is 0.1 worse"."""
    known: set[tuple[float, float]] = set()
    for table in PUBLISHED.glob("*/table.md"):
        for low, high in INTERVAL.findall(table.read_text()):
            known |= {(float(low), float(high)), (-float(high), -float(low))}
    astray = []
    for low, high in INTERVAL.findall((PUBLISHED.parent / page).read_text()):
        digits = len(low.partition(".")[2])
        wanted = float(low.replace("−", "-")), float(high.replace("−", "-"))
        if wanted not in {(round(a, digits), round(b, digits)) for a, b in known}:
            astray.append(f"[{low}, {high}]")
    assert astray == ELSEWHERE.get(page, [])


def test_a_damaged_result_is_one_line(tmp_path):
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        SweepResult.load(tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        SweepResult.load(tmp_path / "nowhere")


def test_a_result_of_another_format_is_said_once(tmp_path):
    result(cell("a", 1.0)).save(tmp_path, EXPERIMENT)
    content = json.loads((tmp_path / "result.json").read_text()) | {"format": 99}
    (tmp_path / "result.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"^[^(]*result.json has another format: write it again"):
        SweepResult.load(tmp_path)


def write_metrics(folder, losses, val_at: int | None, val: float = 2.5, **more: float) -> None:
    folder.mkdir(parents=True)
    rows = [{"step": s, "loss": loss, "tokens_per_second": 8.0} for s, loss in enumerate(losses, start=1)]
    if val_at is not None:
        rows.append({"step": val_at, "val_loss": val} | more)
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
    assert read_run(tmp_path / "whole", CELL, 3, ["depths"]) is None  # not measured yet
    (tmp_path / "whole" / "depths.json").write_text('{"8": 2.5}')
    measured = read_run(tmp_path / "whole", CELL, 3, ["depths"])
    assert measured is not None
    assert measured.depths == {8: 2.5}


def test_collecting_leaves_out_what_is_not_done(tmp_path):
    write_metrics(CELL.run_folder(tmp_path, 0), [3.0] * 10, val_at=10)
    write_metrics(CELL.run_folder(tmp_path, 1), [3.0] * 4, val_at=None)
    found = collect(EXPERIMENT, "mini", [CELL], Records(tmp_path), 3, {"source": "words"})
    assert (found.finished, found.planned) == (1, 3)
    assert found["a"].parameters == 491_520


def test_a_search_goes_on_until_its_best_is_inside(tmp_path):
    cell = replace(CELL, tuned=True)
    for rates, loss in (([5e-4, 1e-3], 2.5), ([2e-3], 2.0)):  # and then the best is at the upper edge
        assert Records(tmp_path).search(cell).missing(1e-3) == rates
        for rate in rates:
            above = 0.5 * (rate == 5e-4)
            write_metrics(cell.at(rate).run_folder(tmp_path, 0), [3.0] * 10, val_at=10, val=loss + above)
    assert Records(tmp_path).search(cell).missing(1e-3) == [4e-3]
    write_metrics(cell.at(4e-3).run_folder(tmp_path, 0), [3.0] * 10, val_at=None)
    with open(cell.at(4e-3).run_folder(tmp_path, 0) / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 11, "loss": math.nan, "event": "nonfinite"}) + "\n")
    search = Records(tmp_path).search(cell)
    assert search.missing(1e-3) == []
    assert (search.best, search.interior) == (2e-3, True)
    found = collect(EXPERIMENT, "mini", [cell], Records(tmp_path), 3, {"source": "words"})["a"]
    assert (found.training["lr"], found.mean) == (2e-3, 2.0)
    assert found.rates == {5e-4: 3.0, 1e-3: 2.5, 2e-3: 2.0, 4e-3: math.inf}
    assert "rates" not in " ".join(found.breaches)


def test_a_curve_keeps_its_ends():
    losses = list(np.linspace(6, 3, 1000))
    curve = thinned(losses)
    assert len(curve) <= 60
    assert curve[0] == (1, 6.0)
    assert curve[-1][0] == 1000
    assert curve[-1][1] == pytest.approx(np.mean(losses[949:]), abs=1e-3)


def test_a_run_has_one_loss_in_all_published_tables():
    """Experiments share runs: a cell that was run twice, on two machines, may not be told in two ways."""
    losses: dict[tuple[str, str, int], dict[str, float]] = {}
    for file in sorted(PUBLISHED.glob("*/result.json")):
        found = SweepResult.load(file.parent)
        for cell in found.cells:
            for run in cell.runs:
                key = (found.data["fingerprint"], cell.cell.folder, run.seed)
                losses.setdefault(key, {})[file.parent.name] = run.val_loss
    shared = [tables for tables in losses.values() if len(tables) > 1]
    assert shared
    assert not [tables for tables in shared if len(set(tables.values())) > 1]
