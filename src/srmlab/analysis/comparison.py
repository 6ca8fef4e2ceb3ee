"""Runs of any architecture side by side, on the same tokens: their cost, their loss, and what is inside, next
to untrained twins.

Losses are measured per window on one text, so that the difference between two models is paired: what makes a
window hard for one makes it hard for the other. The mean is that of tokens, as in `srmlab evaluate`: where
only answers are targets, a window counts by how many it has. Intervals are Student's at 95 %, over windows;
they do not cover training seeds (`srmlab sweep` does).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from srmlab.analysis.inside import Inside, inside
from srmlab.analysis.null import usual_count
from srmlab.analysis.student import Interval, interval
from srmlab.data import Batch
from srmlab.errors import UserError
from srmlab.models import LanguageModel
from srmlab.training.evaluation import per_token, token_losses

LOOK = 2  # batches of the text, for what is inside


@dataclass(frozen=True)
class Compared:
    name: str
    architecture: str
    parameters: int
    forward_flops: int  # per token
    training_flops: float | None  # up to these weights; None for an export
    depth: int
    unit: str  # what depth counts
    streams: int
    loss: Interval  # nats per token
    difference: Interval | None  # its loss less the first one's, on the same windows; None for the first
    inside: Inside


@torch.no_grad()
def window_losses(model: LanguageModel, batches: Sequence[Batch], progress: Callable[[], None]) -> np.ndarray:
    """[windows] The loss of every window that has a target, weighed as `per_token` does."""
    counts = torch.cat([batch.counted.sum(-1) for batch in batches]).cpu().numpy()
    if not counts.any():
        context = batches[0].tokens.shape[1]
        raise UserError(
            f"no window of {context} tokens holds a question and its answer: increase the context"
        )
    found: list[torch.Tensor] = []
    with model.evaluating():
        for batch in batches:
            found.append(token_losses(model, batch.to(model.device)).double().sum(-1).cpu())
            progress()
    return per_token(torch.cat(found).numpy()[counts > 0], counts[counts > 0])


def compare(
    models: dict[str, LanguageModel],
    batches: Sequence[Batch],
    training_flops: dict[str, float | None] | None = None,
    progress: Callable[[], None] = lambda: None,
    twins: int | None = None,
) -> list[Compared]:
    """One row a model, in their order; differences are to the first. `twins` untrained twins stand beside
    what is inside; by default 3, and none for a large model. `progress` is called after every batch, and once
    more a model.
    """
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
                inside=inside(model, batches[:LOOK], usual_count(model, twins)),
            )
        )
        progress()
    return rows
