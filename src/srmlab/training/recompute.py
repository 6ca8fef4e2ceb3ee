"""Activation checkpointing: discard the activations inside a step function, and recompute them in the
backward pass.

A pass through n layers of m steps then keeps the n·m states between the steps, but not the activations
inside them (the MLP's alone are six times as wide). Each step function is recomputed as one; names, hooks
and sites of the model stay as they are.
"""

from __future__ import annotations

from functools import partial

from torch.utils.checkpoint import checkpoint

from srmlab.models import LanguageModel


def recompute_activations(model: LanguageModel) -> None:
    """Make every unit of `model` recompute its inside in the backward pass."""
    for module in model.modules():
        if isinstance(module, model.units):
            module.forward = partial(checkpoint, module.forward, use_reentrant=False)
