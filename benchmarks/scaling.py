"""How a training step grows: its time and memory against streams, depth, gradient depth, context and batch.

Each is doubled twice, the others staying as they are. What is printed is the exponent fitted to the three
points (1: twice as much costs twice as much), beside that of the formula: FLOP for time, the estimate of
`training/footprint.py` for memory. Every point is a process of its own, whose peak is measured from outside:

    python benchmarks/scaling.py CONFIG_AS_JSON BATCH        prints seconds and bytes
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from timing import Row

import srmlab
from srmlab.models import SRMConfig
from srmlab.training import TrainConfig
from srmlab.training.footprint import Layout, peak_bytes

STREAMS, DEPTH, GRADIENT, CONTEXT, BATCH = 4, 4, 1, 128, 8


@dataclass(frozen=True)
class Point:
    model: SRMConfig
    batch: int

    @property
    def flops(self) -> float:
        model = srmlab.models.outline(self.model)
        return model.flops_per_token(self.model.context).training * self.batch * self.model.context

    @property
    def bytes(self) -> float:
        """Of activations and gradients, estimated."""
        parameters = srmlab.models.outline(self.model).num_parameters()
        training = TrainConfig(batch_size=self.batch, dtype="float32")
        return peak_bytes(self.model, training, Layout()) - 12 * parameters  # weights, optimizer

    def measure(self) -> tuple[float, float]:
        command = [sys.executable, __file__, json.dumps(self.model.to_dict()), str(self.batch)]
        environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        seconds, peak = map(float, done.stdout.split())
        return seconds, peak


def points() -> dict[str, list[Point]]:
    model = srmlab.preset("srm-nano", streams=STREAMS, depth=DEPTH, gradient_depth=GRADIENT, context=CONTEXT)
    assert isinstance(model, SRMConfig)

    def vary(**fields: int) -> list[Point]:
        return [
            Point(model.replace(**{name: value * factor for name, value in fields.items()}), BATCH)
            for factor in (1, 2, 4)
        ]

    return {
        "streams": vary(streams=STREAMS),
        "depth": vary(depth=DEPTH),
        "gradient depth": vary(gradient_depth=GRADIENT),
        "context": vary(context=CONTEXT),
        "batch": [Point(model, BATCH * factor) for factor in (1, 2, 4)],
    }


def run(rounds: int) -> Iterator[Row]:  # noqa: ARG001  (the best of a few steps counts, in every process)
    for name, series in points().items():
        seconds, peaks = zip(*(point.measure() for point in series), strict=True)
        flops, counted = [point.flops for point in series], [point.bytes for point in series]
        yield grown(f"exponent of time against {name}", seconds, flops, "GFLOP", 1e9)
        yield grown(f"exponent of memory against {name}", peaks, counted, "MB estimated", 1e6)


def grown(name: str, measured: tuple[float, ...], formula: list[float], what: str, unit: float) -> Row:
    amounts = ", ".join(f"{amount / unit:.3g}" for amount in formula)
    is_time = what == "GFLOP"
    scale = 1.0 if is_time else 1e6
    return Row(
        name,
        "largest",
        "smallest",
        (measured[-1] / scale, measured[0] / scale),
        exponent(measured),
        note=f"formula {exponent(formula):.2f}: {amounts} {what}",
        unit="s" if is_time else "MB",
    )


def exponent(values: tuple[float, ...] | list[float]) -> float:
    """The least-squares slope of log2(value) over the doublings 0, 1, 2: the middle one has no say.

    >>> exponent((3.0, 6.0, 12.0))
    1.0
    """
    logs = [math.log2(value) for value in values]
    return (logs[-1] - logs[0]) / (len(logs) - 1)


def measure(model: SRMConfig, batch: int, steps: int = 5) -> tuple[float, float]:
    """Seconds of the best training step (CPU time), and the peak of memory above the model's own."""
    subject = srmlab.build(model)
    tokens = torch.randint(model.vocab_size, (batch, model.context))
    subject(tokens[:1, :2], tokens[:1, :2]).backward()  # loads what PyTorch loads on first use
    subject.zero_grad(set_to_none=True)
    before = resident()
    best = math.inf
    for _ in range(steps):
        subject.zero_grad(set_to_none=True)
        start = time.process_time()
        subject(tokens, tokens).backward()
        best = min(best, time.process_time() - start)
    return best, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    config = srmlab.config_from_dict(json.loads(sys.argv[1]))
    assert isinstance(config, SRMConfig)
    print(*measure(config, int(sys.argv[2])))
