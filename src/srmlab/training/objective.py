"""What the training loop asks of an objective, which turns data into a loss and carries its own state.

Text is one (`language`), puzzles are another (`segments`). The loop owns the rest: the rate, the optimizer,
checkpoints, what is not finite, signals, the log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from srmlab.data import TokenData, open_tokens
from srmlab.models import LanguageModel
from srmlab.puzzles import Puzzles, is_puzzles, open_puzzles
from srmlab.training.checkpoint import random_state, set_random_state
from srmlab.training.distributed import World
from srmlab.training.metrics import MetricsLog
from srmlab.training.run import RunConfig

Data = TokenData | Puzzles


def open_data(path: str | Path, *, verify: bool = True) -> Data:
    """What a folder of `srmlab prepare` holds."""
    return open_puzzles(path, verify=verify) if is_puzzles(path) else open_tokens(path, verify=verify)


class Objective:
    call: nn.Module  # what to call for a forward pass, so that several processes agree on gradients

    def __init__(self, plan: RunConfig, model: LanguageModel, world: World) -> None:
        self.plan, self.config, self.model, self.world = plan, plan.training, model, world

    # --- a step --------------------------------------------------------------------------------------------

    def backward(self, step: int, offset: int) -> dict[str, float]:
        """This process's mean "loss" of a step, and parts of it; its gradient, averaged over processes, is
        left in `.grad`. `offset` steps' worth of data is left out.
        """
        raise NotImplementedError

    def micro_batches(self) -> Iterator[int]:
        """The numbers of a step's micro-batches. In each the model's generators draw the same, as in every
        process: a random step order is that of the whole batch, however it is divided.
        """
        before = random_state(self.model)
        for micro in range(self.config.accumulate):
            set_random_state(self.model, before)
            yield micro

    def after(self, lr: float) -> dict[str, Any]:  # noqa: ARG002
        """The weights have been changed, at this rate; what else the step's line in the log says."""
        return {}

    def discard(self, steps: int) -> None:
        """Leave out what a step was not finite on, and `steps` steps' worth of the data that follows."""

    def examples(self, step: int, offset: int) -> list[int]:
        """What a step is taken on, by number."""
        raise NotImplementedError

    def size(self, step: int) -> dict[str, float]:
        """The `tokens` and the `flops` of a step, all processes together."""
        raise NotImplementedError

    # --- its state -----------------------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """The weights that a checkpoint's model has instead of those that are trained, if any."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint needs besides weights and optimizer, the same for any number of processes; all of
        them call this.
        """
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:
        """The inverse of `state`, of the values that were saved under its names."""

    # --- looking -------------------------------------------------------------------------------------------

    def can_evaluate(self) -> bool:
        raise NotImplementedError

    def evaluate(self, interrupted: Callable[[], bool]) -> dict[str, Any] | None:
        """`val_loss` and more, of unseen data; None if interrupted."""
        raise NotImplementedError

    def show(self, step: int, log: MetricsLog | None) -> None:
        """Hand a sample to TensorBoard and Weights & Biases; every process takes part, one has the log."""

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        # no cache of cast weights: one filled by layers without gradient could serve those with
        bf16 = self.config.compute_dtype(self.world.device) == torch.bfloat16
        return torch.autocast(self.world.device.type, torch.bfloat16, enabled=bf16, cache_enabled=False)
