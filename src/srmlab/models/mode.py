"""Hold a model in evaluation mode, and leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """`eval()` inside, and afterwards the mode from before."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
