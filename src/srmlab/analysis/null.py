"""Untrained twins: the same analysis, on the same text, of untrained models with the same config.

A statistic of a trained model says nothing about learning if untrained models have it too. Twins have the
model's config with other seeds; their results are in analysis/null/seed-N.

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> batches = [torch.arange(64).view(2, 32)]
    >>> others = [srmlab.analysis.routing(twin, batches) for _, twin in twins(model, 3)]
    >>> learned_hubs(srmlab.analysis.routing(model, batches), others)        # it is untrained itself
    []

A number is beyond its twins if it is outside the interval in which one more twin would fall 95 % of the time
(Student's, as there are few). A hub is a stream whose outgoing frequency is beyond that of each twin's
strongest stream: the strongest of S is high in any model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from srmlab.analysis.result import Result, load
from srmlab.analysis.routing import Routing
from srmlab.analysis.student import student
from srmlab.errors import UserError
from srmlab.models import LanguageModel, build

FOLDER = "null"  # of twins' results, beside the model's own
SMALL = 5_000_000  # parameters up to which `srmlab analyze` makes twins by default
TWINS = 3


def usual_count(model: LanguageModel, asked: int | None = None) -> int:
    """How many twins to measure: as many as are asked for, or three, and none of a large model."""
    return asked if asked is not None else TWINS if model.num_parameters() <= SMALL else 0


def twins(model: LanguageModel, count: int) -> Iterator[tuple[int, LanguageModel]]:
    """Untrained models of the same config, and the seeds of their weights."""
    first = model.config.init_seed + 1
    for seed in range(first, first + count):
        yield seed, build(model.config.seeded(seed), device=model.device)


def saved_twins(folder: Path, result: Result) -> list[Result]:
    """The results of untrained twins beside one in a folder of `srmlab analyze`: those on the same text, and
    by the same threshold. Others are of another analysis, or damaged."""
    found = []
    for file in sorted((folder / FOLDER).glob(f"seed-*/{result.kind}.json")):
        with suppress(UserError, KeyError, ValueError, OSError):
            twin = load(file)
            by = [getattr(one, "threshold", None) for one in (twin, result)]
            if twin.evidence == result.evidence and by[0] == by[1]:
                found.append(twin)
    return found


@dataclass(frozen=True)
class Beside:
    """A number of a trained model and the same of its twins."""

    name: str
    unit: str
    value: float
    twins: tuple[float, ...]

    @property
    def interval(self) -> tuple[float, float]:
        """Where one more twin would lie."""
        values = np.array(self.twins)
        if len(values) < 2:
            return -math.inf, math.inf
        half = student(len(values) - 1) * float(values.std(ddof=1)) * math.sqrt(1 + 1 / len(values))
        return float(values.mean()) - half, float(values.mean()) + half

    @property
    def beyond(self) -> bool:
        low, high = self.interval
        return not low <= self.value <= high

    @property
    def form(self) -> str:
        return ".1%" if self.unit.startswith("share") else ".3g"

    @property
    def span(self) -> str:
        """From the least of the twins to the most."""
        low, high = (f"{bound:{self.form}}" for bound in (min(self.twins), max(self.twins)))
        return low if low == high else f"{low} to {high}"

    def __str__(self) -> str:
        """
        >>> print(Beside("hub share", "share of all edges", 0.168, (0.132, 0.137, 0.131)))
        hub share 16.8% of all edges; untrained twins 13.1% to 13.7%, beyond the twins
        """
        share = self.unit.removeprefix("share ")
        unit = share if share != self.unit or share.startswith("(") else f"({share})"
        beyond = ", beyond the twins" * self.beyond
        if len(self.twins) == 1:
            beyond = " (one twin has no interval)"
        return f"{self.name} {self.value:{self.form}} {unit}; untrained twins {self.span}{beyond}"


def beside(result: Result, others: Sequence[Result]) -> list[Beside]:
    """Every single number of a result (without axes) beside the twins', if all are finite."""
    found = []
    for name, axes in result.uncertain().items():
        if axes.names or not others:
            continue
        values = [float(getattr(one, name)) for one in (result, *others)]
        if all(map(math.isfinite, values)):
            found.append(Beside(name.replace("_", " "), axes.unit, values[0], tuple(values[1:])))
    if isinstance(result, Routing) and others:
        found.insert(0, strongest(result, others))
    return found


def strongest(result: Routing, others: Sequence[Result]) -> Beside:
    """The outgoing frequency of the strongest stream beside that of each twin's."""
    top = int(result.outgoing.argmax())
    highest = tuple(float(other.outgoing.max()) for other in others if isinstance(other, Routing))
    return Beside(f"S{top}, the strongest,", "share of tokens", float(result.outgoing[top]), highest)


def learned_hubs(result: Routing, others: Sequence[Result]) -> list[int]:
    """The streams that are read more often than the strongest stream of an untrained twin would be."""
    _, bar = strongest(result, others).interval
    ranked = np.argsort(-result.outgoing, kind="stable")
    return [int(stream) for stream in ranked if result.outgoing[stream] > bar]


def summary(result: Result, others: Sequence[Result]) -> str:
    """What stands under a result's own summary."""
    count = "an untrained twin" if len(others) == 1 else f"{len(others)} untrained twins"
    lines = [f"  next to {count}:"] + [f"    {line}" for line in beside(result, others)]
    if isinstance(result, Routing) and len(others) > 1:  # one has no interval to be beyond
        hubs = ", ".join(f"S{s}" for s in learned_hubs(result, others)) or "none"
        lines.append(f"    hubs beyond the twins' strongest stream: {hubs}")
    return "\n".join(lines) if len(lines) > 1 else ""
