"""Several processes: the same global batches, the same losses, checkpoints that fit any number of them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from small_runs import MODEL, PUZZLES, RANDOM_ORDER, loss_log, losses, small_config, state, stop_after

import srmlab
from srmlab.data import PrepareConfig, prepare
from srmlab.puzzles import PuzzleConfig, prepare_puzzles
from srmlab.storage import read_metrics
from srmlab.storage.weights import verify
from srmlab.tasks import TaskCorpus
from srmlab.training import resume, train

HERE = Path(__file__).parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
PATHS = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": PATHS}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory) -> Path:
    """The runs of world_runs.py, and beside them those of one process."""
    folder = tmp_path_factory.mktemp("worlds")
    train(small_config(), MODEL, data, folder / "single", show=False)
    train(small_config(), RANDOM_ORDER, data, folder / "single-random", show=False)
    train(small_config(depth_schedule="draw:1/1"), MODEL, data, folder / "single-drawn", show=False)
    train(small_config(), None, data, folder / "single-tuned", init_from=folder / "single", show=False)
    sums = TaskCorpus.parse("task:addition:1-2:2000")
    prepare(PrepareConfig(sums.name, folder / "sums", "byte"), source=sums)
    train(small_config(answers_only=True), MODEL, folder / "sums", folder / "single-answers", show=False)
    prepare_puzzles(PuzzleConfig("sudoku:4x4", folder / "sudokus", count=40, held_out=0.2))
    puzzles = small_config(segments=3, ema=0.9)
    train(puzzles, PUZZLES, folder / "sudokus", folder / "single-puzzles", show=False)
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 3)
        train(small_config(), MODEL, data, folder / "chain", show=False)
    command = [*TORCHRUN, str(HERE / "world_runs.py"), str(data), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, cwd=HERE)
    assert done.returncode == 0, done.stderr
    return folder


PAIRS = [
    *(("ddp", "single"), ("fsdp", "single"), ("random", "single-random")),
    *(("drawn-ddp", "single-drawn"), ("drawn-fsdp", "single-drawn")),
    *(("tuned-ddp", "single-tuned"), ("tuned-fsdp", "single-tuned")),
    ("puzzles", "single-puzzles"),
]


@pytest.mark.parametrize(("name", "reference"), PAIRS)
def test_two_processes_have_the_losses_of_one(runs, name, reference):
    two, one = loss_log(runs / name), loss_log(runs / reference)
    for key in ("loss", "val_loss", "grad_norm"):
        values = [[row[key] for row in rows if key in row] for rows in (two, one)]
        assert values[0] == pytest.approx(values[1], abs=1e-6 if "loss" in key else 1e-4)


def test_puzzles_that_were_stopped_in_two_processes_go_on_to_the_bit(runs):
    assert loss_log(runs / "stopped-puzzles") == loss_log(runs / "puzzles")
    assert state(runs / "stopped-puzzles") == state(runs / "puzzles")


def test_puzzles_are_not_sharded_and_every_process_says_what_to_use(runs):
    told = {(runs / f"refused-{rank}").read_text() for rank in (0, 1)}
    assert told == {'strategy = "fsdp": puzzles are trained by copies of the model; use ddp'}
    assert not (runs / "sharded-puzzles").exists()


def test_the_shards_of_a_run_can_be_the_start_of_another(runs, data, tmp_path):
    train(small_config(steps=3), None, data, tmp_path / "tuned", init_from=runs / "fsdp", show=False)
    start, shards = (srmlab.load(path) for path in (tmp_path / "tuned/checkpoints/step-0", runs / "fsdp"))
    assert all(map(torch.equal, start.state_dict().values(), shards.state_dict().values()))


@pytest.mark.parametrize("name", ["answers", "answers-fsdp"])
def test_micro_batches_with_more_and_fewer_answers_weigh_as_in_one_process(runs, name):
    assert losses(runs / name) == pytest.approx(losses(runs / "single-answers"), abs=1e-5)


def test_a_run_may_change_its_world_at_every_stop(runs):
    """One process to step 3, two with DDP to 6, two with FSDP2 to 9, one to the end."""
    assert (runs / "chain/checkpoints/step-9/shards").is_dir()
    assert resume(runs / "chain", strategy="auto", show=False).step == 12
    assert losses(runs / "chain") == pytest.approx(losses(runs / "single"), abs=1e-6)


def test_a_sharded_checkpoint_is_verified_and_loads_on_one_process(runs):
    verify(runs / "fsdp/checkpoints/step-12")
    sharded, whole = srmlab.load(runs / "fsdp"), srmlab.load(runs / "single")
    for (name, a), b in zip(sharded.named_parameters(), whole.parameters(), strict=True):
        assert (a - b).abs().max() < 1e-5, name


def start(data: Path, run: Path, *options: str) -> subprocess.Popen:
    command = [*TORCHRUN, *options, str(HERE / "world_train.py"), str(data), str(run)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, text=True, env=ENVIRONMENT, cwd=HERE, **streams)


def pids_after_step(run: Path, step: int) -> list[int]:
    """The processes of a run (they leave their numbers in its folder) once it has taken `step`."""
    for _ in range(1200):
        time.sleep(0.05)
        metrics = run / "metrics.jsonl"
        if metrics.exists() and any(row["step"] >= step for row in read_metrics(metrics)):
            return [int(path.read_text()) for path in sorted(run.parent.glob("rank-*.pid"))]
    raise AssertionError("the run did not start")


def test_a_signal_to_one_process_was_heeded_by_both(runs):
    """world_runs.py sends it, and finds that both leave with 143; here is what they left."""
    assert (runs / "chain/checkpoints/step-9/training.json").exists()


@pytest.mark.soak
def test_a_signal_to_one_process_stops_all_of_them_within_a_step(data, tmp_path):
    process = start(data, tmp_path / "run")
    pids = pids_after_step(tmp_path / "run", 3)
    os.kill(pids[1], signal.SIGTERM)
    process.communicate(timeout=120)
    assert sorted(path.read_text() for path in tmp_path.glob("rank-*.exit")) == ["143", "143"]
    last = read_metrics(tmp_path / "run/metrics.jsonl")[-1]["step"]
    verify(tmp_path / f"run/checkpoints/step-{last}")


def test_a_killed_process_is_restarted_by_torchrun_and_the_run_ends_equal(runs, data, tmp_path):
    process = start(data, tmp_path / "run", "--max-restarts", "2")
    os.kill(pids_after_step(tmp_path / "run", 6)[1], signal.SIGKILL)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert loss_log(tmp_path / "run") == loss_log(runs / "ddp")
    assert state(tmp_path / "run") == state(runs / "ddp")
