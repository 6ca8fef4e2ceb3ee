"""Dynamics: the analyses over a run's checkpoints, as curves over training steps.

When do hubs appear? Is the jump of drift in the middle of the model the boundary of the gradient? The drift
curves are kept with the layer where the gradient begins (`boundary`), so runs with different l can be laid
side by side.

    >>> import srm, srm.analysis, torch
    >>> untrained = srm.build(srm.preset("srm-nano"))
    >>> later = srm.build(srm.preset("srm-nano", init_seed=1))
    >>> found = srm.analysis.dynamics([(0, untrained), (100, later)], [torch.arange(64).view(2, 32)])
    >>> found.steps.tolist(), found.outgoing.shape               # checkpoint, stream
    ([0, 100], (2, 8))

`checkpoints_of("runs/nano")` gives the (step, model) pairs of a run, one model in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from torch import Tensor

from srm.analysis.ablation import BITS, FinalAblation
from srm.analysis.alignment import AlignmentSums
from srm.analysis.capture import Accumulator, Batch, Batches, Mean, capture, read_twice
from srm.analysis.drift import DriftSums, StepContributions
from srm.analysis.readout import log_probabilities
from srm.analysis.result import Array, Axes, Evidence, Result, require, write_table
from srm.analysis.routing import RoutingSums, streams_of
from srm.analysis.states import StateSums
from srm.errors import UserError
from srm.models import LanguageModel


@dataclass(frozen=True, kw_only=True, eq=False)
class Dynamics(Result):
    kind: ClassVar[str] = "dynamics"

    groups: tuple[str, ...]
    boundary: int | None  # the first layer trained with gradient
    steps: Annotated[Array, Axes("checkpoint", "training steps")]
    loss: Annotated[Array, Axes("checkpoint", "nats, mean over targets")]
    loss_se: Annotated[Array, Axes("checkpoint", "standard error over sequences, nats")]
    outgoing: Annotated[
        Array, Axes("checkpoint stream", "hub score: outgoing routing frequency, share of tokens")
    ]
    self_routing: Annotated[Array, Axes("checkpoint stream", "share of tokens")]
    connection: Annotated[Array, Axes("checkpoint layer", "cosine of c and x, mean over streams and tokens")]
    update: Annotated[
        Array, Axes("checkpoint layer", "cosine of update and step output, mean over steps and streams")
    ]
    drift: Annotated[Array, Axes("checkpoint group transition", "cosine distance, median over streams")]
    ablation: Annotated[Array, Axes("checkpoint stream", "nats, KL of mean ablation")]

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool((np.diff(self.steps) > 0).all()), "checkpoints must come in the order of their steps")

    @property
    def hub_share(self) -> Array:
        """[checkpoint] The strongest stream's share of all outgoing frequency (1/S: no hub)."""
        total = self.outgoing.sum(1)
        uniform = np.where(np.isnan(total), np.nan, 1 / self.outgoing.shape[1])
        return np.divide(self.outgoing.max(1), total, out=uniform, where=total > 0)

    @property
    def routed(self) -> bool:
        """Whether the connection is a learned one, whose routing was measured."""
        return bool(np.isfinite(self.outgoing).all())

    @property
    def profile(self) -> Array:
        """[checkpoint transition] Drift, mean over the groups that have it; NaN where none has."""
        count = np.isfinite(self.drift).sum(1)
        return np.divide(
            np.nansum(self.drift, axis=1), count, out=np.full(count.shape, np.nan), where=count > 0
        )

    @property
    def jump(self) -> Array:
        """[checkpoint] The transition with the largest drift, of the mean over groups; −1 if none was
        measured."""
        known = np.isfinite(self.profile).any(1)
        return np.where(known, np.where(np.isnan(self.profile), -1, self.profile).argmax(1), -1)

    def headline(self) -> str:
        hubs = f"hub share {self.hub_share[0]:.0%} → {self.hub_share[-1]:.0%}, " if self.routed else ""
        return (
            f"{len(self.steps)} checkpoints to step {self.steps[-1]}: {hubs}"
            f"loss {self.loss[0]:.2f} → {self.loss[-1]:.2f}"
        )

    def summary(self) -> str:
        lines = [f"Training dynamics ({self.evidence})"]
        for i, step in enumerate(self.steps):
            told = [f"loss {self.loss[i]:.3f}"]
            if self.routed:
                strongest = int(self.outgoing[i].argmax())
                told.append(f"strongest source S{strongest} ({self.hub_share[i]:.0%} of all)")
            told.append(f"cos(c, x) {self.connection[i].mean():+.3f}")
            if (jump := int(self.jump[i])) >= 0:
                told.append(f"largest drift at {jump}→{jump + 1}")
            told.append(f"mean ablation {self.ablation[i].mean() * BITS:.3f} bits")
            lines.append(f"  step {step:>6}: {'; '.join(told)}")
        if self.boundary:
            at = f"transition {self.boundary - 1}→{self.boundary}"
            lines.append(f"  the gradient begins at layer {self.boundary}: {at} crosses its boundary")
        return "\n".join(lines)

    def to_pgfplots(self, directory: str | Path, prefix: str) -> list[Path]:
        """`{prefix}_dynamics.dat`: step, loss, hub_share, connection, jump."""
        rows = (
            (
                int(s),
                float(self.loss[i]),
                float(self.hub_share[i]),
                float(self.connection[i].mean()),
                int(self.jump[i]),
            )
            for i, s in enumerate(self.steps)
        )
        columns = ["step", "loss", "hub_share", "connection", "jump"]
        return [write_table(Path(directory) / f"{prefix}_dynamics.dat", columns, rows)]


class LossSums(Accumulator):
    """The mean loss over targets."""

    def __init__(self, model: LanguageModel) -> None:
        self.unembedding = model.unembedding.detach().float()
        self.means = {"loss": Mean()}

    def end(self, batch: Batch, embedding: Tensor) -> None:
        found = log_probabilities(embedding.float().flatten(0, 1), self.unembedding, batch.targets.flatten())
        self.means["loss"].add(-found.view_as(batch.tokens).sum(1), batch.counted.sum(1))

    def result(self, evidence: Evidence) -> Mean:  # noqa: ARG002
        return self.means["loss"]


def dynamics(
    checkpoints: Iterable[tuple[int, LanguageModel]],
    batches: Batches,
    threshold: float = 0.10,
    progress: Callable[[int], None] | None = None,
) -> Dynamics:
    """The analyses at each (step, model), in the order of the steps."""
    read_twice(batches)
    rows: dict[str, list] = {name: [] for name in Dynamics.axes()}
    drift, evidence = None, None
    for step, given in checkpoints:
        model = streams_of(given, "dynamics")
        if model.config.depth == 1:
            raise UserError("dynamics follows the drift between layers: train with depth = 2 or more")
        alignment, drift, means, loss, *routing = capture(
            model,
            batches,
            AlignmentSums(model),
            DriftSums(StepContributions(model)),
            StateSums(model, last=True),
            LossSums(model),
            *([RoutingSums(model, threshold)] if model.config.connection == "attention" else []),
        )
        (ablation,) = capture(model, batches, FinalAblation(model, "mean", means))
        evidence = alignment.evidence
        unknown = np.full(model.config.streams, np.nan)  # without a learned connection
        measured = {
            "steps": step,
            "loss": loss.mean,
            "loss_se": loss.standard_error,
            "outgoing": routing[0].outgoing if routing else unknown,
            "self_routing": routing[0].self_routing if routing else unknown,
            "connection": alignment.layer_mean,
            "update": alignment.output.mean((1, 2)),
            "drift": drift.quartiles()[1],
            "ablation": ablation.kl,
        }
        for name, value in measured.items():
            rows[name].append(value)
        if progress is not None:
            progress(step)
    if drift is None or evidence is None:
        raise UserError("no checkpoints to analyse: train with checkpoints, or give (step, model) pairs")
    arrays = {name: np.array(values) for name, values in rows.items()}
    return Dynamics(evidence=evidence, groups=drift.groups, boundary=drift.boundary, **arrays)


def checkpoints_of(run: str | Path) -> Iterator[tuple[int, LanguageModel]]:
    """The (step, model) pairs of a run's whole checkpoints, one model at a time."""
    from srm.storage import load
    from srm.training.checkpoint import checkpoint_steps

    folder = Path(run) / "checkpoints"
    for step in sorted(checkpoint_steps(folder)) if folder.is_dir() else []:
        yield step, load(folder / f"step-{step}")
