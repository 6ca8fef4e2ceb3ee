"""Fair timing on a noisy machine: the candidates take turns, and what counts is their ratio within a round.

Every number here is a ratio of two things timed in one run, moments apart. A time alone would say more about
the machine's other tenants than about the code. What lives on large buffers, such as a training step, does so
in a process of its own: in one heap each would leave the others its fragments, and pay for theirs.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from srmlab.training.memory import keep_buffers


@dataclass(frozen=True)
class Row:
    """One line of the bench: `numerator` over `denominator`, and what was asked of the ratio."""

    name: str
    numerator: str
    denominator: str
    seconds: tuple[float, float]  # medians over the rounds; in `unit`
    ratio: float  # median over the rounds of the ratio within a round
    asked: str = ""  # such as "≤ 4.0"
    limit: float | None = None  # the ratio the arithmetic alone allows
    limit_seconds: tuple[float, float] | None = None  # each side's FLOPs ÷ the measured GEMM peak
    note: str = ""
    unit: str = "s"

    @property
    def met(self) -> bool | None:
        if not self.asked:
            return None
        sign, bound = self.asked.split()
        return self.ratio <= float(bound) if sign == "≤" else self.ratio >= float(bound)


def take_turns(
    candidates: Mapping[str, Callable[[], object]],
    rounds: int,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of every candidate in every round, after some rounds that do not count (compilation, first
    touch of memory). Every other round goes backwards: nobody always comes after the same neighbour.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(warm_up + rounds):
        order = list(candidates.items())
        for name, run in reversed(order) if turn % 2 else order:
            start = clock()
            run()
            if turn >= warm_up:
                seconds[name].append(clock() - start)
    return seconds


@contextmanager
def in_its_own_process(
    build: Callable[..., Callable[[], object]], *args: object
) -> Iterator[Callable[[], None]]:
    """`build(*args)` in a new process, where it stays; what is given is a call of what it returned."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, torch.get_num_threads(), build, *args), daemon=True)
    process.start()
    there.close()

    def call() -> None:
        here.send("go")
        here.recv()  # EOFError if it died

    try:
        yield call
    finally:
        here.close()
        process.join()


def _serve(
    connection: Connection, threads: int, build: Callable[..., Callable[[], object]], *args: object
) -> None:
    torch.set_num_threads(threads)
    keep_buffers()
    run = build(*args)
    while True:
        try:
            connection.recv()
        except EOFError:
            return
        run()
        connection.send("done")


def compare(name: str, seconds: dict[str, list[float]], numerator: str, denominator: str, **row) -> Row:
    ratios = [a / b for a, b in zip(seconds[numerator], seconds[denominator], strict=True)]
    medians = (statistics.median(seconds[numerator]), statistics.median(seconds[denominator]))
    return Row(name, numerator, denominator, medians, statistics.median(ratios), **row)


def gemm_peak(size: int = 2048, seconds: float = 2.0) -> float:
    """The best fp32 matmul rate of this machine now, in FLOP/s: the limit that times are held against."""
    a = torch.randn(size, size)
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        a @ a
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best
