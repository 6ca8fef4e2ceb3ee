"""The training loop.

    for every step:
        the rate, the rows of the batch and the seed of dropout are functions of the step
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
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from srmlab.data import ANSWER, Batch, Batches, TokenData, evaluation_batches, open_tokens
from srmlab.errors import UserError
from srmlab.models import LanguageModel, ModelConfig, build
from srmlab.training.adam_atan2 import AdamAtan2, fill_state
from srmlab.training.checkpoint import (
    CheckpointError,
    checkpoint_steps,
    latest_checkpoint,
    load_checkpoint,
    load_tensors,
    model_tensors,
    prune,
    read_json,
    save_checkpoint,
)
from srmlab.training.config import TrainConfig, refuse_changes
from srmlab.training.distributed import World, distribute, gradient_sync, open_world, whole
from srmlab.training.evaluation import can_evaluate, check_vocabulary, state_norms, validation_loss
from srmlab.training.files import sweep_leftovers
from srmlab.training.initial import begin, model_of, refuse_changed
from srmlab.training.memory import keep_buffers
from srmlab.training.metrics import MetricsLog, check_writers, iter_metrics, open_log
from srmlab.training.peak import measure_peak
from srmlab.training.progress import Progress
from srmlab.training.recompute import recompute_activations
from srmlab.training.run import RunConfig, RunDirectory, identity
from srmlab.training.schedule import learning_rate
from srmlab.training.signals import SIGNALS, StopRequest

TRAINING_LOSS_STEPS = 200  # the paper's "training loss" is the mean of the last so many
MAX_REWINDS = 10  # to one and the same checkpoint


class NonfiniteLoss(UserError):
    """The loss or its gradient is NaN or Inf, and the policy is to stop."""


@dataclass(frozen=True)
class TrainResult:
    run: Path
    step: int
    loss: float | None  # mean of the last 200 steps, nats per token
    val_loss: float | None
    signal: int  # what stopped it before the end, or 0

    @property
    def exit_code(self) -> int:
        return 128 + self.signal if self.signal else 0


def train(
    config: TrainConfig,
    model_config: ModelConfig | None,
    data_dir: str | Path,
    out: str | Path,
    *,
    init_from: str | Path | None = None,
    resume: bool = False,
    preset: str | None = None,
    show: bool = True,
) -> TrainResult:
    """Train a model; all about it is then in the folder `out`. With `resume`, go on if that is a run already.

    train(TrainConfig(steps=100, batch_size=8), srmlab.preset("srm-nano"), "data/sotu", "runs/nano")

    With `init_from` it begins with the weights of a run, a checkpoint or an export; the model is that one's,
    or one whose weights have the same shapes.

    train(TrainConfig(steps=50, batch_size=8), None, "data/mine", "runs/mine", init_from="runs/nano")
    """
    keep_buffers()
    run = RunDirectory(out)
    with open_world(config.device, config.strategy) as world:
        data = open_tokens(data_dir, verify=world.main)
        again = resume and world.share(run.exists())
        start = None
        if init_from is not None:
            model_config = model_config or (run.read().model if again else model_of(init_from))
            start = begin(init_from, run, model_config, data, world, again=again)
        if model_config is None:
            raise UserError("train needs a model config, or init_from")
        this = RunConfig(model_config, config, data.path.absolute(), data.fingerprint, preset, start)
        check_plan(this, data, world)
        with contextlib.ExitStack() as held:
            with world.only_main() as mine:
                if mine and again:
                    held.enter_context(run.lock())
                    run.read().refuse_other(this, run.path)
                elif mine:
                    run.refuse_occupied()
                    run.create(this, data)
                    held.enter_context(run.lock())
            trainer = held.enter_context(Trainer.open(this, data, run, world, show=show))
            return trainer.run_to_the_end()


def resume(
    run: str | Path, *, data_dir: str | Path | None = None, show: bool = True, **changes: Any
) -> TrainResult:
    """Go on with a run from its last good checkpoint. Fields of execution may change, the data may move."""
    saved = RunDirectory(run).read()
    config = saved.training.replace(**changes)
    return train(
        config,
        saved.model,
        data_dir or saved.data,
        run,
        init_from=saved.init_from and saved.init_from.path,
        resume=True,
        preset=saved.preset,
        show=show,
    )


def check_plan(plan: RunConfig, data: TokenData, world: World) -> None:
    """Refuse what cannot work, before anything is touched."""
    config, model = plan.training, plan.model
    check_vocabulary(model.vocab_size, data.vocab_size, data.path)
    context = config.context or model.context
    if context > model.context:
        raise UserError(
            f"context = {context}: the model's is {model.context}; shorten it, or lengthen the model's"
        )
    batches = Batches(data.train, context, config.batch_size, config.seed)
    batches.windows(0, world.rank, world.size, 0, config.accumulate)
    if config.answers_only:
        check_answers(data, context, config)
    check_writers(config)


def check_answers(data: TokenData, context: int, config: TrainConfig) -> None:
    """Refuse text in which nothing would be learned: no window holds a question with its answer."""
    marks, limit = data.tokenizer.answer_marks, max(config.eval_tokens, context)
    for split, tokens, tokens_read in (("training", data.train, None), ("validation", data.val, limit)):
        if can_evaluate(tokens, context):
            batches = evaluation_batches(tokens, context, config.batch_size, tokens_read, marks)
            if not any(bool(batch.counted.any()) for batch in batches):
                raise UserError(
                    f"answers_only: no {split} window of {context} tokens holds a question, {ANSWER!r} and "
                    "an answer; lengthen the context, or use the data of `srmlab prepare task:NAME`"
                )


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
        self.rewinds: dict[int, int] = {}
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
        dtype = config.compute_dtype(self.world.device)
        flops = self.model.flops_per_token(self.context).training
        self.peak = config.peak_flops or self.world.share(
            measure_peak(self.world.device, dtype) if self.world.main else None
        )
        self.flops_share = flops / (self.peak * self.world.size)
        if self.saved_step < 0 and (config.on_nonfinite == "rewind" or self.plan.init_from is not None):
            self.save()
        signal = self.evaluate_if_due()
        while self.step < config.steps and not signal:
            signal = self.advance()
            if signal or self.step % config.checkpoint_every == 0 or self.step == config.steps:
                self.save()
            signal = signal or self.evaluate_if_due()
        self.save()
        return self.result(signal)

    def advance(self) -> int:
        """Take one step; the signal that asks to stop, if one came."""
        started = time.perf_counter()
        step = self.step + 1
        generator = getattr(self.model, "order_generator", None)
        order_state = generator.get_state() if generator is not None else None
        lr = self.set_rate(step)
        loss, norm = self.gradient(step)
        loss, *asked = self.world.total(
            loss / self.world.size, *(float(self.stop.signal == number) for number in SIGNALS)
        )
        signal = next((int(number) for number, count in zip(SIGNALS, asked, strict=True) if count), 0)

        row: dict[str, Any] = {"step": step, "loss": loss, "lr": lr, "grad_norm": norm}
        if math.isfinite(loss) and math.isfinite(norm):
            self.optimizer.step()
        else:
            row |= {
                "event": "nonfinite",
                "policy": self.config.on_nonfinite,
                "windows": self.windows(step).tolist(),
            }
            if self.config.on_nonfinite == "stop" and generator is not None and order_state is not None:
                generator.set_state(order_state)
        if row.get("policy", "skip") == "skip":
            self.step = step
        seconds = time.perf_counter() - started
        tokens = self.config.batch_size * self.context
        row |= {
            "tokens": step * tokens,
            "tokens_per_second": tokens / seconds,
            "mfu": self.flops_share * tokens / seconds,
        }
        self.write(row)
        if row.get("policy") == "stop":
            self.stop_nonfinite(row)
        elif row.get("policy") == "rewind":
            self.rewind(row)
        return signal

    def gradient(self, step: int) -> tuple[float, float]:
        """This process's mean loss, and the norm of the global batch's gradient, which is left in `.grad`."""
        config, world = self.config, self.world
        if getattr(self.plan.model, "dropout", 0.0):
            seed = np.random.SeedSequence([config.seed, step, world.rank]).generate_state(1, np.uint64)[0]
            torch.manual_seed(int(seed) >> 1)
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=world.device)
        place = (step - 1 + self.data_offset, world.rank, world.size)
        mine = [self.batches.batch(*place, micro, config.accumulate) for micro in range(config.accumulate)]
        for micro, (batch, parts) in enumerate(zip(mine, self.parts(mine), strict=True)):
            batch = batch.to(world.device)
            with gradient_sync(self.call, micro == config.accumulate - 1):
                with self.autocast():
                    loss = self.call(batch.tokens, batch.targets, documents=batch.documents)
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

    def windows(self, step: int) -> np.ndarray:
        return self.batches.windows(step - 1 + self.data_offset)

    def write(self, row: dict[str, Any]) -> None:
        if self.log is not None:
            self.log.write(row)
            self.progress.row(row)

    # --- when something is not finite ---------------------------------------------------------------------

    def stop_nonfinite(self, row: dict[str, Any]) -> None:
        self.save()
        shown = ", ".join(map(str, row["windows"][:4])) + (" …" if len(row["windows"]) > 4 else "")
        raise NonfiniteLoss(
            f"step {row['step']}: loss {row['loss']}, gradient norm {row['grad_norm']} on windows {shown}; "
            f"no weight was changed and step {self.step} is saved: lower lr, set clip, "
            f"or `srmlab resume {self.directory.path} --on-nonfinite skip`"
        )

    def rewind(self, row: dict[str, Any]) -> None:
        """Back to the last checkpoint, and from there on with the batches after the bad one."""
        self.progress.say(
            f"step {row['step']}: loss {row['loss']}, gradient norm {row['grad_norm']}; rewinding"
        )
        offset = self.data_offset
        self.restore(self.progress.say, keep_events=True)
        self.rewinds[self.step] = self.rewinds.get(self.step, 0) + 1
        if self.rewinds[self.step] > MAX_REWINDS:
            raise NonfiniteLoss(
                f"not finite again after {MAX_REWINDS} rewinds to step {self.step}: lower lr, or set clip"
            )
        self.data_offset = offset + row["step"] - self.step

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
                found = self.pick_checkpoint(report)
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

    def pick_checkpoint(self, report: Callable[[str], None]) -> Path | None:
        folder, run = self.directory.checkpoints, self.directory.path
        sweep_leftovers(folder)
        found = latest_checkpoint(folder, report)
        if found is None:
            if steps := checkpoint_steps(folder):
                raise CheckpointError(
                    f"none of the {len(steps)} checkpoints in {folder} is whole: start a new run"
                )
            return None
        about = read_json(found / "training.json")
        fix = f"{found} was made by something else than {run / 'run.json'} says; restore one or the other"
        refuse_changes("the model", read_json(found / "config.json")["model"], self.plan.model.to_dict(), fix)
        refuse_changes(
            "the training config",
            identity(TrainConfig.from_dict(about["training"])),
            identity(self.config),
            fix,
        )
        if about["data"]["fingerprint"] != self.data.fingerprint:
            raise UserError(f"the data has changed since {found} was saved: {fix}")
        return found

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
        signals: list[float] = []

        def interrupted() -> bool:
            signals[:] = self.world.total(*(float(self.stop.signal == number) for number in SIGNALS))
            return any(signals)

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
                interrupted=interrupted,
            )
            if loss is None:
                return next(int(number) for number, count in zip(SIGNALS, signals, strict=True) if count)
            sample = torch.from_numpy(val.read(0, self.context))[None]
            norms = state_norms(self.model, sample)
        self.write({"step": self.step, "val_loss": loss, "state_norms": norms})
        return 0

    def result(self, signal: int) -> TrainResult:
        losses: deque[float] = deque(maxlen=TRAINING_LOSS_STEPS)
        val_loss = None
        for row in iter_metrics(self.directory.metrics) if self.world.main else ():
            val_loss = row.get("val_loss", val_loss)
            if "loss" in row and "event" not in row:
                losses.append(row["loss"])
        loss = sum(losses) / len(losses) if losses else None
        return TrainResult(self.directory.path, self.step, loss, val_loss, signal)


def build_optimizer(config: TrainConfig, model: torch.nn.Module) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    if config.optimizer == "adamw":
        optimizer = torch.optim.AdamW(parameters, config.lr, config.betas, weight_decay=config.weight_decay)
        for parameter in parameters:
            fill_state(optimizer.state[parameter], parameter)
        return optimizer
    form = "published" if config.optimizer == "adam-atan2-published" else "hrm"
    return AdamAtan2(parameters, config.lr, config.betas, config.weight_decay, form)
