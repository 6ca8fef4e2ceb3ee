"""A long run does not grow: neither memory nor open files."""

import os
from pathlib import Path

import pytest
from small_runs import MODEL, small_config

from srmlab.training import keep_buffers, train
from srmlab.training.loop import Trainer


def test_buffers_are_kept_where_there_is_glibc():
    assert keep_buffers() in (True, False)


def watch(monkeypatch: pytest.MonkeyPatch, every: int) -> list[tuple[int, int]]:
    """(resident kilobytes, open files) every so many steps of the next run."""
    advance, seen = Trainer.advance, []

    def watched(self: Trainer) -> int:
        if self.step % every == 0:
            status = Path("/proc/self/status").read_text()
            resident = int(status.split("VmRSS:")[1].split()[0])
            seen.append((resident, len(os.listdir("/proc/self/fd"))))
        return advance(self)

    monkeypatch.setattr(Trainer, "advance", watched)
    return seen


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("steps", [200, pytest.param(10_000, marks=pytest.mark.soak)])
def test_no_growth(steps, data, tmp_path, monkeypatch):
    seen = watch(monkeypatch, steps // 20)
    config = small_config(steps=steps, eval_every=steps // 10, checkpoint_every=steps // 10)
    train(config, MODEL, data, tmp_path / "run", show=False)
    warm, last = seen[len(seen) // 4], seen[-1]
    print(
        f"\n{steps} steps: {warm[0] / 1000:.1f} → {last[0] / 1000:.1f} MB, {warm[1]} → {last[1]} open files"
    )
    assert last[1] == warm[1]
    assert last[0] < warm[0] + 2000  # kilobytes
