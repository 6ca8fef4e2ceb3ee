"""How a model is trained: a frozen dataclass in two halves, checked when it is built.

    >>> TrainConfig(steps=1000, lr=3e-4).replace(batch_size=64).tokens_per_step(context=256)
    16384

`Computation` decides the result: it is the run's identity, and none of it can change when a run is resumed.
`Execution` decides only how, where and how often (devices, logging, checkpoints): all of it may change at
every resume. A `TrainConfig` is both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch

from srmlab.errors import UserError
from srmlab.models.fields import LATER, bounded, check_fields, count, known_fields, require, saved_fields
from srmlab.training.depth import CONSTANT, is_schedule
from srmlab.training.schedule import Schedule

OptimizerName = Literal["adam-atan2", "adam-atan2-published", "adamw"]
OnNonfinite = Literal["stop", "skip", "rewind"]
EvalWindows = Literal["first", "spread"]
Strategy = Literal["auto", "single", "ddp", "fsdp"]
Halting = Literal["hrm", "trm", "fixed"]

_SHARE = "must be between 0 and 1"


def _is_share(value: float) -> bool:
    return 0 <= value <= 1


@dataclass(frozen=True, kw_only=True)
class Computation:
    """Settings that affect the result."""

    # how long, and on how much at once
    steps: int = count(10_000)
    """Optimizer steps."""
    batch_size: int = count(512)
    """Sequences per step, over all devices and micro-batches."""
    context: int | None = count(None)
    """Tokens per sequence; by default the model's context."""
    seed: int = bounded(0, lambda seed: 0 <= seed < 2**63, "must be from 0 to 2^63 − 1")
    """Seed for the data order and dropout."""
    document_mask: bool = False
    """Attention does not cross document boundaries."""
    answers_only: bool = dataclasses.field(default=False, metadata=LATER)
    """The loss counts only what follows "=" in a document, as in `srmlab prepare task:NAME`."""

    # the optimizer
    optimizer: OptimizerName = "adam-atan2"
    """HRM's Adam-atan2, its other published form, or AdamW."""
    lr: float = bounded(1e-3, lambda lr: lr > 0, "must be positive")
    """Peak learning rate."""
    warmup: int = 200
    """Steps of linear warm-up."""
    schedule: Schedule = "constant"
    """Learning rate schedule after the warm-up."""
    lr_end: float = bounded(0.1, _is_share, _SHARE)
    """Final learning rate of the cosine schedule, as a fraction of lr."""
    weight_decay: float = bounded(0.1, lambda decay: decay >= 0, "must be 0 or more")
    """Decoupled: weights shrink by lr · weight_decay per step."""
    betas: tuple[float, float] = bounded(
        (0.9, 0.95), lambda betas: all(0 <= beta < 1 for beta in betas), "both must be in [0, 1)"
    )
    """Decay of the optimizer's two moving averages."""
    clip: float | None = bounded(
        None, lambda clip: clip > 0, "must be positive; leave it out for no clipping"
    )
    """Maximum gradient norm; no clipping by default."""
    depth_schedule: str = bounded(
        CONSTANT,
        is_schedule,
        'must be "constant", "poisson", or such as "grow:2", "draw:2" or "draw:2/1"',
        **LATER,
    )
    """Depth per step: the model's, growing (grow:2) or random (draw:2, poisson); /1: gradient depth too."""
    dtype: Literal["float32", "bfloat16", "auto"] = "float32"
    """Autocast precision of matrix products; weights and optimizer stay float32. auto: bfloat16 on a GPU."""

    # puzzles (srmlab.training.segments)
    segments: int = count(16, **LATER)
    """Puzzles: maximum number of segments per puzzle; each is one step."""
    halting: Halting = dataclasses.field(default="hrm", metadata=LATER)
    """Puzzles: halt when q_halt > q_continue (hrm), when q_halt > 0 (trm), or after all segments."""
    exploration: float = bounded(0.1, _is_share, _SHARE, **LATER)
    """Puzzles: probability of drawing a minimum number of segments."""
    likelihood: Literal["stablemax", "softmax"] = dataclasses.field(default="stablemax", metadata=LATER)
    """Puzzles: how the loss turns a cell's logits into probabilities."""
    cells: Literal["all", "unknown"] = dataclasses.field(default="all", metadata=LATER)
    """Puzzles: the cells that count in the loss."""
    ema: float = bounded(0.0, lambda ema: 0 <= ema < 1, "must be in [0, 1); 0 is none", **LATER)
    """Puzzles: decay of a moving average of the weights, which is saved as the model; 0: none."""
    puzzle_lr: float = bounded(1e-2, lambda lr: lr >= 0, "must be 0 or more", **LATER)
    """Puzzles: peak learning rate of the puzzle embeddings (sign updates)."""
    augment: bool = dataclasses.field(default=True, metadata=LATER)
    """Puzzles: apply a random symmetry to each example."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How the run is executed; any of it may change on resume."""

    # evaluation, checkpoints and logs
    eval_every: int = count(250)
    """Steps between validation losses."""
    eval_tokens: int = count(1_000_000)
    """Maximum number of validation tokens."""
    eval_windows: EvalWindows = "spread"
    """Validation windows: spread evenly over the validation text, or the first ones."""
    checkpoint_every: int = count(250)
    """Steps between checkpoints; a crash loses at most this many."""
    keep_checkpoints: int = count(2)
    """How many checkpoints to keep."""
    log_every: int = count(10)
    """Steps between log lines (if not on a terminal), and between points in TensorBoard and W&B."""
    tensorboard: bool = False
    """Also write TensorBoard events, to RUN/tensorboard."""
    wandb: str | None = None
    """Also log to this Weights & Biases project."""
    on_nonfinite: OnNonfinite = "stop"
    """At NaN or Inf: stop, skip the batch, or rewind to the last checkpoint and go on with later batches."""

    # the machine
    device: str = "auto"
    """cpu, cuda, cuda:1; auto uses a GPU if there is one."""
    strategy: Strategy = "auto"
    """With several processes: replicate (ddp) or shard (fsdp) the model; auto is ddp."""
    accumulate: int = count(1)
    """Micro-batches per step and device (gradient accumulation): less memory, the same gradient."""
    compile: bool = False
    """torch.compile the step functions."""
    activation_checkpointing: bool = False
    """Recompute each step function in the backward pass: less memory, more arithmetic."""
    peak_flops: float | None = bounded(None, lambda flops: flops > 0, "must be positive")
    """Peak FLOP/s of one device, for MFU; by default measured with a matrix product."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Execution, Computation):
    """The defaults are the paper's recipe for SRM-med; `srmlab.training.recipes` has one for every preset."""

    def __post_init__(self) -> None:
        check_fields(self)
        fix = f"must be between 0 and steps = {self.steps}; set --warmup lower, or --steps higher"
        require(self, "warmup", 0 <= self.warmup <= self.steps, fix)
        even = self.batch_size % self.accumulate == 0
        require(self, "accumulate", even, f"must divide batch_size = {self.batch_size}")

    def replace(self, **changes: Any) -> Self:
        """This config with some fields changed, checked again."""
        return dataclasses.replace(self, **known_fields(TrainConfig, changes))

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in saved_fields(self)} | {"betas": list(self.betas)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TrainConfig:
        """The inverse of `to_dict`; fields that are left out have their defaults."""
        return cls(**known_fields(cls, fields))

    def compute_dtype(self, device: torch.device) -> torch.dtype:
        """What the matrix products are computed in."""
        half = self.dtype == "bfloat16" or (self.dtype == "auto" and device.type == "cuda")
        return torch.bfloat16 if half else torch.float32

    def tokens_per_step(self, context: int) -> int:
        return self.batch_size * (self.context or context)


def computation(config: TrainConfig) -> dict[str, Any]:
    """The fields that decide what is computed."""
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(Computation)}


def identity(config: TrainConfig) -> dict[str, Any]:
    """The same as it is saved: without those that came later, where they have their defaults."""
    return {name: value for name, value in config.to_dict().items() if name in computation(config)}


def execution(config: TrainConfig) -> Execution:
    """The half of a config that may change at every resume."""
    return Execution(**{field.name: getattr(config, field.name) for field in dataclasses.fields(Execution)})


def changes_between(saved: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Every field in which two configs differ, as 'lr 0.001 → 0.002'."""
    names = [*saved, *(name for name in given if name not in saved)]
    return [
        f"{name} {saved.get(name)!r} → {given.get(name)!r}"
        for name in names
        if _plain(saved.get(name)) != _plain(given.get(name))
    ]


def refuse_changes(what: str, saved: Mapping[str, Any], given: Mapping[str, Any], fix: str) -> None:
    if changes := changes_between(saved, given):
        raise UserError(f"{what} has changed ({', '.join(changes)}): {fix}")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
