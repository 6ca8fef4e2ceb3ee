"""`srmlab sweep` from outside: runs in processes of their own, stopped and resumed, shown and refused."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import srmlab.experiments.catalogue as catalogue
from srmlab.cli import main
from srmlab.cli.sweep import shared_fingerprint, steps_of
from srmlab.data import PrepareConfig, prepare
from srmlab.experiments import Cell, Experiment, dispatch
from srmlab.experiments.jobs import make_jobs, read_plan, run_job, write_plan
from srmlab.experiments.runs import Records
from srmlab.models import SRMConfig
from srmlab.training.config import TrainConfig
from srmlab.training.objective import open_data

MODEL = SRMConfig(
    vocab_size=257, context=16, embedding_dim=8, streams=3, stream_dim=8, mlp_dim=16,
    token_heads=2, head_dim=4, stream_heads=2, depth=3, gradient_depth=2,
)  # fmt: skip
TRAINING = TrainConfig(
    steps=6, batch_size=4, lr=1e-2, warmup=1, eval_every=6, eval_tokens=64, checkpoint_every=2,
    peak_flops=1e11, device="cpu",
)  # fmt: skip


def tiny_cells(scale):  # noqa: ARG001
    kinds = ("attention", "none")
    return [Cell(name=kind, model=MODEL.replace(connection=kind), training=TRAINING) for kind in kinds]


TINY = Experiment(
    name="tiny",
    question="Does it run?",
    claim="It does.",
    cells=tiny_cells,
    verdict=lambda found: [found.compare("attention", "none")],
    measures=("depths", "exits"),
)


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    (folder / "words.txt").write_text(
        "\n\n".join(f"the stream {n} meets the step {n * n}" for n in range(300))
    )
    out = folder / "data"
    prepare(PrepareConfig(source=str(folder / "words.txt"), out=out, tokenizer="byte", section_chars=300))
    return out


def test_tables_know_data_again_wherever_its_text_lay(words, tmp_path):
    def prepared(folder, text):
        folder.mkdir()
        (folder / "words.txt").write_text(text)
        config = PrepareConfig(str(folder / "words.txt"), folder / "data", "byte", section_chars=300)
        prepare(config)
        return open_data(folder / "data")

    text = (words.parent / "words.txt").read_text()
    here, same, other = open_data(words), prepared(tmp_path / "a", text), prepared(tmp_path / "b", text[1:])
    assert shared_fingerprint(here) == shared_fingerprint(same) != shared_fingerprint(other)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(catalogue.EXPERIMENTS, "tiny", TINY)


def sweep(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main(["sweep", *map(str, arguments)])
    return left.value.code  # pyright: ignore


def test_a_sweep_from_its_runs_to_its_table(words, tmp_path, capsys, monkeypatch):
    out = tmp_path / "sweeps"
    options = ("--out", out, "--data", words, "--seeds", 2)
    assert sweep("tiny", *options) == 0
    said = capsys.readouterr().out
    assert "4/4" in said
    assert "Does it run?" in said
    assert "4 of 4 runs" in said
    table = (out / "tiny-mini" / "table.md").read_text()
    assert "| attention |" in table
    assert "attention " in table.split("What came out")[1]
    for name in ("figure.png", "figure.svg", "result.json"):
        assert (out / "tiny-mini" / name).stat().st_size > 0
    found = json.loads((out / "tiny-mini" / "result.json").read_text())
    assert [len(cell["runs"]) for cell in found["cells"]] == [2, 2]
    assert list(found["cells"][0]["runs"][0]["depths"]) == [str(d) for d in range(1, 7)]

    # nothing is done twice
    files = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("metrics.jsonl")}
    assert len(files) == 4
    assert sweep("tiny", *options) == 0
    assert {path: path.stat().st_mtime_ns for path in files} == files
    capsys.readouterr()

    assert sweep("show", "tiny", *options, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["cells"] == found["cells"]
    assert shown["verdict"][0].startswith("attention")

    # with --results, what all tables there decide is on one page
    assert sweep("tiny", *options, "--results", tmp_path / "results") == 0
    assert "## tiny, mini" in (tmp_path / "results" / "verdicts.md").read_text()
    assert not (out / "verdicts.md").exists()

    # what was written can be shown where the runs are not
    assert sweep("show", "tiny", "--out", tmp_path / "nowhere", "--results", out) == 0
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "results").symlink_to(out)
    monkeypatch.chdir(tmp_path / "checkout")
    assert sweep("show", "tiny", "--out", "nowhere") == 0
    assert "Does it run?" in capsys.readouterr().out

    assert sweep("tiny", *options, "--dry-run") == 0
    assert "4 runs, 0 of them left" in capsys.readouterr().out


def test_a_dry_run_leaves_nothing_behind(tmp_path, capsys, monkeypatch):
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("".join(f"{i} is followed by {i + 1}\n" for i in range(2000)))
    monkeypatch.setattr("srmlab.cli.sweep.MINI_SOURCE", str(text))
    monkeypatch.setattr("srmlab.cli.sweep.MINI_TOKENIZER", "byte")
    monkeypatch.setitem(catalogue.EXPERIMENTS, "tiny", TINY)
    assert sweep("tiny", "--out", out, "--dry-run") == 0
    assert "of them left" in capsys.readouterr().out
    assert not out.exists()


def start_here(plan: Path, number: int, *_: object) -> subprocess.CompletedProcess:
    """A job in this process, which has imported all that it needs."""
    done = subprocess.CompletedProcess([str(plan), number], run_job(str(plan), number))
    done.poll = lambda: done.returncode
    return done


def test_a_tuned_cell_finds_its_rate_before_it_gets_its_seeds(words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(dispatch, "start", start_here)  # it is about which runs are made

    def cells(scale):
        return [replace(cell, tuned=True) for cell in tiny_cells(scale)]

    tuned = replace(TINY, name="tuned", cells=cells, measures=())
    monkeypatch.setitem(catalogue.EXPERIMENTS, "tuned", tuned)
    options = ("--out", tmp_path, "--data", words, "--seeds", 2, "--only", "none")
    assert sweep("tuned", *options, "--dry-run") == 0
    assert "2 runs to begin with, 2 of them left; in all at least " in capsys.readouterr().out
    assert sweep("tuned", *options) == 0
    (found,) = json.loads((tmp_path / "tuned-mini" / "result.json").read_text())["cells"]
    assert [run["seed"] for run in found["runs"]] == [0, 1]
    rates = {float(rate): loss for rate, loss in found["rates"].items()}
    assert len(rates) >= 3
    assert found["training"]["lr"] == min(rates, key=lambda rate: rates[rate])
    assert found["runs"][0]["val_loss"] == min(rates.values())
    runs = len([*(tmp_path / "runs").rglob("metrics.jsonl")])
    assert runs == len(rates) + 1  # the second seed at the best rate alone


def test_a_run_that_diverges_is_an_outcome(words, tmp_path):
    wild = replace(tiny_cells("mini")[0], training=TRAINING.replace(lr=1e30))
    (job,) = make_jobs(TINY, [wild], 1, Records(tmp_path), words)
    plan = write_plan(tmp_path, "plan", [job])
    assert run_job(str(plan), 0) == 0
    assert job.done


def test_the_seeds_differ_and_a_job_is_the_same_in_any_process(words, tmp_path):
    jobs = make_jobs(TINY, TINY.cells("mini")[:1], 2, Records(tmp_path / "here"), words)
    plan = write_plan(tmp_path, "plan", jobs)
    assert read_plan(plan) == jobs
    for number in range(2):
        assert not jobs[number].done
        assert run_job(str(plan), number) == 0
        assert jobs[number].done
    first, second = ((Path(job.run) / "metrics.jsonl").read_text().splitlines()[0] for job in jobs)
    assert json.loads(first)["loss"] != json.loads(second)["loss"]


def test_another_sweep_of_the_experiment_leaves_the_plan_alone(words, tmp_path):
    first, second = (make_jobs(TINY, [cell], 2, Records(tmp_path), words) for cell in TINY.cells("mini"))
    plans = [write_plan(tmp_path / "plans", "tiny-mini", jobs) for jobs in (first, second)]
    assert [read_plan(plan) for plan in plans] == [first, second]
    assert write_plan(tmp_path / "plans", "tiny-mini", first) == plans[0]


def test_a_run_that_is_being_measured_has_taken_all_its_steps_and_no_more(words, tmp_path):
    (job, *_) = make_jobs(TINY, TINY.cells("mini"), 1, Records(tmp_path), words)
    assert steps_of(job) == 0
    log = Path(job.run) / "metrics.jsonl"
    log.parent.mkdir(parents=True)
    for lines, steps in ((4, 4), (6, 6), (9, 6)):  # evaluations have lines of their own
        log.write_text("{}\n" * lines)
        assert steps_of(job) == steps


def test_a_stopped_sweep_goes_on(words, tmp_path):
    """SIGTERM to the dispatcher: its runs save and end, and the same plan is gone on with."""
    jobs = make_jobs(TINY, TINY.plan("mini", steps=4000), 1, Records(tmp_path), words)
    plan = write_plan(tmp_path, "plan", jobs)
    script = (
        "import sys; from pathlib import Path; from srmlab.experiments.dispatch import on_this_machine\n"
        "found = on_this_machine(Path(sys.argv[1]), 2, print, lambda running: None)\n"
        "sys.exit(128 + found.signal)"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    runs = [Path(job.run) for job in jobs]
    with subprocess.Popen([sys.executable, "-c", script, str(plan)], env=environment) as process:
        try:
            deadline = time.monotonic() + 120
            while not all(any(run.glob("checkpoints/step-*")) for run in runs):
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.1)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    for run in runs:
        lines = (run / "metrics.jsonl").read_text().splitlines()
        assert (run / "checkpoints" / f"step-{len(lines)}").exists()  # all that was done is saved
    assert not any(job.done for job in jobs)


def test_a_table_of_other_data_is_not_overwritten(words, tmp_path, capsys):
    other = tmp_path / "other"
    (tmp_path / "other.txt").write_text("\n\n".join(f"a layer of {n} streams, once more" for n in range(300)))
    source = str(tmp_path / "other.txt")
    prepare(PrepareConfig(source=source, out=other, tokenizer="byte", section_chars=300))
    for data, code in ((words, 0), (other, 2)):
        options = ("--out", tmp_path / data.name, "--results", tmp_path / "results", "--data", data)
        assert sweep("tiny", *options, "--seeds", 1, "--only", "none") == code
    said = capsys.readouterr().err
    assert "has results on other data" in said
    assert "choose another --results" in said
    assert not (tmp_path / "other" / "runs").exists()
    table = (tmp_path / "results" / "tiny-mini" / "result.json").read_bytes()
    options = ("--out", tmp_path / "shown", "--data", other)
    assert sweep("tiny", *options, "--seeds", 1, "--only", "none") == 0
    assert sweep("show", "tiny", *options, "--results", tmp_path / "results") == 2
    assert (tmp_path / "results" / "tiny-mini" / "result.json").read_bytes() == table


def test_runs_of_a_cell_that_is_defined_anew_are_not_lost(words, tmp_path, capsys, monkeypatch):
    options = ("--out", tmp_path, "--data", words, "--seeds", 1)
    assert sweep("tiny", *options, "--only", "none") == 0
    table = (tmp_path / "tiny-mini" / "result.json").read_bytes()

    def longer(scale):
        return [replace(cell, training=TRAINING.replace(steps=8)) for cell in tiny_cells(scale)]

    monkeypatch.setitem(catalogue.EXPERIMENTS, "tiny", replace(TINY, cells=longer))
    capsys.readouterr()
    assert sweep("tiny", *options) == 2
    assert "has runs of 'none' as it was defined by another version" in capsys.readouterr().err
    assert (tmp_path / "tiny-mini" / "result.json").read_bytes() == table


def test_data_with_nothing_to_validate_on_is_refused_before_any_run(tmp_path, capsys):
    (tmp_path / "few.txt").write_text("the stream meets the step. " * 40)
    data = tmp_path / "data"
    prepare(PrepareConfig(source=str(tmp_path / "few.txt"), out=data, tokenizer="byte", val_fraction=0.0))
    assert sweep("tiny", "--out", tmp_path / "out", "--data", data, "--seeds", 1) == 2
    assert "too little to validate on" in capsys.readouterr().err
    assert not (tmp_path / "out" / "runs").exists()


def test_a_failing_run_is_named_and_the_others_are_made(words, tmp_path, capsys, monkeypatch):
    def cells(scale):
        good, bad = tiny_cells(scale)
        return [Cell(name="too long", model=bad.model, training=TRAINING.replace(context=64)), good]

    failing = Experiment(name="failing", question="?", claim="", cells=cells, verdict=lambda _: [])
    monkeypatch.setitem(catalogue.EXPERIMENTS, "failing", failing)
    assert sweep("failing", "--out", tmp_path, "--data", words, "--seeds", 1) == 2
    captured = capsys.readouterr()
    assert "1 of 2 runs failed; too long, seed 0: context = 64" in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert "attention, seed 0  done" in captured.out


def test_on_a_cluster_as_far_as_one_machine_shows_it(words, tmp_path, capsys):
    pytest.importorskip("submitit")
    options = ("--out", tmp_path, "--data", words, "--seeds", 1, "--on", "submitit-local")
    assert sweep("tiny", *options, "--slurm", "timeout_min=5") == 0
    assert "2 of 2 runs" in capsys.readouterr().out


def test_without_slurm_it_says_so(words, tmp_path, capsys):
    assert sweep("tiny", "--out", tmp_path, "--data", words, "--on", "slurm") == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_the_list(capsys):
    assert sweep("list") == 0
    said = capsys.readouterr().out
    for name in catalogue.EXPERIMENTS:
        assert name in said
    assert sweep("list", "--json") == 0
    assert {"name", "question", "claim", "cells"} == set(json.loads(capsys.readouterr().out)[0])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["step-order"], "did you mean 'step-ordering'"),
        ([], "srmlab sweep list"),
        (["show"], "give one experiment, `list`, or `show NAME`"),
        (["tiny", "--scale", "paper"], "--data missing"),
        (["tiny", "--seeds", "-1"], "--seeds -1: must be at least 1"),
        (["tiny", "--steps", "0"], "--steps 0: must be at least 1"),
        (["tiny", "--data", "/nowhere"], "/nowhere"),
        (["tiny", "--only", "nothing"], "the cells of tiny are attention; none"),  # before any data is made
        (["show", "tiny", "--out", "/nowhere"], "no results in"),
        (
            ["show", "tiny", "--out", "/a", "--results", "/b"],
            "no results in /b/tiny-mini: `srmlab",
        ),
        (["show", "tiny", "--scale", "small", "--out", "/a"], "`srmlab sweep tiny --scale small` runs it"),
        (["show", "tiny", "--only", "none"], "--only is for running an experiment; leave it out"),
        (["list", "--dry-run"], "--dry-run is for running an experiment; leave it out"),
        (["list", "--seeds", "2"], "--seeds is not for the list; leave it out"),
        (["tiny", "--on", "slurm", "--workers", "2"], "--workers is for --on machine; leave it out"),
    ],
)
def test_bad_input_is_one_line(arguments, complaint, capsys):
    assert sweep(*arguments) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert len(said.strip().splitlines()) == 1


def test_what_is_shown_of_puzzles_is_in_nats_per_cell(capsys, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    for name, unit in (("reasoning-depth", "cell"), ("transition", "token")):
        assert sweep("show", name, "--out", "/nowhere") == 0
        assert f"losses in nats per {unit}" in capsys.readouterr().out


def test_the_tables_of_a_clone_are_found_from_any_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert sweep("show", "transition") == 0
    assert "results/transition-mini/table.md" in capsys.readouterr().out
    monkeypatch.setattr("srmlab.cli.sweep.CLONE", tmp_path / "of an installed package, which has none")
    assert sweep("show", "transition") == 2
    assert "or give --results, such as the folder results/ of a clone" in capsys.readouterr().err


def test_slurm_options_are_key_and_value(words, tmp_path, capsys):
    options = ("--out", tmp_path, "--data", words, "--on", "submitit-local", "--slurm", "timeout")
    assert sweep("tiny", *options) == 2
    assert "write KEY=VALUE" in capsys.readouterr().err
