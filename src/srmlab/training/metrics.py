"""The log of a run: `metrics.jsonl` always, TensorBoard and Weights & Biases if asked for.

One JSON object a line. After every step:

    step, loss (nats per token), lr, grad_norm, tokens (seen so far), tokens_per_second,
    mfu (model-FLOPs utilisation, 0 … 1)

with a depth schedule also `depth` (levels of this step) and `flops` (its arithmetic, all devices together);

after an evaluation `step, val_loss, state_norms` (mean norm by site, one number a stream), and when
something was not finite `step, event, policy, windows` (which pieces of the text it was). Numbers are
written in full, so two logs can be compared bitwise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from srmlab.errors import UserError
from srmlab.files import write_file
from srmlab.storage.metrics_file import iter_metrics, read_metrics
from srmlab.training.config import TrainConfig

Row = Mapping[str, Any]


class Writer(Protocol):
    def write(self, row: Row) -> None: ...
    def close(self) -> None: ...


class MetricsLog:
    """The lines of `metrics.jsonl`, passed on to TensorBoard and Weights & Biases."""

    def __init__(self, path: Path, others: list[Writer], every: int = 1) -> None:
        self.path, self.others, self.every = path, others, every
        self.evaluated = self._last_evaluation()
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115  (open as long as the run)

    def write(self, row: Row) -> None:
        self._file.write(json.dumps({name: _plain(value) for name, value in row.items()}) + "\n")
        self._file.flush()  # in the system's hands: a killed process loses no line
        if "val_loss" in row:
            self.evaluated = row["step"]
        if "val_loss" in row or row["step"] % self.every == 0:
            for writer in self.others:
                writer.write(row)

    def cut(self, step: int, *, keep_events: bool = False) -> None:
        """Forget what came after `step`: those steps will be taken, and written, again."""
        kept = [
            row for row in read_metrics(self.path) if row["step"] <= step or (keep_events and "event" in row)
        ]
        self._file.close()
        write_file(self.path, "".join(json.dumps(row) + "\n" for row in kept))
        self.evaluated = self._last_evaluation()
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115

    def _last_evaluation(self) -> int:
        """The last step with a validation loss, -1 if there is none."""
        rows = iter_metrics(self.path) if self.path.exists() else ()
        return max((row["step"] for row in rows if "val_loss" in row), default=-1)

    def close(self) -> None:
        self._file.close()
        for writer in self.others:
            writer.close()


def open_log(run: Path, config: TrainConfig, name: str) -> MetricsLog:
    others: list[Writer] = []
    if config.tensorboard:
        others.append(TensorBoard(run / "tensorboard"))
    if config.wandb is not None:
        others.append(WeightsAndBiases(config, run, name))
    return MetricsLog(run / "metrics.jsonl", others, config.log_every)


def check_writers(config: TrainConfig) -> None:
    """Say what is not installed before anything is touched."""
    if config.tensorboard:
        _import("torch.utils.tensorboard", "tensorboard")
    if config.wandb is not None:
        _import("wandb", "wandb")


class TensorBoard:
    def __init__(self, folder: Path) -> None:
        self._writer = _import("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder))

    def write(self, row: Row) -> None:
        for name, value in scalars(row).items():
            self._writer.add_scalar(name, value, row["step"])

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    def __init__(self, config: TrainConfig, run: Path, name: str) -> None:
        wandb = _import("wandb", "wandb")
        self._run = wandb.init(
            project=config.wandb, name=name, dir=str(run), config=config.to_dict(), resume="allow", id=name
        )

    def write(self, row: Row) -> None:
        self._run.log(scalars(row), step=row["step"])

    def close(self) -> None:
        self._run.finish()


def scalars(row: Row) -> dict[str, float]:
    """A row's numbers by name, lists spelled out: `state_norms/layers.7.out/3`."""
    flat: dict[str, float] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, part in value.items():
                add(f"{name}/{key}" if name else key, part)
        elif isinstance(value, list):
            if name != "windows":
                for number, part in enumerate(value):
                    add(f"{name}/{number}", part)
        elif isinstance(value, int | float) and name != "step":
            flat[name] = value

    add("", row)
    return flat


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _import(module: str, package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(
            f"{package} is not installed: pip install {package}, or leave --{package} out"
        ) from None
