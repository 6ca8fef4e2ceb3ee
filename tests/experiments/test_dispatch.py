"""How many jobs run at a time on this machine, and what each is given of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch

from srmlab.data import preparation
from srmlab.experiments import dispatch
from srmlab.experiments.jobs import Job, write_plan
from srmlab.models import preset
from srmlab.training.config import TrainConfig


def job(device: str, folder: Path = Path("nowhere")) -> Job:
    training = TrainConfig(device=device).to_dict()
    model = preset("srm-nano").to_dict()
    return Job(f"on {device}", str(folder / device), "no data", model, training, ())


@pytest.fixture
def machine(monkeypatch):
    """Six cores and two GPUs, and nothing to ask for a process's own cores with, as on macOS."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def started(monkeypatch) -> list[dict[str, str]]:
    """The environments of the processes that are started, none of which is."""
    environments: list[dict[str, str]] = []

    class Ended:
        returncode = 0

        def __init__(self, *_: object, env: dict[str, str], **__: object) -> None:
            environments.append(env)

        def poll(self) -> int:
            return 0

    monkeypatch.setattr(subprocess, "Popen", Ended)
    monkeypatch.setattr(dispatch, "POLL", 0.0)
    return environments


@pytest.mark.usefixtures("machine")
def test_there_is_a_worker_for_every_gpu_that_jobs_may_use_and_else_for_every_core(monkeypatch):
    assert preparation.cores() == 6
    assert dispatch.workers_here([job("cpu"), job("cpu")]) == 6
    assert dispatch.workers_here([job("cpu"), job("auto")]) == 2
    assert dispatch.workers_here([job("cuda")]) == 2
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert dispatch.workers_here([job("auto")]) == 6


def test_only_the_cores_that_this_process_may_use_count(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 5, 7}, raising=False)
    assert dispatch.workers_here([job("cpu")]) == preparation.cores() == 3


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("device", "gpus"), [("cpu", {None}), ("auto", {"0", "1"}), ("cuda", {"0", "1"})])
def test_jobs_share_the_cores_and_get_a_gpu_only_if_they_may_use_it(device, gpus, tmp_path, started):
    jobs = [job(device, tmp_path / name) for name in ("one", "two")]
    ended = []
    plan = write_plan(tmp_path, "plan", jobs)
    dispatch.on_this_machine(plan, 2, lambda *told: ended.append(told), lambda _: None)
    assert ended == [(0, "done"), (1, "done")]
    assert [environment["OMP_NUM_THREADS"] for environment in started] == ["3", "3"]
    assert {environment.get("CUDA_VISIBLE_DEVICES") for environment in started} == gpus
