"""`kill -9` at random instants, many inside a save: the run always recovers and ends bitwise equal."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def kill_runs(data: Path, folder: Path, kills: int) -> dict[str, int]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "kill_runs.py"), str(data), str(folder), str(kills), "0"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=HERE)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["kills"] >= kills
    assert counts["most steps lost"] <= 2  # the interval
    return counts


def test_ten_kills_lose_nothing(data, tmp_path):
    assert kill_runs(data, tmp_path, 10)["kills"] >= 10


@pytest.mark.soak
def test_two_hundred_kills_lose_nothing(data, tmp_path):
    counts = kill_runs(data, tmp_path, 200)
    assert counts["inside a save"] >= 20
    print(f"\n{counts}")
