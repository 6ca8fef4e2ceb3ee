"""The training loop.

    for every step:
        the learning rate is a function of the step
        the objective gives loss and gradient, over micro-batches and processes
        not finite? then no weight is changed, and the policy decides
        one step of the optimizer, one line of metrics
        every so often a checkpoint and a validation loss

The state is: weights, optimizer, the generators of what the model draws in training, two counters, and what
the objective carries. All of it is in a checkpoint, so a run that was stopped anywhere and resumed is
bitwise identical to one that was not.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from srmlab.models import LanguageModel, build
from srmlab.puzzles import Puzzles
from srmlab.storage.metrics_file import Losses
from srmlab.storage.run_directory import RunDirectory
from srmlab.storage.weights import load_tensors, model_tensors, read_json
from srmlab.training.checkpoint import load_checkpoint, prune, random_state, save_checkpoint
from srmlab.training.distributed import World, whole
from srmlab.training.initial import refuse_changed
from srmlab.training.language import Language
from srmlab.training.metrics import MetricsLog, open_log
from srmlab.training.nonfinite import POLICIES
from srmlab.training.objective import Data, Objective
from srmlab.training.optimizer import build_optimizer
from srmlab.training.peak import measure_peak
from srmlab.training.recompute import recompute_activations
from srmlab.training.run import RunConfig, choose_checkpoint
from srmlab.training.schedule import learning_rate
from srmlab.training.segments import DeepSupervision
from srmlab.training.signals import StopRequest, first_signal
from srmlab.training.step_display import Progress


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    run: Path
    step: int
    loss: float | None  # mean of the last 200 steps, nats per token
    val_loss: float | None
    val_solved: float | None  # of puzzles, the share of the test puzzles
    signal: int  # what stopped it before the end, or 0

    @property
    def exit_code(self) -> int:
        return 128 + self.signal if self.signal else 0


class Trainer:
    """One process's part of a run."""

    def __init__(
        self,
        plan: RunConfig,
        data: Data,
        run: RunDirectory,
        world: World,
        log: MetricsLog | None,
        stop: StopRequest,
    ) -> None:
        self.plan, self.config, self.data, self.directory, self.world = plan, plan.training, data, run, world
        self.log, self.stop = log, stop
        self.model: LanguageModel = build(plan.model, device=world.device)
        self.model.train()
        if self.config.activation_checkpointing:
            recompute_activations(self.model)
        if self.config.compile:
            self.model.compile()
        kind = DeepSupervision if isinstance(data, Puzzles) else Language
        self.objective: Objective = kind(plan, data, self.model, world)  # pyright: ignore[reportArgumentType]
        self.optimizer = build_optimizer(self.config, self.model)
        self.step = 0
        self.data_offset = 0  # batches left out by rewinding
        self.saved_step = -1
        self.rewinds = Counter[int]()  # by the step that was gone back to
        self.random_before: dict[str, torch.Tensor] = {}
        self.progress = Progress(self.config.steps, 0, self.config.log_every, show=False)

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, plan: RunConfig, data: Data, run: RunDirectory, world: World, *, show: bool = True
    ) -> Iterator[Trainer]:
        log = open_log(run.path, plan) if world.main else None
        try:
            with StopRequest() as stop:
                trainer = cls(plan, data, run, world, log, stop)
                warn: list[str] = []
                trainer.restore(warn.append)
                progress = Progress(
                    plan.training.steps, trainer.step, plan.training.log_every, show=show and world.main
                )
                with progress:
                    trainer.progress = progress
                    for line in warn:
                        progress.say(f"warning: {line}")
                    if trainer.step:
                        progress.say(f"resuming after step {trainer.step}")
                    elif plan.init_from is not None:
                        progress.say(f"starting from {plan.init_from.path}")
                    if not trainer.objective.can_evaluate():
                        held_out = "no puzzle" if isinstance(data, Puzzles) else "less text than one window"
                        progress.say(f"no validation loss: {held_out} is held out")
                    yield trainer
        finally:
            if log is not None:
                log.close()

    # --- the loop -----------------------------------------------------------------------------------------

    def run_to_the_end(self) -> TrainResult:
        config = self.config
        self.peak = self.peak_flops() * self.world.size
        if self.saved_step < 0 and (config.on_nonfinite == "rewind" or self.plan.init_from is not None):
            self.save()
        signal = self.evaluate_if_due()
        while self.step < config.steps and not signal:
            signal = self.advance()
            if signal or self.step % config.checkpoint_every == 0 or self.step == config.steps:
                self.save()
            signal = signal or self.evaluate_if_due()
        self.save()
        found = Losses.read(self.directory.metrics) if self.world.main else Losses()  # others have no log
        return TrainResult(self.directory.path, self.step, found.mean, found.last, found.solved, signal)

    def advance(self) -> int:
        """Take one step; the signal that asks to stop, if one came."""
        started, step = time.perf_counter(), self.step + 1
        self.random_before = random_state(self.model)
        lr = self.set_rate(step)
        losses, norm = self.gradient(step)
        mine = [value / self.world.size for value in losses.values()]
        sums = self.world.total(*mine, *self.stop.flags())
        parts, flags = dict(zip(losses, sums, strict=False)), sums[len(losses) :]
        loss = parts.pop("loss")
        finite = math.isfinite(loss) and math.isfinite(norm)
        if finite:
            self.optimizer.step()
            self.step = step
        row: dict[str, Any] = {"step": step, "loss": loss, "lr": lr, "grad_norm": norm}
        if parts:
            row["parts"] = parts
        if finite:
            row |= self.objective.after(lr)
        if not finite:
            windows = self.objective.examples(step, self.data_offset)
            row |= {"event": "nonfinite", "policy": self.config.on_nonfinite, "windows": windows}
        self.write(row | self.speed(step, time.perf_counter() - started))
        if not finite:
            POLICIES[self.config.on_nonfinite](self, row)
        return first_signal(flags)

    def gradient(self, step: int) -> tuple[dict[str, float], float]:
        """This process's mean loss and its parts, and the norm of the global batch's gradient, which is left
        in `.grad`."""
        self.optimizer.zero_grad(set_to_none=True)
        losses = self.objective.backward(step, self.data_offset)
        grads = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        if self.config.clip is not None:
            torch.nn.utils.clip_grads_with_norm_(list(self.model.parameters()), self.config.clip, norm)
        return losses, float(whole(norm))

    def set_rate(self, step: int) -> float:
        c = self.config
        lr = learning_rate(
            step, lr=c.lr, warmup=c.warmup, steps=c.steps, schedule=c.schedule, lr_end=c.lr_end
        )
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return lr

    def peak_flops(self) -> float:
        """FLOP/s of one device at its best; a measurement is the main process's."""
        if self.config.peak_flops is not None:
            return self.config.peak_flops
        dtype = self.config.compute_dtype(self.world.device)
        return self.world.share(measure_peak(self.world.device, dtype) if self.world.main else None)

    def speed(self, step: int, seconds: float) -> dict[str, Any]:
        size = self.objective.size(step)
        speed = {
            "tokens": step * size["tokens"],
            "tokens_per_second": size["tokens"] / seconds,
            "mfu": size["flops"] / self.peak / seconds,
        }
        return speed | {"depth": size["depth"], "flops": size["flops"]} if "depth" in size else speed

    def write(self, row: dict[str, Any]) -> None:
        if self.log is not None:
            self.log.write(row)
            self.progress.row(row)

    # --- checkpoints --------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint of this step, unless there is one: a good checkpoint is never replaced."""
        if self.saved_step == self.step:
            return
        save_checkpoint(
            self.directory.checkpoints / f"step-{self.step}",
            self.model,
            self.optimizer,
            config=self.plan.model.to_dict(),
            training={
                "step": self.step,
                "data_offset": self.data_offset,
                "training": self.config.to_dict(),
                "data": {"fingerprint": self.data.fingerprint},
                "world": {"size": self.world.size, "strategy": self.world.strategy},
                "versions": self.plan.to_dict()["versions"],
            },
            world=self.world,
            tokenizer=self.directory.tokenizer if self.directory.tokenizer.is_dir() else None,
            weights=self.objective.weights(),
            state=self.objective.state(),
        )
        self.saved_step = self.step
        if self.world.main:
            prune(self.directory.checkpoints, self.config.keep_checkpoints, self.step)

    def restore(self, report: Callable[[str], None], *, keep_events: bool = False) -> None:
        """Take the state of the last good checkpoint; of a run without any, the state at the start."""
        found: Path | None = None
        with self.world.only_main() as mine:
            if mine:
                found = choose_checkpoint(self.directory, self.plan, report)
                if found is None and self.plan.init_from is not None:
                    refuse_changed(self.plan.init_from)
        found = self.world.share(found)
        if found is not None:
            about = read_json(found / "training.json")
            state = self.objective.state()
            load_checkpoint(found, self.model, self.optimizer, state)
            self.objective.restore(state)
            self.step = self.saved_step = about["step"]
            self.data_offset = about["data_offset"]
        elif self.plan.init_from is not None:
            load_tensors(self.plan.init_from.path, model_tensors(self.model))
            self.objective.restore(self.objective.state())  # a running mean of weights begins with these
        if self.log is not None:
            self.log.cut(self.step, keep_events=keep_events)

    # --- evaluation ---------------------------------------------------------------------------------------

    def evaluate_if_due(self) -> int:
        """Validation loss, unless it is known; the signal that interrupted it, if one came."""
        config = self.config
        due = self.step % config.eval_every == 0 or self.step == config.steps
        if self.step == 0 and self.plan.init_from is None:  # random weights are not worth it
            return 0
        if not (due and self.objective.can_evaluate()):
            return 0
        if self.world.share(self.log is not None and self.log.evaluated == self.step):
            return 0
        flags: list[float] = []

        def interrupted() -> bool:
            flags[:] = self.world.total(*self.stop.flags())
            return any(flags)

        found = self.objective.evaluate(interrupted)
        if found is None:
            return first_signal(flags)
        self.write({"step": self.step} | found)
        if config.tensorboard or config.wandb is not None:
            self.objective.show(self.step, self.log)
        return 0
