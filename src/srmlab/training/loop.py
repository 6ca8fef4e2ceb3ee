"""The training loop.

    for every step:
        the rate, the rows of the batch, the depth and the seed of dropout are functions of the step
        loss and gradient, over micro-batches and processes
        not finite? then no weight is changed, and the policy decides
        one step of the optimizer, one line of metrics
        every so often a checkpoint and a validation loss

State is: weights, optimizer, the generator of random step orders, and two counters. It is all in a
checkpoint, so a run that was stopped anywhere and resumed is bitwise the run that was not.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from srmlab.data import Batch, Batches, TokenData
from srmlab.models import LanguageModel, build
from srmlab.storage.run_directory import RunDirectory
from srmlab.storage.weights import load_tensors, model_tensors, read_json
from srmlab.training.checkpoint import load_checkpoint, prune, random_state, save_checkpoint
from srmlab.training.depth import TrainingDepth
from srmlab.training.distributed import World, distribute, gradient_sync, whole
from srmlab.training.evaluation import can_evaluate, state_norms, validation_loss
from srmlab.training.initial import refuse_changed
from srmlab.training.metrics import MetricsLog, open_log
from srmlab.training.nonfinite import POLICIES
from srmlab.training.optimizer import build_optimizer
from srmlab.training.outcome import TrainResult
from srmlab.training.peak import measure_peak
from srmlab.training.recompute import recompute_activations
from srmlab.training.restore import choose_checkpoint
from srmlab.training.run import RunConfig
from srmlab.training.schedule import learning_rate
from srmlab.training.signals import StopRequest, first_signal
from srmlab.training.step_display import Progress


class Trainer:
    """One process's part of a run."""

    def __init__(
        self,
        plan: RunConfig,
        data: TokenData,
        run: RunDirectory,
        world: World,
        log: MetricsLog | None,
        stop: StopRequest,
    ) -> None:
        self.plan, self.config, self.data, self.directory, self.world = plan, plan.training, data, run, world
        self.log, self.stop = log, stop
        self.context = self.config.context or plan.model.context
        self.marks = data.tokenizer.answer_marks if self.config.answers_only else None
        self.batches = Batches(
            data.train,
            self.context,
            self.config.batch_size,
            self.config.seed,
            self.marks,
            self.config.document_mask,
        )
        self.depth = TrainingDepth(
            self.config.depth_schedule,
            plan.model,
            steps=self.config.steps,
            seed=self.config.seed,
            context=self.context,
        )
        self.model: LanguageModel = build(plan.model, device=world.device)
        self.model.train()
        if self.config.activation_checkpointing:
            recompute_activations(self.model)
        if self.config.compile:
            self.model.compile()
        self.call = distribute(self.model, world)
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
        cls, plan: RunConfig, data: TokenData, run: RunDirectory, world: World, *, show: bool = True
    ) -> Iterator[Trainer]:
        log = open_log(run.path, plan.training, run.path.name) if world.main else None
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
        return TrainResult.read(self.directory, self.step, signal, self.world)

    def advance(self) -> int:
        """Take one step; the signal that asks to stop, if one came."""
        started, step = time.perf_counter(), self.step + 1
        self.random_before = random_state(self.model)
        lr = self.set_rate(step)
        loss, norm = self.gradient(step)
        loss, *flags = self.world.total(loss / self.world.size, *self.stop.flags())
        finite = math.isfinite(loss) and math.isfinite(norm)
        if finite:
            self.optimizer.step()
            self.step = step
        row: dict[str, Any] = {"step": step, "loss": loss, "lr": lr, "grad_norm": norm}
        if not finite:
            windows = self.batches.windows(step - 1 + self.data_offset)
            row |= {"event": "nonfinite", "policy": self.config.on_nonfinite, "windows": windows.tolist()}
        self.write(row | self.speed(step, time.perf_counter() - started))
        if not finite:
            POLICIES[self.config.on_nonfinite](self, row)
        return first_signal(flags)

    def gradient(self, step: int) -> tuple[float, float]:
        """This process's mean loss, and the norm of the global batch's gradient, which is left in `.grad`."""
        config, world = self.config, self.world
        if getattr(self.plan.model, "dropout", 0.0):
            seed = np.random.SeedSequence([config.seed, step, world.rank]).generate_state(1, np.uint64)[0]
            torch.manual_seed(int(seed) >> 1)
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=world.device)
        depth = {}
        if not self.depth.constant:
            n, l = self.depth.at(step)
            depth = {"depth": n, "gradient_depth": l}
        place = (step - 1 + self.data_offset, world.rank, world.size)
        mine = [self.batches.batch(*place, micro, config.accumulate) for micro in range(config.accumulate)]
        for micro, (batch, parts) in enumerate(zip(mine, self.parts(mine), strict=True)):
            batch = batch.to(world.device)
            with gradient_sync(self.call, micro == config.accumulate - 1):
                with self.autocast():
                    loss = self.call(batch.tokens, batch.targets, documents=batch.documents, **depth)
                (loss / parts).backward()
            total += loss.detach() / parts
        grads = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        if config.clip is not None:
            torch.nn.utils.clip_grads_with_norm_(list(self.model.parameters()), config.clip, norm)
        return float(total), float(whole(norm))

    def parts(self, mine: list[Batch]) -> list[float]:
        """What the mean loss of each of this process's micro-batches is divided by, so that all of them, of
        all processes, add up to the global batch's."""
        if self.marks is None:
            return [self.config.accumulate] * len(mine)
        counts = [int(batch.counted.sum()) for batch in mine]
        (everyones,) = self.world.total(sum(counts))
        return [max(everyones, 1) / (max(count, 1) * self.world.size) for count in counts]

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        # no cache of cast weights: one filled by layers without gradient could serve those with
        bf16 = self.config.compute_dtype(self.world.device) == torch.bfloat16
        return torch.autocast(self.world.device.type, torch.bfloat16, enabled=bf16, cache_enabled=False)

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
        tokens = self.config.batch_size * self.context
        depth = self.depth.at(step)
        flops = self.depth.flops(*depth) * tokens
        speed = {
            "tokens": step * tokens,
            "tokens_per_second": tokens / seconds,
            "mfu": flops / self.peak / seconds,
        }
        return speed if self.depth.constant else speed | {"depth": depth[0], "flops": flops}

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
            tokenizer=self.directory.tokenizer,
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
            load_checkpoint(found, self.model, self.optimizer)
            self.step = self.saved_step = about["step"]
            self.data_offset = about["data_offset"]
        elif self.plan.init_from is not None:
            load_tensors(self.plan.init_from.path, model_tensors(self.model))
        if self.log is not None:
            self.log.cut(self.step, keep_events=keep_events)

    # --- evaluation ---------------------------------------------------------------------------------------

    def evaluate_if_due(self) -> int:
        """Validation loss, unless it is known; the signal that interrupted it, if one came."""
        config, val = self.config, self.data.val
        due = self.step % config.eval_every == 0 or self.step == config.steps
        if self.step == 0 and self.plan.init_from is None:  # random weights are not worth it
            return 0
        if not (due and can_evaluate(val, self.context)):
            return 0
        if self.world.share(self.log is not None and self.log.evaluated == self.step):
            return 0
        flags: list[float] = []

        def interrupted() -> bool:
            flags[:] = self.world.total(*self.stop.flags())
            return any(flags)

        with self.autocast():
            loss = validation_loss(
                self.model,
                val,
                self.world,
                context=self.context,
                batch_size=config.batch_size // (self.world.size * config.accumulate),
                limit_tokens=max(config.eval_tokens, self.context),
                document_mask=config.document_mask,
                marks=self.marks,
                spread=config.eval_windows == "spread",
                interrupted=interrupted,
            )
            if loss is None:
                return first_signal(flags)
            sample = torch.from_numpy(val.read(0, self.context))[None]
            norms = state_norms(self.model, sample)
        self.write({"step": self.step, "val_loss": loss, "state_norms": norms})
        return 0
