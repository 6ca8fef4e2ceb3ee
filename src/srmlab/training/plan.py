"""A run before it starts: whether it can work, and what it would cost (`srmlab train … --dry-run`).

Parameters and FLOPs are formulas. Memory is counted, not guessed: one forward pass on the meta device,
which has shapes but no data, with a hook on every tensor that autograd keeps for the backward pass. Time is
bounded from below by the speed of one matrix product on this machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from srmlab.data import ANSWER, Batches, TokenData, evaluation_batches
from srmlab.errors import UserError
from srmlab.models import build
from srmlab.progress import duration
from srmlab.training.config import TrainConfig
from srmlab.training.depth import TrainingDepth
from srmlab.training.distributed import World
from srmlab.training.evaluation import can_evaluate, check_vocabulary
from srmlab.training.metrics import check_writers
from srmlab.training.peak import measure_peak
from srmlab.training.recompute import recompute_activations
from srmlab.training.run import RunConfig


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
    TrainingDepth(config.depth_schedule, model, steps=config.steps, seed=config.seed, context=context)
    check_writers(config)


def check_answers(data: TokenData, context: int, config: TrainConfig) -> None:
    """Refuse text in which nothing would be learned: no window holds a question with its answer."""
    marks, limit = data.tokenizer.answer_marks, max(config.eval_tokens, context)
    for split, tokens, tokens_read in (("training", data.train, None), ("validation", data.val, limit)):
        if can_evaluate(tokens, context):
            spread = config.eval_windows == "spread"
            batches = evaluation_batches(
                tokens, context, config.batch_size, tokens_read, marks, spread=spread
            )
            if not any(bool(batch.counted.any()) for batch in batches):
                raise UserError(
                    f"answers_only: no {split} window of {context} tokens holds a question, {ANSWER!r} and "
                    "an answer; lengthen the context, or use the data of `srmlab prepare task:NAME`"
                )


@dataclass(frozen=True)
class Plan:
    parameters: int
    context: int
    tokens_per_step: int
    tokens: int
    epochs: float
    training_flops_per_token: int
    flops: float
    state_bytes: int  # weights, gradients and optimizer, per device
    activation_bytes: int  # kept for the backward pass of one micro-batch, per device
    peak_flops: float  # of one device: a measured matrix product
    devices: int
    seconds_at_peak: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        memory = self.state_bytes + self.activation_bytes
        return [
            f"parameters   {self.parameters:,}",
            f"tokens       {self.tokens:,} ({self.tokens_per_step:,} a step, {self.epochs:.3g} epochs)",
            f"arithmetic   {self.flops:.3g} FLOP ({self.training_flops_per_token / 1e9:.3g} GFLOP a token)",
            f"memory       {size(memory)} per device: {size(self.state_bytes)} weights, gradients and "
            f"optimizer, up to {size(self.activation_bytes)} activations",
            f"time         {duration(self.seconds_at_peak)} at the {self.peak_flops / 1e9:,.0f} GFLOP/s of a "
            f"matrix product on {self.devices} × this; {duration(2 * self.seconds_at_peak)} at half that",
        ]


def make_plan(run: RunConfig, data: TokenData, world: World) -> Plan:
    config = run.training
    model = build(run.model, device="meta")
    context = config.context or run.model.context
    tokens = config.steps * config.batch_size * context
    depth = TrainingDepth(
        config.depth_schedule, run.model, steps=config.steps, seed=config.seed, context=context
    )
    flops = round(depth.mean_flops())
    parameters = model.num_parameters()
    peak = config.peak_flops or measure_peak(world.device, config.compute_dtype(world.device))
    return Plan(
        parameters=parameters,
        context=context,
        tokens_per_step=config.batch_size * context,
        tokens=tokens,
        epochs=Batches(data.train, context, config.batch_size).epoch(config.steps),
        training_flops_per_token=flops,
        flops=float(flops) * tokens,
        state_bytes=16 * parameters // (world.size if world.strategy == "fsdp" else 1),
        activation_bytes=activation_bytes(run, config.batch_size // (world.size * config.accumulate)),
        peak_flops=peak,
        devices=world.size,
        seconds_at_peak=float(flops) * tokens / (peak * world.size),
    )


def activation_bytes(run: RunConfig, rows: int) -> int:
    """Bytes that one micro-batch of `rows` sequences keeps for its backward pass, weights not counted.

    In float32; under bfloat16 it is less, but not half: norms and states are still computed in float32.
    """
    model = build(run.model, device="meta").train()
    if run.training.activation_checkpointing:
        recompute_activations(model)
    kept = {parameter.untyped_storage()._cdata: 0 for parameter in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor.untyped_storage().nbytes())
        alive.append(tensor)  # an address is the tensor's own as long as it lives
        return tensor

    alive: list[Tensor] = []
    tokens = torch.zeros(rows, run.training.context or run.model.context, dtype=torch.long, device="meta")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), _fused_attention():
        model(tokens, tokens)
    return sum(kept.values())


class _FusedAttention(torch.autograd.Function):
    """What a fused kernel keeps: q, k, v, the output and one number a query. On meta there is none to ask."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:-1]))
        return out


@contextlib.contextmanager
def _fused_attention() -> Iterator[None]:
    def attend(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Any:
        return _FusedAttention.apply(q, k, v)

    original = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = attend
    try:
        yield
    finally:
        F.scaled_dot_product_attention = original


def size(count: float) -> str:
    """
    >>> size(2_500_000)
    '2.5 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
