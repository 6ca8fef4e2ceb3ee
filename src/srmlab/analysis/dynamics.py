"""Training dynamics: the analyses at each of a run's checkpoints, as curves over training steps.

When do hubs appear? Is the jump of drift in the middle of the model the boundary of the gradient? The drift
curves are saved with the layer where the gradient begins (`boundary`), so runs with different l can be
compared.

    >>> import srmlab, srmlab.analysis, torch
    >>> untrained = srmlab.build(srmlab.preset("srm-nano"))
    >>> later = srmlab.build(srmlab.preset("srm-nano", init_seed=1))
    >>> found = srmlab.analysis.dynamics([(0, untrained), (100, later)], [torch.arange(64).view(2, 32)])
    >>> found.steps.tolist(), found.outgoing.shape               # checkpoint, stream
    ([0, 100], (2, 8))

`checkpoints_of("runs/nano")` gives the (step, model) pairs of a run, one model in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from torch import Tensor

from srmlab.analysis.ablation import AblationSums
from srmlab.analysis.alignment import AlignmentSums
from srmlab.analysis.capture import Accumulator, Batches, Mean, Placed, capture, read_twice
from srmlab.analysis.drift import Contributions, DriftSums
from srmlab.analysis.readout import sequence_losses
from srmlab.analysis.registry import has_patterns, streams_of
from srmlab.analysis.result import Array, Coordinate, Evidence, Measured, Result, require
from srmlab.analysis.routing import RoutingSums
from srmlab.analysis.states import StateSums, points_of
from srmlab.errors import UserError
from srmlab.models import LanguageModel
from srmlab.storage import load
from srmlab.storage.weights import checkpoint_steps

SOURCES = {  # field → the analysis, and its number
    "outgoing": ("routing", "outgoing"),
    "hub_share": ("routing", "hub_share"),
    "self_routing": ("routing", "self_routing"),
    "connection": ("alignment", "layer_mean"),
    "alignment": ("alignment", "mean"),
    "update": ("alignment", "update_layer_mean"),
    "drift": ("drift", "cosine_median"),
    "profile": ("drift", "profile"),
    "jump": ("drift", "jump"),
    "ablation": ("ablation", "kl"),
    "mean_bits": ("ablation", "mean_bits"),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Dynamics(Result):
    """The analyses as curves over a run's checkpoints; made by `dynamics`."""

    kind: ClassVar[str] = "dynamics"

    groups: tuple[str, ...]
    boundary: int | None  # the first layer trained with gradient
    steps: Annotated[Array, Coordinate("checkpoint", "training steps")]
    loss: Annotated[Array, Measured("checkpoint", "nats, mean over targets")]
    outgoing: Annotated[
        Array, Measured("checkpoint stream", "hub score: outgoing routing frequency, share of tokens")
    ]
    hub_share: Annotated[
        Array, Measured("checkpoint", "the strongest stream's share of all outgoing frequency; 1/S: no hub")
    ]
    self_routing: Annotated[Array, Measured("checkpoint stream", "share of tokens")]
    connection: Annotated[
        Array, Measured("checkpoint layer", "cosine of c and x, mean over streams and tokens")
    ]
    alignment: Annotated[
        Array, Measured("checkpoint", "cosine of c and x, mean over layers, streams and tokens")
    ]
    update: Annotated[
        Array, Measured("checkpoint layer", "cosine of update and step output, mean over steps and streams")
    ]
    drift: Annotated[Array, Measured("checkpoint group transition", "cosine distance, median over streams")]
    profile: Annotated[
        Array, Measured("checkpoint transition", "cosine distance, mean over groups of `drift`")
    ]
    jump: Annotated[
        Array, Measured("checkpoint", "transition with the largest drift; −1 if none was measured")
    ]
    ablation: Annotated[Array, Measured("checkpoint stream", "nats, KL of mean ablation")]
    mean_bits: Annotated[Array, Measured("checkpoint", "bits, KL of mean ablation, mean over streams")]

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool((np.diff(self.steps) > 0).all()), "checkpoints must come in the order of their steps")

    @property
    def routed(self) -> bool:
        """Whether the connection is a learned one, whose routing was measured."""
        return bool(np.isfinite(self.outgoing).all())

    def headline(self) -> str:
        hubs = f"hub share {self.hub_share[0]:.0%} → {self.hub_share[-1]:.0%}, " if self.routed else ""
        return (
            f"{len(self.steps)} checkpoints to step {self.steps[-1]}: {hubs}"
            f"loss {self.loss[0]:.2f} → {self.loss[-1]:.2f}"
        )

    def summary(self) -> str:
        lines = [f"Training dynamics ({self.evidence})"]
        for i, step in enumerate(self.steps):
            facts = [f"loss {self.text('loss', at=(i,))}"]
            if self.routed:
                strongest = int(self.outgoing[i].argmax())
                facts.append(f"strongest source S{strongest} ({self.text('hub_share', '.1%', (i,))} of all)")
            facts.append(f"cos(c, x) {self.text('alignment', '+.3f', (i,))}")
            if (jump := int(self.jump[i])) >= 0:
                facts.append(f"largest drift at {jump}→{jump + 1}")
            facts.append(f"mean ablation {self.text('mean_bits', at=(i,))} bits")
            lines.append(f"  step {step:>6}: {'; '.join(facts)}")
        if self.boundary:
            at = f"transition {self.boundary - 1}→{self.boundary}"
            lines.append(f"  the gradient begins at layer {self.boundary}: {at} crosses its boundary")
        return "\n".join(lines)


class LossSums(Accumulator):
    """The mean loss over targets."""

    def __init__(self, model: LanguageModel) -> None:
        self.unembedding = model.unembedding.detach().float()
        self.means = {"loss": Mean(over="targets")}

    def end(self, batch: Placed, embedding: Tensor) -> None:
        self.means["loss"].add(batch, sequence_losses(embedding, self.unembedding, batch.targets))

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
    errors: dict[str, list] = {name: [] for name in Dynamics.uncertain()}
    drift = None
    for step, given in checkpoints:
        model = streams_of(given, "dynamics")
        if model.depth == 1:
            raise UserError("dynamics needs drift, which is between layers: train with depth = 2 or more")
        found, loss = _analyses(model, batches, threshold)
        drift = found["drift"]
        rows["steps"].append(step)
        rows["loss"].append(loss.mean)
        errors["loss"].append(loss.standard_error)
        for name, (analysis, number) in SOURCES.items():
            if analysis in found:
                value, error = getattr(found[analysis], number), found[analysis].standard_error(number)
            else:  # no routing without a learned connection
                value = error = np.full(() if name == "hub_share" else len(model.streams), np.nan)
            rows[name].append(value)
            errors[name].append(error)
        if progress is not None:
            progress(step)
    if drift is None:
        raise UserError("no checkpoints to analyse: train with checkpoints, or give (step, model) pairs")
    arrays: dict[str, Any] = {name: np.array(values) for name, values in rows.items()}
    return Dynamics(
        evidence=drift.evidence,
        errors={name: np.array(values) for name, values in errors.items()},
        groups=drift.groups,
        boundary=drift.boundary,
        **arrays,
    )


def _analyses(model: LanguageModel, batches: Batches, threshold: float) -> tuple[dict[str, Any], Mean]:
    """The results by name, and the loss."""
    accumulators: dict[str, Accumulator] = {
        "alignment": AlignmentSums(model),
        "drift": DriftSums(Contributions(model)),
        "states": StateSums(model, points_of(model)[-1:]),
        "loss": LossSums(model),
    }
    if has_patterns(model):
        accumulators["routing"] = RoutingSums(model, threshold)
    found = dict(zip(accumulators, capture(model, batches, *accumulators.values()), strict=True))
    (found["ablation"],) = capture(model, batches, AblationSums(model, "mean", found["states"]))
    return found, found["loss"]


def checkpoints_of(run: str | Path) -> Iterator[tuple[int, LanguageModel]]:
    """The (step, model) pairs of a run's whole checkpoints, one model at a time."""
    folder = Path(run) / "checkpoints"
    steps = sorted(checkpoint_steps(folder)) if folder.is_dir() else []
    if len(steps) == 1:
        raise UserError(
            f"{run} has one checkpoint, and dynamics compares several: train with --keep-checkpoints"
        )
    for step in steps:
        yield step, load(folder / f"step-{step}")
