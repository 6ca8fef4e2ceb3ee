"""A run before it starts: whether it can work, and what it would cost (`srmlab train … --dry-run`).

Parameters and FLOPs are formulas. Memory is the peak of a step on tensors without data (see `footprint`); for
a model meant for GPUs, also on one, four and eight of them. Time is a lower bound, from the speed of one
matrix product on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from srmlab.data import ANSWER, Batches, EvaluationBatches, TokenData, num_windows
from srmlab.errors import UserError
from srmlab.models import PRESETS, SWEEP_PRESETS, ModelConfig, build, outline
from srmlab.progress import Display, duration, si
from srmlab.puzzles import PuzzleBatches, Puzzles
from srmlab.training.config import TrainConfig
from srmlab.training.depth import TrainingDepth
from srmlab.training.distributed import World
from srmlab.training.evaluation import check_vocabulary
from srmlab.training.metrics import check_writers
from srmlab.training.objective import Data
from srmlab.training.peak import measure_peak
from srmlab.training.recipes import recipe
from srmlab.training.run import InitialWeights, RunConfig
from srmlab.training.segments import segment_flops

FOR_GPUS = 20_000_000  # parameters: the paper's sizes, which nobody trains on a CPU
FOR_TEXT = ("context", "document_mask", "answers_only", "depth_schedule", "eval_windows")
FOR_PUZZLES = ("segments", "halting", "exploration", "likelihood", "cells", "ema", "puzzle_lr", "augment")


def run_of(
    model: ModelConfig,
    config: TrainConfig,
    data: Data,
    preset: str | None = None,
    start: InitialWeights | None = None,
) -> RunConfig:
    """What a run on this data is."""
    kind = data.kind.name if isinstance(data, Puzzles) else None
    return RunConfig(model, config, data.path.absolute(), data.fingerprint, preset, start, kind)


def check_plan(plan: RunConfig, data: Data, world: World, *, again: bool = False) -> None:
    """Refuse what cannot work, before anything is touched."""
    config, model = plan.training, plan.model
    check_options(config, model, data.path, plan.preset, puzzles=isinstance(data, Puzzles), again=again)
    if isinstance(data, Puzzles):
        check_puzzles(plan, data, world)
        return
    check_vocabulary(model.vocab_size, data.vocab_size, data.path)
    context = config.context or model.context
    batches = Batches(data.train, context, config.batch_size, config.seed)
    batches.windows(0, world.rank, world.size, 0, config.accumulate)
    if config.answers_only:
        check_answers(data, context, config)


def check_options(
    config: TrainConfig,
    model: ModelConfig,
    data: str | Path,
    preset: str | None,
    *,
    puzzles: bool,
    again: bool = False,
) -> None:
    """What can be refused before the data is prepared: all that depends only on whether it is puzzles."""
    check_writers(config)
    check_reads(model, data, puzzles=puzzles)
    if not again:  # earlier versions recorded such options, which did nothing
        refuse_without_meaning(config, model, preset, puzzles=puzzles)
    if puzzles:
        return
    context = config.context or model.context
    if context > model.context:
        fix = f"shorten it, or set --model.context {context}"
        raise UserError(f"context = {context}: the model's is {model.context}; {fix}")
    TrainingDepth(config, model)


def check_reads(model: ModelConfig, data: str | Path, *, puzzles: bool) -> None:
    """A model of text is not for puzzles, nor the other way round."""
    if puzzles and model.causal:
        raise UserError(
            f"{data} holds puzzles, but the model reads text: use a preset such as srm-sudoku-nano, "
            "or --model.no-causal"
        )
    if not puzzles and not model.causal:
        raise UserError(f"{data} is text, but the model reads puzzles: prepare puzzles, such as sudoku:4x4")


def refuse_without_meaning(
    config: TrainConfig, model: ModelConfig, preset: str | None, *, puzzles: bool
) -> None:
    """Refuse options that mean nothing here: values that are neither the default nor the preset's own."""
    usual = [TrainConfig(), recipe(preset) if preset in PRESETS | SWEEP_PRESETS else TrainConfig()]

    def refuse(name: str, why: str) -> None:
        value = getattr(config, name)
        if all(value != getattr(one, name) for one in usual):
            raise UserError(f"{name} = {value!r}: {why}")

    meant, here, names = ("text", "puzzles", FOR_TEXT) if puzzles else ("puzzles", "text", FOR_PUZZLES)
    for name in names:
        refuse(name, f"is for {meant}; leave it out with {here}")
    if config.schedule != "cosine":
        refuse("lr_end", "is for the cosine schedule; set --schedule cosine")
    if config.halting == "fixed" or config.segments == 1:
        after = "segments = 1" if config.segments == 1 else "halting = 'fixed'"
        refuse("exploration", f"is for boards that may halt early; leave it out with {after}")
    if not model.puzzle_positions:
        refuse("puzzle_lr", "is for puzzle embeddings; leave it out with puzzle_positions = 0")


def check_puzzles(plan: RunConfig, data: Puzzles, world: World) -> None:
    """What a puzzle run needs."""
    config, model = plan.training, plan.model
    if world.strategy == "fsdp":
        raise UserError('strategy = "fsdp": puzzles are trained by copies of the model; use ddp')
    if config.batch_size % (world.size * config.accumulate):
        parts = f"{world.size} processes × {config.accumulate} micro-batches"
        raise UserError(f"batch_size = {config.batch_size}: does not divide among {parts}")
    check_board(model, data)


def check_board(model: ModelConfig, data: Puzzles) -> None:
    """A puzzle model must have the values, the positions and the embeddings that the data needs."""
    kind = data.kind
    needed = {
        "vocab_size": (kind.vocab_size, "values"),
        "context": (kind.cells + model.puzzle_positions, "positions"),
        "puzzle_ids": (data.num_identifiers if model.puzzle_positions else 0, "puzzles"),
    }
    short = {name: need for name, need in needed.items() if getattr(model, name) < need[0]}
    if short:
        lacks = ", ".join(f"{name} = {getattr(model, name)}" for name in short)
        has = ", ".join(f"{number} {what}" for number, what in short.values())
        options = " ".join(f"--model.{name.replace('_', '-')} {need}" for name, (need, _) in short.items())
        raise UserError(f"{lacks}: {data.path} ({kind.name}) has {has}; set {options}")
    board = torch.zeros(1, kind.cells, dtype=torch.long, device="meta")
    build(model, device="meta").segment(board)  # an architecture may want more, as a fixed number of cells


def check_answers(data: TokenData, context: int, config: TrainConfig) -> None:
    """Refuse text in which nothing would be learned: no window holds a question with its answer."""
    marks, limit = data.tokenizer.answer_marks, max(config.eval_tokens, context)
    for split, tokens, tokens_read in (("training", data.train, None), ("validation", data.val, limit)):
        if num_windows(tokens, context):
            spread = config.eval_windows == "spread"
            batches = EvaluationBatches(tokens, context, config.batch_size, tokens_read, marks, spread=spread)
            if not any(bool(batch.counted.any()) for batch in batches):
                raise UserError(
                    f"answers_only: no {split} window of {context} tokens holds a question, {ANSWER!r} and "
                    "an answer; lengthen the context, or use the data of `srmlab prepare task:NAME`"
                )


@dataclass(frozen=True)
class Cost:
    """What a run would take."""

    parameters: int
    context: int
    tokens_per_step: int
    tokens: int
    epochs: float
    training_flops_per_token: int
    flops: float
    state_bytes: int  # weights, gradients and optimizer, per device
    activation_bytes: int  # the rest of the step's peak, per device
    peak_flops: float  # of one device: a measured matrix product
    devices: int
    seconds_at_peak: float
    gpu_bytes: dict[str, int]  # the peak of a step on each GPU, by layout; of models for GPUs

    def lines(self) -> Iterator[str]:
        speed = f"{self.devices} × {self.peak_flops / 1e9:,.0f} GFLOP/s (a matrix product here)"
        yield f"parameters   {self.parameters:,}"
        yield f"tokens       {self.tokens:,} ({self.tokens_per_step:,} per step, {self.epochs:.3g} epochs)"
        per_token = f"{self.training_flops_per_token / 1e9:.3g} GFLOP per token"
        yield f"arithmetic   {self.flops:.3g} FLOP ({per_token})"
        memory = f"training state {si(self.state_bytes)}, activations up to {si(self.activation_bytes)}"
        yield f"memory       {si(self.state_bytes + self.activation_bytes)} per device: {memory}"
        whole, half = duration(self.seconds_at_peak), duration(2 * self.seconds_at_peak)
        yield f"time         {whole} at {speed}, {half} at half that"
        if self.gpu_bytes:
            yield "on GPUs      estimated memory of each"
            yield from (f"  {layout:<29}{si(peak)}" for layout, peak in self.gpu_bytes.items())


def cost_of(run: RunConfig, data: Data, world: World) -> Cost:
    from srmlab.training.footprint import Layout, peak_bytes  # imports torch's compiler

    config = run.training
    model = outline(run.model)
    alone = replace(config, batch_size=config.batch_size // world.size)
    if isinstance(data, Puzzles):
        alone = replace(alone, context=data.kind.cells)
        context = data.kind.cells + run.model.puzzle_positions
        flops = segment_flops(model, config, context)
        slots = config.steps * config.batch_size  # a puzzle takes one of them for each of its segments
        epochs = slots / config.segments / PuzzleBatches(data).epoch_examples
    else:
        context = config.context or run.model.context
        flops = round(TrainingDepth(config, run.model).mean_flops())
        epochs = Batches(data.train, context, config.batch_size).epoch(config.steps)
    tokens = config.steps * config.batch_size * context
    parameters = model.num_parameters()
    layout = Layout(recompute=config.activation_checkpointing, gpu=world.device.type == "cuda")
    peak = config.peak_flops or measure_peak(world.device, config.compute_dtype(world.device))
    return Cost(
        parameters=parameters,
        context=context,
        tokens_per_step=config.batch_size * context,
        tokens=tokens,
        epochs=epochs,
        training_flops_per_token=flops,
        flops=float(flops) * tokens,
        state_bytes=16 * parameters // (world.size if world.strategy == "fsdp" else 1),
        activation_bytes=max(0, peak_bytes(run.model, alone, layout) - 16 * parameters),
        peak_flops=peak,
        devices=world.size,
        seconds_at_peak=float(flops) * tokens / (peak * world.size),
        gpu_bytes=gpu_bytes(run) if parameters >= FOR_GPUS and world.size == 1 else {},
    )


def gpu_bytes(run: RunConfig) -> dict[str, int]:
    """The peak of a step on each GPU, by layout."""
    from srmlab.training.footprint import layouts, peak_bytes

    found: dict[str, int] = {}
    every = layouts(gpu=True)
    with Display() as display:
        task = display.task("memory on GPUs", len(every), "layouts")
        for layout in every:
            found[str(layout)] = peak_bytes(run.model, run.training, layout)
            task.update(len(found))
    return found
