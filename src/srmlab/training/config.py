"""How a model is trained: one frozen dataclass, checked when it is built.

    >>> TrainConfig(steps=1000, lr=3e-4).replace(batch_size=64).tokens_per_step(context=256)
    16384

Two kinds of fields. Most decide what is computed: they are the run's identity, and a run cannot go on with
another value. Those in `EXECUTION` decide only how or how often (devices, logging, checkpoints); they may
change at every resume.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

import torch

from srmlab.errors import UserError, nearest
from srmlab.models.config import ConfigError, require
from srmlab.training.schedule import Schedule

OptimizerName = Literal["adam-atan2", "adam-atan2-published", "adamw"]
OnNonfinite = Literal["stop", "skip", "rewind"]
Strategy = Literal["auto", "single", "ddp", "fsdp"]

COUNTS = (
    *("steps", "batch_size", "accumulate", "eval_every", "eval_tokens"),
    *("checkpoint_every", "keep_checkpoints", "log_every"),
)
EXECUTION = frozenset(
    (
        *("accumulate", "on_nonfinite", "eval_every", "eval_tokens", "checkpoint_every", "keep_checkpoints"),
        *("log_every", "tensorboard", "wandb", "device", "strategy", "compile", "activation_checkpointing"),
        "peak_flops",
    )
)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The defaults are the paper's recipe for SRM-med; `srmlab.training.recipes` has one for every preset."""

    # how long, and on how much at once
    steps: int = 10_000
    """Optimizer steps."""
    batch_size: int = 512
    """Sequences per step, over all devices and micro-batches."""
    context: int | None = None
    """Tokens per sequence; the model's context if not given."""
    accumulate: int = 1
    """Micro-batches per step and device: less memory, the same gradient."""
    seed: int = 0
    """Of the order of the data and of dropout."""
    document_mask: bool = False
    """Attention does not cross the boundary between two documents."""
    answers_only: bool = False
    """The loss counts only what follows "=" in a document, as in `srmlab prepare task:NAME`."""

    # the optimizer
    optimizer: OptimizerName = "adam-atan2"
    """HRM's Adam-atan2, the other published form of it, or AdamW."""
    lr: float = 1e-3
    """Peak learning rate."""
    warmup: int = 200
    """Steps of linear warm-up."""
    schedule: Schedule = "constant"
    """After the warm-up."""
    lr_end: float = 0.1
    """Where a cosine ends, as a share of lr."""
    weight_decay: float = 0.1
    """Decoupled: weights shrink by lr · weight_decay a step."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of the optimizer's two running means."""
    clip: float | None = None
    """Largest gradient norm; none by default."""
    on_nonfinite: OnNonfinite = "stop"
    """At NaN or Inf: stop, skip the batch, or go back to the last checkpoint and on with later batches."""

    # looking and keeping
    eval_every: int = 250
    """Steps between validation losses."""
    eval_tokens: int = 1_000_000
    """Validation tokens, at most."""
    checkpoint_every: int = 250
    """Steps between checkpoints; at most this much is ever lost."""
    keep_checkpoints: int = 2
    """How many of the latest are kept."""
    log_every: int = 10
    """Steps between lines where there is no terminal, and between points in TensorBoard and W&B."""
    tensorboard: bool = False
    """Also write TensorBoard events, to RUN/tensorboard."""
    wandb: str | None = None
    """Also log to this Weights & Biases project."""

    # the machine
    device: str = "auto"
    """cpu, cuda, cuda:1; auto takes a GPU if there is one."""
    strategy: Strategy = "auto"
    """With several processes: copies of the model (ddp) or shards of it (fsdp); auto is ddp."""
    dtype: Literal["float32", "bfloat16", "auto"] = "float32"
    """Of the matrix products (autocast); weights and optimizer stay float32. auto: bfloat16 on a GPU."""
    compile: bool = False
    """torch.compile the step functions."""
    activation_checkpointing: bool = False
    """Recompute each step function in the backward pass: less memory, more arithmetic."""
    peak_flops: float | None = None
    """FLOP/s of one device at its best, for the utilisation; measured by a matrix product if not given."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in COUNTS:
            require(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        require(self.context is None or self.context >= 1, "context", self.context, "must be at least 1")
        require(self.lr > 0, "lr", self.lr, "must be positive")
        require(
            0 <= self.warmup <= self.steps,
            "warmup",
            self.warmup,
            f"must be between 0 and steps = {self.steps}",
        )
        require(0 <= self.lr_end <= 1, "lr_end", self.lr_end, "must be between 0 and 1")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "must be 0 or more")
        require(all(0 <= beta < 1 for beta in self.betas), "betas", self.betas, "both must be in [0, 1)")
        require(
            self.clip is None or self.clip > 0,
            "clip",
            self.clip,
            "must be positive; leave it out for no clipping",
        )
        require(0 <= self.seed < 2**63, "seed", self.seed, "must be 0 or more")
        require(
            self.peak_flops is None or self.peak_flops > 0, "peak_flops", self.peak_flops, "must be positive"
        )
        require(
            self.batch_size % self.accumulate == 0,
            "accumulate",
            self.accumulate,
            f"must divide batch_size = {self.batch_size}",
        )

    def replace(self, **changes: Any) -> Self:
        """This config with some fields changed, checked again."""
        return dataclasses.replace(self, **known_fields(TrainConfig, changes))

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"betas": list(self.betas)}

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


def known_fields(kind: type, fields: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` as keywords for `kind`, lists (of TOML and JSON) as tuples; an unknown name is refused."""
    known = [field.name for field in dataclasses.fields(kind)]
    for name in fields:
        if name not in known:
            hint = nearest(name, known) or f"; its fields are {', '.join(known)}"
            raise ConfigError(f"{name}: not a field of {kind.__name__}{hint}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def check_types(config: Any) -> None:
    """Refuse a value that is not of its field's type, by name."""
    hints = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, kind = getattr(config, field.name), hints[field.name]
        require(_fits(value, kind), field.name, value, f"must be {_describe(kind)}")


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


def _fits(value: Any, kind: Any) -> bool:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value in args
    if origin in (Union, types.UnionType):
        return any(_fits(value, option) for option in args)
    if origin is tuple:
        return isinstance(value, tuple) and len(value) == len(args) and all(map(_fits, value, args))
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _describe(kind: Any) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in args)
    if origin in (Union, types.UnionType):
        return " or ".join("left out" if option is type(None) else _describe(option) for option in args)
    if origin is tuple:
        return f"{len(args)} values, each {_describe(args[0])}"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]
