"""`srmlab train`, `resume` and `evaluate` from outside: what they print, and what they refuse in one line."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_runs import VOCAB, write_data

import srmlab
from srmlab.cli import main
from srmlab.storage import read_metrics
from srmlab.storage.weights import verify
from srmlab.training import recipe
from srmlab.training.config import Execution

SMALL = f"""
[model]
vocab_size = {VOCAB}
context = 16
streams = 3
stream_dim = 8
mlp_dim = 16
embedding_dim = 8
depth = 3
gradient_depth = 2

[training]
steps = 6
batch_size = 4
warmup = 2
eval_tokens = 64
peak_flops = 1e11
"""


@pytest.fixture
def toml(tmp_path) -> str:
    (tmp_path / "small.toml").write_text(SMALL)
    return str(tmp_path / "small.toml")


def srmlab_command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    return left.value.code  # pyright: ignore


def test_train_resume_evaluate(data, tmp_path, toml, capsys):
    run = tmp_path / "run"
    assert (
        srmlab_command("train", "srm-nano", "--data", data, "--out", run, "--config", toml, "--lr", "0.002")
        == 0
    )
    said = capsys.readouterr().out
    assert "step      6/6  loss" in said
    assert "done: training loss" in said
    about = json.loads((run / "run.json").read_text())
    assert about["training"]["lr"] == 0.002  # the command line …
    assert about["training"]["steps"] == 6  # … before the file …
    assert about["training"]["seed"] == recipe("srm-nano").seed  # … before the preset's recipe
    assert about["training"]["schedule"] == recipe("srm-nano").schedule
    assert about["model"]["streams"] == 3
    assert about["preset"] == "srm-nano"

    assert srmlab_command("resume", run) == 0
    assert "resuming after step 6" in capsys.readouterr().out
    assert srmlab_command("evaluate", run, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["loss"]["standard_error"] > 0
    assert answer["references"]["bigram"] < answer["references"]["unigram"] < answer["references"]["uniform"]
    assert answer["text_bytes"] < answer["tokens"]  # end-of-text is no text
    assert srmlab_command("evaluate", run) == 0
    assert "bits per byte" in capsys.readouterr().out


def test_the_vocabulary_is_by_default_that_of_the_text(data, tmp_path, capsys):
    options = ("--data", data, "--out", tmp_path / "run", "--context", "16", "--dry-run", "--json")
    plans = []
    for given in ((), ("--model.vocab-size", VOCAB)):
        assert srmlab_command("train", "srm-nano", *options, *map(str, given)) == 0
        plans.append(json.loads(capsys.readouterr().out)["parameters"])
    assert plans[0] == plans[1] < srmlab.build(srmlab.preset("srm-nano")).num_parameters()


def test_one_file_can_say_everything(data, tmp_path):
    everything = f'preset = "gpt2-nano"\ndata = "{data}"\nout = "{tmp_path / "run"}"\n'
    (tmp_path / "all.toml").write_text(
        everything + f"[model]\nvocab_size = {VOCAB}\ncontext = 16\ndim = 8\nheads = 2\nblocks = 1\n"
        "[training]\nsteps = 2\nbatch_size = 2\nwarmup = 0\nbetas = [0.8, 0.9]\npeak_flops = 1e11\n"
    )
    assert srmlab_command("train", "--config", tmp_path / "all.toml", "--steps", "1") == 0
    about = json.loads((tmp_path / "run/run.json").read_text())
    assert (about["training"]["steps"], about["training"]["betas"]) == (1, [0.8, 0.9])
    assert about["model"]["architecture"] == "gpt2"


def test_a_dry_run_prints_the_plan_and_touches_nothing(data, tmp_path, toml, capsys):
    options = ("--data", data, "--out", tmp_path / "run", "--config", toml, "--dry-run")
    assert srmlab_command("train", "srm-nano", *options) == 0
    told = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert told == ["parameters", "tokens", "arithmetic", "memory", "time"]
    assert srmlab_command("train", "srm-nano", *options, "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["tokens"] == 6 * 4 * 16
    assert plan["flops"] == plan["tokens"] * plan["training_flops_per_token"]
    assert plan["state_bytes"] == 16 * plan["parameters"]
    capsys.readouterr()
    assert srmlab_command("train", "srm-nano", *options[:-1], "--json") == 2
    assert "--json is for --dry-run; leave it out" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_help_shows_the_fields_with_the_presets_values(capsys):
    assert srmlab_command("train", "srm-nano", "--help") == 0
    said = capsys.readouterr().out
    assert "--model.streams INT" in said
    assert "--weight-decay FLOAT" in said
    assert "srmlab train srm-nano --data" in said


BAD = {
    "unknown preset": (["srm-nan"], "did you mean 'srm-nano'?"),
    "unknown option": (["srm-nano", "--lrr", "1"], "did you mean '--lr'?"),
    "wrong type": (["srm-nano", "--lr", "fast"], "--lr 'fast': must be a number"),
    "impossible value": (["srm-nano", "--lr", "-1"], "lr = -1.0: must be positive"),
    "impossible model": (["srm-nano", "--model.order", "AXB"], "there is no step function X"),
    "indivisible batch": (["srm-nano", "--accumulate", "3"], "accumulate = 3: must divide batch_size = 4"),
    "context too long": (["srm-nano", "--context", "17"], "the model's is 16; shorten it, or set --model"),
    "vocabulary": (["srm-nano", "--model.vocab-size", "4096"], "has 257 ids; set --model.vocab-size 257"),
    "no GPU": (["srm-nano", "--device", "cuda:7"], "device = 'cuda:7'"),
    "no device to compute on": (["srm-nano", "--device", "meta"], "device = 'meta': nothing can be computed"),
    "no such device": (["srm-nano", "--device", "gpu"], "use cpu, cuda, cuda:1 or auto"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_with_code_2_and_touches_nothing(case, data, tmp_path, toml, capsys):
    arguments, message = BAD[case]
    assert (
        srmlab_command("train", *arguments, "--data", data, "--out", tmp_path / "run", "--config", toml) == 2
    )
    check_one_line(capsys, message)
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]


def check_one_line(capsys, message: str) -> None:
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert message in said.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[training]\nstepps = 3", "stepps: not a field of TrainConfig; did you mean 'steps'?"),
        (
            "[modell]\nstreams = 3",
            "modell is not one of preset, init_from, data, out, model, training; did you mean 'model'?",
        ),
        ("model = 3", "model = 3: must be a table"),
        ("[training]\nsteps = 'six'", "steps = 'six': must be a whole number"),
        ("[model]\nstreams = 'three'", "streams = 'three': must be a whole number"),
        ("what is this", "is not TOML"),
    ],
)
def test_a_bad_file_is_refused(content, message, data, tmp_path, capsys):
    (tmp_path / "bad.toml").write_text(content)
    arguments = ("--data", data, "--out", tmp_path / "run", "--config", tmp_path / "bad.toml")
    assert srmlab_command("train", "srm-nano", *arguments) == 2
    check_one_line(capsys, message)


TINY = ("--model.streams", 2, "--model.stream-dim", 8, "--model.embedding-dim", 8, "--model.mlp-dim", 8)
SHORT = ("--model.context", 16, "--steps", 2, "--batch-size", 2, "--eval-tokens", 64, "--peak-flops", "1e11")


def test_text_is_prepared_next_to_the_run_and_only_once(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "\n\n".join(f"stream {n} meets step {n * n} of {n % 7}" for n in range(2000))
    Path("notes.txt").write_text(text)
    options = ("--data", "notes.txt", *TINY, *SHORT)
    assert srmlab_command("train", "srm-nano", *options, "--out", "runs/notes", "--dry-run") == 2
    prepare = "srmlab prepare notes.txt --out runs/notes-data --tokenizer bpe:512"
    check_one_line(capsys, f"run `{prepare}` first, then give --data runs/notes-data")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]

    assert srmlab_command("train", "srm-nano", *options, "--out", "runs/notes") == 0
    said = capsys.readouterr().out
    assert f"$ {prepare}" in said
    assert "done: training loss" in said
    about = json.loads(Path("runs/notes/run.json").read_text())
    assert about["model"]["vocab_size"] == 512
    assert about["training"]["warmup"] == 0  # the recipe's 20 is for 560 steps

    assert srmlab_command("train", "srm-nano", *options, "--out", "runs/notes") == 2
    check_one_line(capsys, "runs/notes")
    assert srmlab_command("train", "srm-nano", *options, "--out", "runs/notes", "--resume") == 0
    assert "using runs/notes-data, prepared before" in capsys.readouterr().out
    started = ("--init-from", "runs/notes", "--data", "notes.txt", "--out", "runs/more", "--steps", 2)
    assert srmlab_command("train", *started, "--batch-size", 2, "--eval-tokens", 64) == 0
    assert "--tokenizer runs/notes/tokenizer" in capsys.readouterr().out

    os.utime("notes.txt", (time.time() + 60,) * 2)
    assert srmlab_command("train", "srm-nano", *options, "--out", "runs/notes", "--resume") == 2
    check_one_line(capsys, "notes.txt has changed since runs/notes-data was prepared")
    Path("other.txt").write_text(text)
    other = ("--data", "other.txt", "--out", "runs/notes", "--resume")
    assert srmlab_command("train", "srm-nano", *TINY, *SHORT, *other) == 2
    check_one_line(capsys, "runs/notes-data was prepared from notes.txt")


def test_a_task_is_prepared_byte_by_byte_and_found_again(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--data", "task:addition", *TINY, *SHORT, "--out", "run")
    prepare = prepare_problems(monkeypatch, 600)
    assert srmlab_command("train", "srm-nano", *options) == 0
    assert f"$ {prepare} --tokenizer byte" in capsys.readouterr().out
    assert srmlab_command("train", "srm-nano", *options, "--resume") == 0
    assert "using run-data, prepared before" in capsys.readouterr().out
    other = ("--data", "task:addition:1", *TINY, *SHORT, "--out", "run", "--resume")
    assert srmlab_command("train", "srm-nano", *other) == 2
    check_one_line(capsys, "run-data was prepared from task:addition:1-4:600: choose another --out")


def prepare_problems(monkeypatch: pytest.MonkeyPatch, count: int) -> str:
    """Fewer problems in a task that does not say how many; the command that prepares addition."""
    monkeypatch.setattr("srmlab.tasks.corpus.PROBLEMS", count)
    return "srmlab prepare task:addition --out run-data"


def test_what_preparing_refuses_is_said_to_be_of_another_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("too short to learn 512 ids from")
    assert srmlab_command("train", "srm-nano", "--data", "notes.txt", "--out", "run") == 2
    said = capsys.readouterr()
    assert "$ srmlab prepare notes.txt --out run-data --tokenizer bpe:512" in said.out
    assert "(to use other options, run that command yourself, then give --data run-data)" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("held_out", [True, False])
def test_a_run_without_validation_loss_says_why(held_out, tmp_path, capsys, data):
    short = data if held_out else write_data(tmp_path / "data", val_fraction=0.0)
    assert srmlab_command("train", "srm-nano", "--data", short, *TINY, *SHORT, "--out", tmp_path / "run") == 0
    told = "no validation loss: less text than one window is held out" in capsys.readouterr().out
    assert told != held_out


def test_several_processes_want_their_text_prepared(tmp_path, capsys, monkeypatch):
    (tmp_path / "notes.txt").write_text("one text\n\n" * 100)
    monkeypatch.setenv("WORLD_SIZE", "2")
    data = ("--data", tmp_path / "notes.txt", "--out", tmp_path / "run")
    assert srmlab_command("train", "srm-nano", *data) == 2
    check_one_line(capsys, "several processes need it prepared; run `srmlab prepare")


def test_data_that_the_model_cannot_read_is_refused_before_it_is_prepared(tmp_path, capsys):
    text = tmp_path / "notes.txt"
    text.write_text("one text\n\n" * 100)
    out = ("--out", tmp_path / "run")
    assert srmlab_command("train", "srm-nano", "--data", "sudoku:4x4", *out) == 2
    check_one_line(capsys, "sudoku:4x4 holds puzzles, but the model reads text")
    assert srmlab_command("train", "srm-sudoku-nano", "--data", text, *out) == 2
    check_one_line(capsys, "notes.txt is text, but the model reads puzzles")
    assert list(tmp_path.iterdir()) == [text]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--context", "300"), "context = 300: the model's is 256"),
        (("--init-from", "nowhere"), "nowhere does not exist"),
        (("--init-from", "srm-nano", "--model.streams", "4"), "does not fit the model"),
        (("--device", "gpu"), "device = 'gpu': use cpu"),
        (("--ema", "0.9"), "ema = 0.9: is for puzzles"),
        (("--depth-schedule", "grow:9"), "depth_schedule = 'grow:9'"),
    ],
)
def test_what_no_text_would_mend_is_refused_before_it_is_prepared(options, message, tmp_path, capsys):
    text = tmp_path / "notes.txt"
    text.write_text("one text\n\n" * 100)
    assert srmlab_command("train", "srm-nano", "--data", text, "--out", tmp_path / "run", *options) == 2
    check_one_line(capsys, message)
    assert list(tmp_path.iterdir()) == [text]


def test_a_recipes_own_option_is_not_refused_where_it_means_nothing(tmp_path):
    options = ("--model.puzzle-positions", 0, "--model.context", 16, "--steps", 1, "--warmup", 0)
    options = (*options, "--batch-size", 2, "--eval-tokens", 64, "--peak-flops", "1e11", "--device", "cpu")
    puzzles = tmp_path / "puzzles"
    assert (
        srmlab_command("prepare", "sudoku:4x4", "--count", 20, "--val-fraction", 0.2, "--out", puzzles) == 0
    )
    where = ("--data", puzzles, "--out", tmp_path / "run")
    assert srmlab_command("train", "srm-sudoku-nano", *where, *options) == 0


def test_an_option_of_puzzles_is_refused_with_text(data, tmp_path, toml, capsys):
    options = ("--data", data, "--out", tmp_path / "run", "--config", toml, "--ema", "0.9")
    assert srmlab_command("train", "srm-nano", *options) == 2
    check_one_line(capsys, "ema = 0.9: is for puzzles; leave it out with text")
    assert not (tmp_path / "run").exists()


def test_the_end_of_a_schedule_that_there_is_not_is_refused(data, tmp_path, capsys):
    options = ("--data", data, "--out", tmp_path / "run", *TINY, *SHORT, "--lr-end", "0.5")
    assert srmlab_command("train", "srm-nano", *options, "--schedule", "constant") == 2
    check_one_line(capsys, "lr_end = 0.5: is for the cosine schedule; set --schedule cosine")
    assert not (tmp_path / "run").exists()


def test_bad_data_is_refused(tmp_path, toml, capsys):
    options = ("--out", tmp_path / "run", "--config", toml)
    assert srmlab_command("train", "srm-nano", "--data", tmp_path, *options) == 2
    check_one_line(capsys, "run srmlab prepare first")
    assert srmlab_command("train", "srm-nano", "--data", tmp_path / "none.txt", *options) == 2
    check_one_line(capsys, "none.txt does not exist: give a text file")
    small = write_data(tmp_path / "small", sections=2, val_fraction=0.0)
    assert srmlab_command("train", "srm-nano", "--data", small, *options, "--model.context", "5000") == 2
    check_one_line(capsys, "fewer than one window")
    shard = small / "train-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-2])
    assert srmlab_command("train", "srm-nano", "--data", small, *options) == 2
    check_one_line(capsys, "train-00000.bin")
    assert not (tmp_path / "run").exists()


def test_an_existing_run_or_folder_is_not_touched(data, tmp_path, toml, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").touch()
    options = ("--data", data, "--config", toml)
    assert srmlab_command("train", "srm-nano", "--out", tmp_path / "mine", *options) == 2
    check_one_line(capsys, "exists and is not empty")
    run = tmp_path / "run"
    assert srmlab_command("train", "srm-nano", "--out", run, *options, "--steps", "2") == 0
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.name != ".lock"}
    capsys.readouterr()
    assert srmlab_command("train", "srm-nano", "--out", run, *options, "--steps", "2") == 2
    check_one_line(capsys, "`srmlab resume")
    assert srmlab_command("train", "srm-nano", "--out", run, *options, "--steps", "3", "--resume") == 2
    check_one_line(capsys, "the training config has changed (steps 2 → 3)")
    assert (
        srmlab_command(
            "train", "srm-nano", "--out", run, *options, "--steps", "2", "--resume", "--model.order", "AABC"
        )
        == 2
    )
    check_one_line(capsys, "the model has changed (order 'ABC' → 'AABC')")
    other = write_data(tmp_path / "other", sections=50)
    assert srmlab_command("resume", run, "--data", other) == 2
    check_one_line(capsys, "the data has changed")
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.name != ".lock"} == before


def test_an_edited_run_json_is_noticed(data, tmp_path, toml, capsys):
    run = tmp_path / "run"
    assert (
        srmlab_command("train", "srm-nano", "--data", data, "--out", run, "--config", toml, "--lr", "0.003")
        == 0
    )
    about = (run / "run.json").read_text()
    (run / "run.json").write_text(about.replace('"lr": 0.003', '"lr": 0.004'))
    capsys.readouterr()
    assert srmlab_command("resume", run) == 2
    check_one_line(capsys, "run.json is damaged (its sha256 differs)")
    (run / "run.sha256").unlink()  # as in a run from before there was a seal
    assert srmlab_command("resume", run) == 2
    check_one_line(capsys, "the training config has changed (lr 0.003 → 0.004)")
    (run / "run.json").write_text(about[:100])
    assert srmlab_command("resume", run) == 2
    check_one_line(capsys, "run.json cannot be read")


def test_resume_and_evaluate_of_nothing(tmp_path, data, capsys):
    assert srmlab_command("resume", tmp_path / "none") == 2
    check_one_line(capsys, "is not a run (it has no run.json)")
    assert srmlab_command("evaluate", tmp_path / "none", "--data", data) == 2
    check_one_line(capsys, "does not exist: give a run, a checkpoint or an export")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_within_a_step_and_leaves_with_its_code(number, code, data, tmp_path, toml):
    run: Path = tmp_path / "run"
    options = [
        "--data",
        str(data),
        "--out",
        str(run),
        "--config",
        toml,
        "--steps",
        "100000",
        "--log-every",
        "1",
    ]
    command = [sys.executable, "-c", "from srmlab.cli import main; main()", "train", "srm-nano", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    while not (run / "metrics.jsonl").exists() or len(read_metrics(run / "metrics.jsonl")) < 3:
        time.sleep(0.05)
    before = read_metrics(run / "metrics.jsonl")[-1]["step"]
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code
    assert "`srmlab resume" in output.splitlines()[-1]
    last = read_metrics(run / "metrics.jsonl")[-1]["step"]
    assert last <= before + 25  # steps of a few milliseconds go by before a signal arrives
    verify(run / f"checkpoints/step-{last}")


def test_resume_takes_every_option_of_execution_and_no_other(data, tmp_path, toml, capsys):
    run = tmp_path / "run"
    options = ("--data", data, "--out", run, "--config", toml, "--keep-checkpoints", "5")
    assert srmlab_command("train", "srm-nano", *options) == 0
    capsys.readouterr()
    assert srmlab_command("resume", run, "--help") == 0
    said = capsys.readouterr().out
    for field in dataclasses.fields(Execution):
        assert f"--{field.name.replace('_', '-')}" in said
    assert "(default: 5)" in said  # the run's own value
    assert srmlab_command("resume", "--eval-tokens", "32", "--accumulate", "2", run) == 0
    assert "resuming after step 6" in capsys.readouterr().out
    assert srmlab_command("resume", run, "--accumulate", "3") == 2
    check_one_line(capsys, "accumulate = 3: must divide batch_size = 4")
    assert srmlab_command("resume", run, "--lr", "0.1") == 2
    check_one_line(capsys, "--lr")
