"""Runs of any architectures side by side, on the same tokens: what they cost, how good they are, how alike
the states of their tokens have become.

Losses are taken window by window on one text, so that the difference of two models is paired: what makes a
window hard for one makes it hard for the other. Intervals are Student's at 95 %, over windows; they say
nothing of other seeds (`srmlab sweep` does).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from srmlab.analysis.student import student
from srmlab.analysis.token_similarity import token_similarity
from srmlab.data import Batch
from srmlab.models import LanguageModel
from srmlab.models.loss import token_losses

COLLAPSE_BATCHES = 2  # of the text, for the similarity of tokens


@dataclass(frozen=True)
class Interval:
    mean: float
    half: float  # half the width of the 95 % interval; NaN for one window

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.half:.4f}"


@dataclass(frozen=True)
class Compared:
    name: str
    architecture: str
    parameters: int
    forward_flops: int  # per token
    training_flops: float | None  # of the whole run; None of an export
    depth: int
    unit: str  # what depth counts
    streams: int
    loss: Interval  # nats per token
    difference: Interval | None  # its loss less the first one's, on the same windows; None of the first
    collapse: float  # cosine between states of different tokens where they are read out

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def interval(values: np.ndarray) -> Interval:
    """The mean and its interval over windows."""
    n = len(values)
    half = student(n - 1) * float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return Interval(float(values.mean()), half)


@torch.no_grad()
def window_losses(model: LanguageModel, batches: Sequence[Batch], progress: Callable[[], None]) -> np.ndarray:
    """[windows] The mean loss of every window."""
    found: list[torch.Tensor] = []
    with model.evaluating():
        for batch in batches:
            batch = batch.to(model.device)
            hidden = model.output_embedding(batch.tokens, documents=batch.documents)
            losses = token_losses(hidden, model.unembedding, batch.targets).double()
            found.append(losses.sum(-1) / batch.counted.sum(-1).clamp(min=1))
            progress()
    return torch.cat(found).cpu().numpy()


def compare(
    models: dict[str, LanguageModel],
    batches: Sequence[Batch],
    training_flops: dict[str, float | None] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> list[Compared]:
    """One row a model, in their order; differences are to the first."""
    losses = {name: window_losses(model, batches, progress) for name, model in models.items()}
    first, rows = next(iter(losses)), []
    for name, model in models.items():
        context = batches[0].tokens.shape[1]
        rows.append(
            Compared(
                name=name,
                architecture=model.config.architecture,
                parameters=model.num_parameters(),
                forward_flops=model.flops_per_token(context).forward,
                training_flops=(training_flops or {}).get(name),
                depth=model.depth,
                unit=model.level_name,
                streams=len(model.streams),
                loss=interval(losses[name]),
                difference=None if name == first else interval(losses[name] - losses[first]),
                collapse=token_similarity(model, batches[:COLLAPSE_BATCHES]).last,
            )
        )
    return rows
