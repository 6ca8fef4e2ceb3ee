"""Long sweeps as jobs: started, watched and stopped from the page, without keeping anybody else waiting.

A job is an iterator that yields after every piece of work. Each piece takes its turn in the worker's queue
like any other question, so a click in another tab waits for one forward pass, not for the sweep.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from srmlab.explorer.worker import Busy, Worker

MAX_RUNNING = 2
MAX_KEPT = 16
RETRY_SECONDS = 0.2

Status = Literal["running", "done", "stopped", "failed"]


@dataclass
class Job:
    id: str
    total: int
    status: Status = "running"
    done: int = 0
    error: str = ""
    pieces: list[Any] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)


class Jobs:
    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._threads: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()

    def start(self, total: int, pieces: Iterator[Any]) -> Job:
        """Run the iterator to its end in the background; `total` pieces are expected."""
        with self._lock:
            if sum(job.status == "running" for job in self._jobs.values()) >= MAX_RUNNING:
                raise Busy
            job = Job(secrets.token_hex(8), total)
            self._jobs[job.id] = job
            for name in [name for name, other in self._jobs.items() if other.status != "running"]:
                if len(self._jobs) > MAX_KEPT:
                    del self._jobs[name]
                    self._threads.pop(name, None)
            thread = threading.Thread(
                target=self._run, args=(job, pieces), name=f"srmlab-job-{job.id}", daemon=True
            )
            self._threads[job.id] = thread
        thread.start()
        return job

    def get(self, name: str) -> Job | None:
        return self._jobs.get(name)

    def stop(self, name: str) -> Job | None:
        job = self._jobs.get(name)
        if job is not None:
            job.stop.set()
        return job

    def close(self) -> None:
        for job in self._jobs.values():
            job.stop.set()
        for thread in list(self._threads.values()):
            thread.join(timeout=5)

    def _run(self, job: Job, pieces: Iterator[Any]) -> None:
        end = object()
        try:
            while not job.stop.is_set():
                piece = self._turn(job, lambda: next(pieces, end))
                if piece is end:
                    job.status = "done"
                    return
                job.pieces.append(piece)
                job.done += 1
            job.status = "stopped"
        except Exception as error:  # a job must end with a word, whatever happened
            job.status, job.error = (
                ("stopped", "") if job.stop.is_set() else ("failed", str(error).split("\n")[0])
            )

    def _turn(self, job: Job, work: Callable[[], Any]) -> Any:
        while True:
            try:
                return self.worker.submit(work).result()
            except Busy:
                if job.stop.wait(RETRY_SECONDS):
                    raise
