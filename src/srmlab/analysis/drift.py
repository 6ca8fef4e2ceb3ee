"""Drift: how much a step group's contribution changes from one layer to the next, and when it settles.

In layer t, group g ("A", "B" …) contributes d_t = the sum over its calls of (state after the step − state
before it). Between consecutive layers, per token and stream,

    cosine   1 − cos(d_t, d_{t+1})
    kl       KL(softmax(d_t) ‖ softmax(d_{t+1})), in nats; or of the later from the earlier ("backward")

and their means over tokens. Both softmaxes stay in log space, so the KL is finite at any width (the paper's
own became NaN at 512 dimensions). n layers have n−1 transitions, counted from 0.

Convergence of a stream is the earliest transition after which every relative change of its drift stays under
10 %, else the last one; NaN where a gap in the curve, left by a random order, hides it. Of the 7 transitions
of 8 layers, 0–1 are early, 2–3 middle and 4–6 late; other depths are cut in the same proportion.

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> found = srmlab.analysis.drift(model, [torch.arange(64).view(2, 32)])
    >>> found.cosine.shape, found.groups                        # group, transition, stream
    ((3, 7, 8), ('A', 'B', 'C'))
    >>> convergence(np.array([0.5, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1]))
    2

Which calls there are, and in which groups, is the model's to say (`model.calls`): SRM's groups are its step
functions. HRM's are its low and high net, with high cycles for layers; GPT-2's are attention and MLP, with
blocks for layers, and a contribution is what they add.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.capture import Accumulator, Batches, Mean, Placed, capture
from srmlab.analysis.registry import Analysis, has_contributions, register
from srmlab.analysis.result import Array, Measured, Result, derived, require
from srmlab.analysis.states import stream_major
from srmlab.errors import UserError, check_choice
from srmlab.models import LanguageModel

Metric = Literal["cosine", "kl"]
METRICS: tuple[Metric, ...] = ("cosine", "kl")
Direction = Literal["forward", "backward"]  # KL(earlier ‖ later), as the paper has it, or KL(later ‖ earlier)
CLASSES = ("early", "middle", "late")
TOLERANCE = 0.10
ONE_LAYER = "one layer: no transitions"
FLOOR = 1e-5  # drift below this is rounding
STILL = 0.01  # cosine distance (8 degrees) from which on, downward, a contribution counts as settled


def settled(curves: Array, still: float = STILL) -> Array:
    """[stream] The earliest transition from which a curve [transition, stream] stays under `still`; NaN if it
    does not. The absolute rule: by the relative one a curve that halves at every layer never converges.

    >>> curve = np.array([0.4, 0.008, 0.004, 0.002])
    >>> settled(curve[:, None]), convergence(curve)
    (array([1.]), 3)
    """
    if not len(curves):
        return np.full(curves.shape[1], np.nan)
    quiet = np.logical_and.accumulate((curves < still)[::-1], axis=0)[::-1]  # from here on; NaN is not
    return np.where(quiet.any(0), quiet.argmax(0), np.nan)


def convergence(curve: Array) -> float:
    """The earliest transition after which every relative change of a drift curve stays under 10 %, else the
    last. NaN if a gap in the curve (a group that a random order skips) leaves it unknown."""
    found = float(convergences(np.asarray(curve)[:, None])[0])
    return int(found) if math.isfinite(found) else found


def convergences(curves: Array) -> Array:
    """[stream] The convergence of each of the curves [transition, stream]."""
    transitions, streams = curves.shape
    if transitions == 0:
        return np.full(streams, np.nan)
    change = np.abs(np.diff(curves, axis=0)) / np.maximum(np.abs(curves[:-1]), FLOOR)
    restless = ~(change < TOLERANCE)  # NaN too
    after_last = transitions - 1 - restless[::-1].argmax(0) if transitions > 1 else 0
    settled = np.where(restless.any(0), after_last, 0)
    each = np.arange(streams)
    before = change[settled - 1, each] if transitions > 1 else 0.0
    known = np.isfinite(curves[settled, each]) & ((settled == 0) | np.isfinite(before))
    return np.where(known, settled, np.nan)


def convergence_class(transition: float, transitions: int) -> int:
    """0 early, 1 middle, 2 late: cut at 2/7 and 4/7 of the transitions."""
    return 2 - int(7 * transition < 2 * transitions) - int(7 * transition < 4 * transitions)


@dataclass(frozen=True)
class Convergence:
    """When the streams of one step group converge."""

    transitions: tuple[float, ...]  # one for each stream; NaN where it was not measured
    of: int  # how many transitions there are

    @property
    def measured(self) -> list[float]:
        return [t for t in self.transitions if math.isfinite(t)]

    @property
    def mean(self) -> float:
        return float(np.mean(self.measured)) if self.measured else math.nan

    @property
    def std(self) -> float:
        """Sample standard deviation (ddof = 1); 0 for a single stream."""
        return float(np.std(self.measured, ddof=1)) if len(self.measured) > 1 else 0.0

    @property
    def median(self) -> float:
        return float(np.median(self.measured)) if self.measured else math.nan

    @property
    def counts(self) -> tuple[int, int, int]:
        """Early, middle and late convergers."""
        classes = [convergence_class(t, self.of) for t in self.measured]
        return classes.count(0), classes.count(1), classes.count(2)

    def __str__(self) -> str:
        if not self.measured:
            return "not measured"
        counted = ", ".join(f"{count} {name}" for count, name in zip(self.counts, CLASSES, strict=True))
        return f"{self.mean:.2f} ± {self.std:.2f} ({counted})"


@dataclass(frozen=True, kw_only=True, eq=False)
class Drift(Result):
    """How much each step group's contribution changes between layers; made by `drift`."""

    kind: ClassVar[str] = "drift"

    groups: tuple[str, ...]
    streams: tuple[str, ...]
    boundary: int | None  # the first layer trained with gradient, if the model truncates backpropagation
    cosine: Annotated[Array, Measured("group transition stream", "cosine distance, mean over tokens")]
    kl: Annotated[Array, Measured("group transition stream", "nats, mean over tokens")]
    direction: Direction = "forward"

    def __post_init__(self) -> None:
        super().__post_init__()
        for what, named, measured in (("groups", self.groups, 0), ("streams", self.streams, 2)):
            as_many = self.cosine.shape[measured] == len(named)
            require(as_many, f"{len(named)} {what} named, not as many measured")
        for name in ("cosine", "kl"):
            values = getattr(self, name)
            require(not (values[np.isfinite(values)] < 0).any(), f"{name}: a distance is not negative")

    def places(self, axis: str, size: int) -> Sequence[object]:
        return self.groups if axis == "group" else super().places(axis, size)

    def convergence(self, metric: Metric = "cosine") -> dict[str, Convergence]:
        """For every step group, when its streams converge."""
        curves = getattr(self, metric)
        return {
            group: Convergence(
                tuple(int(t) if math.isfinite(t) else t for t in convergences(curves[g])), curves.shape[1]
            )
            for g, group in enumerate(self.groups)
        }

    def quartiles(self, metric: Metric = "cosine") -> Array:
        """[3, group, transition] The lower quartile, median and upper quartile over streams."""
        curves = getattr(self, metric)
        if np.isfinite(curves).all():
            return np.quantile(curves, (0.25, 0.5, 0.75), axis=2)
        with warnings.catch_warnings():  # a group that a random order skips has no drift there
            warnings.simplefilter("ignore", RuntimeWarning)
            return np.nanquantile(curves, (0.25, 0.5, 0.75), axis=2)

    @derived("group transition", "cosine distance, median over streams")
    def cosine_median(self) -> Array:
        return self.quartiles("cosine")[1]

    @derived("group transition", "nats, median over streams")
    def kl_median(self) -> Array:
        return self.quartiles("kl")[1]

    @derived("metric group stream", "transition")
    def converged(self) -> Array:
        """When each stream converges; NaN where a gap hides it."""
        return np.array([[convergences(curves) for curves in getattr(self, metric)] for metric in METRICS])

    @derived("metric group", "transition")
    def mean_convergence(self) -> Array:
        """When a group's streams converge, on average over those known."""
        converged = self.converged
        known = np.isfinite(converged)
        count = known.sum(2)
        total = np.where(known, converged, 0).sum(2)
        return np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)

    @derived("transition", "cosine distance")
    def profile(self) -> Array:
        """The median cosine drift, mean over the groups that have it; NaN where none has."""
        median = self.cosine_median
        count = np.isfinite(median).sum(0)
        return np.divide(np.nansum(median, axis=0), count, out=np.full(count.shape, np.nan), where=count > 0)

    @derived("", "transition")
    def jump(self) -> int:
        """The transition with the largest cosine drift; −1 if none was measured."""
        profile = self.profile
        known = np.isfinite(profile)
        return int(np.where(known, profile, -1).argmax()) if known.any() else -1

    def headline(self) -> str:
        if self.cosine.shape[1] == 0:
            return ONE_LAYER
        found = self.convergence()
        return "convergence " + "; ".join(
            f"{group} {c.mean:.1f} ± {c.std:.1f}" if c.measured else f"{group} {c}"
            for group, c in found.items()
        )

    def summary(self) -> str:
        lines = [f"Drift between layers ({self.evidence})"]
        if self.cosine.shape[1] == 0:
            return f"{lines[0]}\n  {ONE_LAYER}"
        for m, metric in enumerate(METRICS):
            unit = "cosine distance" if metric == "cosine" else f"KL {self.direction}, nats"
            found = self.convergence(metric)
            for g, group in enumerate(self.groups):
                median = self.quartiles(metric)[1, g]
                each = (self.text(f"{metric}_median", ".3g", (g, t)) for t in range(len(median)))
                lines.append(f"  {unit}, group {group}: median {', '.join(each)}")
                if np.isfinite(median).any():
                    peak = int(np.nanargmax(median))
                    lines.append(f"    largest at {peak}→{peak + 1}; {self._when(m, g, found[group])}")
                    if metric == "cosine":
                        lines.append(f"    {absolute(self.cosine[g])}")
        if self.boundary:
            lines.append(
                f"  gradient reaches back to layer {self.boundary}: transition {self.boundary - 1} crosses it"
            )
        return "\n".join(lines)

    def _when(self, metric: int, group: int, found: Convergence) -> str:
        if not found.measured:
            return "convergence not measured"
        error = float(self.standard_error("mean_convergence")[metric, group])
        known = f"; standard error of the mean {error:.2f}" if math.isfinite(error) else ""
        return f"convergence, mean ± s.d. over streams: {found}{known}"


def absolute(curves: Array) -> str:
    """The absolute rule in words, for a group's curves [transition, stream]."""
    when = settled(curves)
    quiet = when[np.isfinite(when)]
    mean = f", from transition {quiet.mean():.1f} on average" if len(quiet) else ""
    falling = int((np.isnan(when) & (curves[-1] < curves[0])).sum())
    return f"under {STILL:g} in {len(quiet)} of {len(when)} streams{mean}; {falling} still shrinking"


class Contributions:
    """Reads the calls of a model as groups that contribute to its state, level by level."""

    def __init__(self, model: LanguageModel) -> None:
        if not has_contributions(model):
            raise UserError(f"drift needs calls that move every token; {type(model).__name__} has none")
        self.calls = {call.site: call for call in model.calls}
        self.groups = model.call_groups
        # a call moves all streams at once, or one of them
        self.streams = model.streams if len(model.points[0].sites) == 1 else ("z",)
        self.layers = model.depth
        self.boundary = model.gradient_from
        befores = [call.before for call in model.calls if isinstance(call.before, str)]
        self.uses = Counter(befores)  # how many calls start from the state at a site
        self.sites = list(dict.fromkeys([*(site for site in befores if site not in self.calls), *self.calls]))
        self.ends = {(call.group, call.level): call.site for call in model.calls}  # the last call of each
        self.level_ends = {call.level: call.site for call in model.calls}
        self.kept: dict[str, tuple[Tensor, int]] = {}  # a state, and how many calls still need it
        self.sums: dict[tuple[str, int], Tensor] = {}

    def see(self, name: str, value: Tensor) -> Iterator[tuple[int, int, Tensor | None]]:
        """At a site: the contributions it completes, as (group, level, [S, B, T, D]); None if the group was
        not called."""
        value = stream_major(value) if value.ndim == 4 else value.float()[None]
        if self.uses[name]:
            self.kept[name] = value, self.uses[name]
        if name not in self.calls:
            return
        call = self.calls[name]
        change = value if call.before is None else value - self.before(call.before)
        key = call.group, call.level
        self.sums[key] = self.sums[key] + change if key in self.sums else change
        if self.ends[key] == name:
            yield self.groups.index(call.group), call.level, self.sums.pop(key)
        if self.level_ends[call.level] == name:
            for g, group in enumerate(self.groups):
                if (group, call.level) not in self.ends:
                    yield g, call.level, None

    def before(self, source: str | Tensor) -> Tensor:
        """The state before a call, from a site or a constant [D] or [S, D]."""
        if isinstance(source, Tensor):
            return source.float()[:, None, None] if source.ndim == 2 else source.float()
        value, uses = self.kept.pop(source)
        if uses > 1:
            self.kept[source] = value, uses - 1
        return value


class DriftSums(Accumulator):
    makes = Drift

    def __init__(self, contributions: Contributions, direction: Direction = "forward") -> None:
        check_choice("direction", direction, get_args(Direction))
        self.reader = contributions
        self.direction: Direction = direction
        self.settings = {"direction": direction}
        self.known = {
            "groups": tuple(contributions.groups),
            "streams": tuple(contributions.streams),
            "boundary": contributions.boundary,
            "direction": direction,
        }
        self.sites = contributions.sites
        shape = (len(contributions.groups), contributions.layers - 1, len(contributions.streams))
        self.means = {"cosine": Mean(*shape), "kl": Mean(*shape)}
        self.before: dict[int, Softened | None] = {}

    def see(self, name: str, value: Tensor) -> None:
        for group, layer, contribution in self.reader.see(name, value):
            now = None if contribution is None else Softened(contribution)
            if layer > 0:
                self._compare(group, layer - 1, self.before[group], now)
            self.before[group] = now

    def _compare(self, group: int, transition: int, before: Softened | None, now: Softened | None) -> None:
        if before is None or now is None:
            for sums in self.sums.values():
                sums[:, group, transition] = torch.nan
            return
        kl = before.kl(now) if self.direction == "forward" else now.kl(before)
        self.sums["cosine"][:, group, transition] = before.cosine_distance(now).sum(-1).T
        self.sums["kl"][:, group, transition] = kl.sum(-1).T

    def end(self, batch: Placed, embedding: Tensor) -> None:
        super().end(batch, embedding)
        self.before.clear()


class Softened:
    """A contribution [S, B, T, D] with what its comparisons share: its length, its log-softmax and its
    entropy."""

    def __init__(self, contribution: Tensor) -> None:
        self.value = contribution
        self.norm = torch.linalg.vector_norm(contribution, dim=-1)
        self.log_p = contribution.log_softmax(-1)
        self.p = self.log_p.exp()
        self.minus_entropy = torch.linalg.vecdot(self.p, self.log_p)

    def cosine_distance(self, other: Softened) -> Tensor:
        """1 − cos, [S, B, T]; 0 between two zero vectors, 1 if only one is zero."""
        scale = self.norm * other.norm
        similarity = torch.linalg.vecdot(self.value, other.value) / scale.clamp(min=1e-30)
        similarity = torch.where((self.norm == 0) & (other.norm == 0), 1.0, similarity)
        return (1 - similarity).clamp(min=0)

    def kl(self, other: Softened) -> Tensor:
        """KL(self ‖ other) of the softmaxes in nats, [S, B, T]."""
        return (self.minus_entropy - torch.linalg.vecdot(self.p, other.log_p)).clamp(min=0)


def drift(model: LanguageModel, batches: Batches, direction: Direction = "forward") -> Drift:
    """The drift of every step group (HRM: net; GPT-2: attention and MLP) between consecutive layers.

    `direction` of the KL: of the earlier contribution from the later one, or "backward".
    """
    return capture(model, batches, DriftSums(Contributions(model), direction))[0]


register(Analysis(Drift, lambda request: DriftSums(Contributions(request.model)), has_contributions))
