"""Train a small run over and over, killing it with SIGKILL at random instants until it ends by itself.

    python kill_runs.py DATA RUN KILLS SEED

A process of its own, which imports everything once and forks a child for every attempt: a fork takes
milliseconds, so that most of the kills fall into training or saving and not into the imports. When a run ends
before enough kills have been made, another one is begun. Prints one JSON line with the counts.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from small_runs import RANDOM_ORDER, loss_log, small_config, state

from srmlab.storage import read_metrics
from srmlab.storage.weights import latest_checkpoint
from srmlab.training import train

CONFIG = small_config(steps=12, checkpoint_every=2, eval_every=6)


def attempt(data: Path, run: Path) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            train(CONFIG, RANDOM_ORDER, data, run, resume=True, show=False)
            code = 0
        except BaseException as error:
            print(f"{error!r}", file=sys.stderr)
        finally:
            os._exit(code)
    return child


def killed(child: int, after: float) -> bool:
    """Whether the child was still at work after so many seconds, and is now dead."""
    end = time.perf_counter() + after
    while time.perf_counter() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0, f"the run failed by itself: {status}"
            return False
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def lost_steps(run: Path) -> int:
    """How many of the steps that were taken are in no checkpoint."""
    reports: list[str] = []
    found = latest_checkpoint(run / "checkpoints", reports.append)
    assert not reports, reports
    rows = read_metrics(run / "metrics.jsonl") if (run / "metrics.jsonl").exists() else []
    return max((row["step"] for row in rows), default=0) - (int(found.name[5:]) if found else 0)


def main() -> None:
    data, folder, kills, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    choose = random.Random(seed)
    never = folder / "never-killed"
    started = time.perf_counter()
    assert os.waitstatus_to_exitcode(os.waitpid(attempt(data, never), 0)[1]) == 0
    usual = time.perf_counter() - started
    counts = {"kills": 0, "inside a save": 0, "before the run exists": 0, "most steps lost": 0, "runs": 0}
    while counts["kills"] < kills:
        run = folder / f"killed-{counts['runs']}"
        counts["runs"] += 1
        while killed(attempt(data, run), choose.uniform(0, usual * (0.7 if counts["kills"] < kills else 99))):
            counts["kills"] += 1
            counts["inside a save"] += any((run / "checkpoints").glob(".writing-*"))
            counts["before the run exists"] += not (run / "run.json").exists()
            counts["most steps lost"] = max(counts["most steps lost"], lost_steps(run))
        assert state(run) == state(never)
        assert loss_log(run) == loss_log(never)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
