"""Who does the jobs: this machine's cores or GPUs, or a SLURM cluster through submitit.

On this machine, `workers` processes at a time, each with its share of the cores, or with a GPU of its own.
On a cluster one array of jobs, each with the resources asked for; submitit's own local executor takes the
same path without a cluster, to try it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from srmlab.data.preparation import cores
from srmlab.errors import UserError, reason
from srmlab.experiments.jobs import Job, read_plan, run_job
from srmlab.training.signals import StopRequest

POLL = 0.5  # seconds


@dataclass
class Outcome:
    failed: dict[int, str] = field(default_factory=dict)  # job → the last line it said
    signal: int = 0


def workers_here(jobs: Iterable[Job]) -> int:
    """One for every GPU, if one of the jobs may use it, else one for every core."""
    return gpus_for(jobs) or cores()


def gpus_for(jobs: Iterable[Job]) -> int:
    """How many GPUs there are, if one of the jobs may use them; jobs for the CPU leave them alone."""
    import torch

    wanted = any(job.cell().training.device != "cpu" for job in jobs)
    return torch.cuda.device_count() if wanted else 0


def on_this_machine(
    plan: Path, workers: int, report: Callable[[int, str], None], tick: Callable[[list[Job]], None]
) -> Outcome:
    """Do all jobs of a plan that are not done. `report` gets each that ends, `tick` what is running."""
    jobs = read_plan(plan)
    waiting = [number for number, job in enumerate(jobs) if not job.done]
    running: dict[int, tuple[int, subprocess.Popen[bytes], Path]] = {}  # slot → job, process, log
    outcome = Outcome()
    with StopRequest() as stop:
        while waiting or running:
            if stop.signal and not outcome.signal:
                outcome.signal = stop.signal
                waiting.clear()
                for _, process, _ in running.values():
                    process.send_signal(signal.SIGTERM)  # they save, and go on next time
            for slot in range(workers):
                if slot not in running and waiting:
                    number = waiting.pop(0)
                    log = log_file(plan, number)
                    running[slot] = (number, start(plan, number, jobs[number], slot, workers, log), log)
            for slot, (number, process, log) in list(running.items()):
                if process.poll() is None:
                    continue
                del running[slot]
                if process.returncode == 0:
                    report(number, "done")
                elif not outcome.signal:
                    outcome.failed[number] = last_line(log) or f"exit code {process.returncode}"
                    report(number, f"failed: {outcome.failed[number]}")
            tick([jobs[number] for number, _, _ in running.values()])
            if running:
                time.sleep(POLL)
    return outcome


def start(plan: Path, number: int, job: Job, slot: int, workers: int, log: Path) -> subprocess.Popen[bytes]:
    """A separate process for one job, with its share of the machine."""
    threads = max(1, cores() // workers)
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    if gpus := gpus_for([job]):
        environment["CUDA_VISIBLE_DEVICES"] = str(slot % gpus)
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "srmlab.experiments.jobs", str(plan), str(number)],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the dispatcher alone, which signals them
        )


def on_a_cluster(plan: Path, cluster: str, options: dict[str, Any], wait: bool) -> list[str]:
    """Submit the unfinished jobs as one array and return their ids; with `wait`, once they have ended."""
    try:
        import submitit
    except ImportError:
        raise UserError(
            "submitit is not installed: pip install 'srmlab[cluster]', or leave --on out"
        ) from None
    waiting = [number for number, job in enumerate(read_plan(plan)) if not job.done]
    if not waiting:
        return []
    folder = plan.parent / f"{plan.stem}-submitit"
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        executor.update_parameters(name=f"srmlab-{plan.stem}", **options)
        submitted = executor.map_array(run_job, [str(plan.absolute())] * len(waiting), waiting)
    except (RuntimeError, ValueError, NameError, TypeError) as error:
        raise UserError(f"{cluster}: {reason(error)}") from None
    if wait:
        for job in submitted:
            if job.result() != 0:
                raise UserError(f"job {job.job_id} was stopped: run the same command to continue")
    return [job.job_id for job in submitted]


def log_file(plan: Path, number: int) -> Path:
    return plan.parent / f"{plan.stem}-logs" / f"{number}.log"


def last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
