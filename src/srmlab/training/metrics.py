"""The log of a run: `metrics.jsonl` always, TensorBoard and Weights & Biases if asked for.

One JSON object per line. After every step:

    step, loss (nats per token), lr, grad_norm, tokens (seen so far), tokens_per_second,
    mfu (model-FLOPs utilisation, 0 … 1)

where an architecture minimises more than the cross-entropy (see its `training_loss`) also `parts`, by name;
with a depth schedule also `depth` (levels of this step) and `flops` (its arithmetic, all devices together);

with puzzles also `cell_loss`, `solved` (share of the slots) and `segments` (of those that halted), and after
an evaluation `val_solved`;

after an evaluation `step, val_loss, state_norms` (mean norm by site, one number a stream), and when
something was not finite `step, event, policy, windows` (which pieces of the text it was). Numbers are
written in full, so two logs can be compared bitwise.

TensorBoard and Weights & Biases also get the run's configuration (model, preset, training, data, versions)
and, at every evaluation, a text sample and the routing. A run stays one W&B run however often it is resumed:
its id is drawn once and kept in RUN/wandb-id.
"""

from __future__ import annotations

import html
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from srmlab.errors import UserError, reason
from srmlab.files import write_file
from srmlab.storage.metrics_file import iter_metrics, metrics_line, read_metrics
from srmlab.training.config import TrainConfig
from srmlab.training.run import RunConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WANDB_ID = "wandb-id"
Row = Mapping[str, Any]


class Writer(Protocol):
    def write(self, row: Row) -> None: ...
    def show(self, step: int, written: str, routing: Figure | None) -> None: ...
    def close(self) -> None: ...


class MetricsLog:
    """The lines of `metrics.jsonl`, passed on to TensorBoard and Weights & Biases."""

    def __init__(self, path: Path, others: list[Writer], every: int = 1) -> None:
        self.path, self.others, self.every = path, others, every
        self.evaluated = self._last_evaluation()
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115  (open as long as the run)

    def write(self, row: Row) -> None:
        self._file.write(metrics_line(row))
        self._file.flush()  # in the system's hands: a killed process loses no line
        if "val_loss" in row:
            self.evaluated = row["step"]
        if "val_loss" in row or row["step"] % self.every == 0:
            for writer in self.others:
                writer.write(row)

    def show(self, step: int, written: str, routing: Figure | None) -> None:
        """What a model writes, and its routing, for those who look."""
        for writer in self.others:
            writer.show(step, written, routing)

    def cut(self, step: int, *, keep_events: bool = False) -> None:
        """Forget what came after `step`: those steps will be taken, and written, again."""
        kept = [
            row for row in read_metrics(self.path) if row["step"] <= step or (keep_events and "event" in row)
        ]
        self._file.close()
        write_file(self.path, "".join(map(metrics_line, kept)))
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


def open_log(run: Path, plan: RunConfig) -> MetricsLog:
    others: list[Writer] = []
    config = plan.training
    if config.tensorboard:
        others.append(TensorBoard(run / "tensorboard", plan))
    if config.wandb is not None:
        others.append(WeightsAndBiases(config.wandb, run, plan))
    return MetricsLog(run / "metrics.jsonl", others, config.log_every)


def check_writers(config: TrainConfig) -> None:
    """Say what is not installed before anything is touched."""
    if config.tensorboard:
        _import("torch.utils.tensorboard", "tensorboard")
    if config.wandb is not None:
        _import("wandb", "wandb")


class TensorBoard:
    def __init__(self, folder: Path, plan: RunConfig) -> None:
        self._writer = _import("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder))
        self._writer.add_text("config", _as_code(json.dumps(plan.to_dict(), indent=2)))

    def write(self, row: Row) -> None:
        for name, value in scalars(row).items():
            self._writer.add_scalar(name, value, row["step"])

    def show(self, step: int, written: str, routing: Figure | None) -> None:
        self._writer.add_text("written", _as_code(written), step)
        if routing is not None:
            self._writer.add_figure("routing", routing, step, close=False)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    def __init__(self, project: str, run: Path, plan: RunConfig) -> None:
        self._wandb = _import("wandb", "wandb")
        try:
            self._run = self._wandb.init(
                project=project,
                name=run.name,
                dir=str(run),
                config=plan.to_dict(),
                resume="allow",
                id=wandb_id(run),
            )
        except self._wandb.Error as error:
            raise UserError(
                f"Weights & Biases cannot be used ({reason(error)}): log in, or set WANDB_MODE=offline, "
                f"then `srmlab resume {run}`"
            ) from None

    def write(self, row: Row) -> None:
        self._run.log(scalars(row), step=row["step"])

    def show(self, step: int, written: str, routing: Figure | None) -> None:
        shown: dict[str, Any] = {"written": self._wandb.Html(f"<pre>{html.escape(written)}</pre>")}
        if routing is not None:
            import matplotlib.pyplot  # noqa: F401  (W&B looks a figure up there without importing it)

            shown["routing"] = self._wandb.Image(routing)
        self._run.log(shown, step=step)

    def close(self) -> None:
        self._run.finish()


def wandb_id(run: Path) -> str:
    """The id of a run, drawn the first time; runs from before ids were drawn have their name."""
    file = run / WANDB_ID
    if not file.is_file():
        write_file(file, run.name if (run / "wandb").is_dir() else secrets.token_hex(8))
    return file.read_text(encoding="utf-8").strip()


def _as_code(text: str) -> str:
    """For a reader of Markdown: indented, so that nothing in it is markup."""
    return "\n".join(f"    {line}" for line in text.splitlines())


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


def _import(module: str, package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(
            f"{package} is not installed: pip install {package}, or leave --{package} out"
        ) from None
