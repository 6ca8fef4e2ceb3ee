"""Evaluation on held-out text: loss, perplexity and bits per byte, each with its standard error.

The tokens of a window share their context, so they are not independent samples; windows nearly are. Standard
errors are therefore over windows. Perplexity and bits per byte are functions of sums over windows, and get
theirs by the delta method.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from srmlab.data import Batch, EvaluationBatches, TokenData, Tokenizer
from srmlab.errors import UserError
from srmlab.models import Exit, HookPoint, LanguageModel
from srmlab.models import loss as cross_entropies
from srmlab.models.loss import IGNORE
from srmlab.storage import saved_tokenizer
from srmlab.training.distributed import World


@dataclass(frozen=True)
class Estimate:
    """A mean over windows and its standard error."""

    mean: float
    standard_error: float


@dataclass(frozen=True)
class Evaluation:
    """`srmlab evaluate`'s answer."""

    loss: Estimate  # nats per token
    perplexity: Estimate
    bits_per_byte: Estimate | None  # None without a tokenizer
    tokens: int
    windows: int  # those with a target
    text_bytes: int | None
    mean_levels: float | None = None  # layers (or cycles) computed per token, with early exit

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def evaluate(
    model: LanguageModel,
    batches: EvaluationBatches,
    *,
    tokenizer: Tokenizer | None = None,
    exit: float | Exit | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Evaluation:
    """The loss over a text, window by window. `progress` is called with the number of batches done.

    With `exit` each batch stops where its state has settled.
    """
    early = Exit.of(exit)
    losses: list[float] = []  # the sum of each window that has a target
    counts: list[int] = []  # its targets
    sizes: list[int] = []  # their bytes of text
    with model.evaluating():
        for done, batch in enumerate(batches, start=1):
            sums = token_losses(model, batch.to(model.device), early).double().sum(-1)
            has_target = batch.counted.any(-1)
            losses += sums[has_target.to(sums.device)].tolist()
            counts += batch.counted.sum(-1)[has_target].tolist()
            if tokenizer is not None:
                rows = zip(batch.targets[has_target], batch.counted[has_target], strict=True)
                sizes += [tokenizer.num_bytes(row[counted].numpy()) for row, counted in rows]
            progress(done)
    if not counts:
        raise UserError(
            f"no window of {batches.context} tokens holds a question and its answer: increase the context"
        )
    loss = _ratio(np.array(losses), np.array(counts))
    perplexity = Estimate(math.exp(min(loss.mean, 700)), math.exp(min(loss.mean, 700)) * loss.standard_error)
    return Evaluation(
        loss=loss,
        perplexity=perplexity,
        bits_per_byte=_ratio(np.array(losses) / math.log(2), np.array(sizes)) if sizes else None,
        tokens=sum(counts),
        windows=len(losses),
        text_bytes=sum(sizes) if sizes else None,
        mean_levels=None if early is None else early.mean_levels,
    )


def token_losses(model: LanguageModel, batch: Batch, exit: Exit | None = None) -> Tensor:
    """Cross-entropy of every token [B, T] in nats, 0 where none counts; all logits are never held at once."""
    hidden = model.output_embedding(batch.tokens, documents=batch.documents, exit=exit)
    return cross_entropies.token_losses(hidden, model.unembedding, batch.targets)


def validation_loss(
    model: LanguageModel, batches: EvaluationBatches, world: World, *, interrupted: Callable[[], bool]
) -> float | None:
    """The mean loss over all processes, batch by batch in turn; None if interrupted.

    Every process makes the same number of calls, as a sharded model needs: one that has run out gets a batch
    that does not count.
    """
    total = count = 0.0
    with model.evaluating():
        for turn in zip_longest(*[iter(batches)] * world.size):
            if interrupted():
                return None
            batch = turn[world.rank] or replace(turn[0], targets=torch.full_like(turn[0].targets, IGNORE))
            counted = int(batch.counted.sum())
            batch = batch.to(world.device)
            loss = model(batch.tokens, batch.targets, documents=batch.documents)
            total, count = total + float(loss) * counted, count + counted
    total, count = world.total(total, count)
    return total / count


def state_norms(model: LanguageModel, tokens: Tensor) -> dict[str, list[float]]:
    """The mean norm at the sites that the model wants watched, for every stream."""
    norms: dict[str, list[float]] = {}

    def keep(value: Tensor, hook: HookPoint) -> None:
        norms[hook.name] = value.float().norm(dim=-1).mean((0, 1)).reshape(-1).tolist()

    with model.evaluating(), model.hooks([(model.watched_sites, keep)]):
        model(tokens.to(model.device), tokens.to(model.device))
    return norms


def check_vocabulary(model_vocab: int, data_vocab: int, data: object, *, trained: bool = False) -> None:
    """The model must have the data's ids; one that is trained already cannot get others."""
    if model_vocab != data_vocab:
        change = "" if trained else f"set --model.vocab-size {data_vocab}, or "
        raise UserError(
            f"vocab_size = {model_vocab}: {data} has {data_vocab} ids; "
            f"{change}prepare the data with the model's tokenizer"
        )


def check_tokenizer(path: Path, data: TokenData) -> None:
    """As many ids are not enough: they must stand for the same bytes as in the model's training."""
    saved = saved_tokenizer(path)
    if saved is not None and saved.fingerprint != data.tokenizer.fingerprint:
        folder = path / "tokenizer" if (path / "tokenizer").is_dir() else path
        raise UserError(
            f"{data.path} was prepared with another tokenizer than {path}: "
            f"prepare it with --tokenizer {folder}"
        )


def per_token(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """[windows] Values whose mean is the ratio of the sums, and the error of whose mean is that of this ratio
    by the delta method. Where all counts are equal they are the windows' means. Windows without a target are
    to be left out: they are no evidence.

    >>> per_token(np.array([2.0, 3.0]), np.array([1, 4])).mean()
    np.float64(1.0)
    """
    ratio = sums.sum() / counts.sum()
    return ratio + (sums - ratio * counts) / counts.mean()


def _ratio(sums: np.ndarray, counts: np.ndarray) -> Estimate:
    """sum / sum over windows, and its standard error."""
    values = per_token(sums, counts)
    n = len(values)
    error = float(values.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    return Estimate(float(sums.sum() / counts.sum()), error)
