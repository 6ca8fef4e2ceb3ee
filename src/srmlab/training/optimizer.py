"""The optimizer that a config names. Its state is there before the first step, to read a checkpoint into."""

from __future__ import annotations

import torch

from srmlab.training.adam_atan2 import AdamAtan2, fill_state
from srmlab.training.config import TrainConfig


def build_optimizer(config: TrainConfig, model: torch.nn.Module) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    if config.optimizer == "adamw":
        optimizer = torch.optim.AdamW(parameters, config.lr, config.betas, weight_decay=config.weight_decay)
        for parameter in parameters:
            fill_state(optimizer.state[parameter], parameter)
        return optimizer
    form = "published" if config.optimizer == "adam-atan2-published" else "hrm"
    return AdamAtan2(parameters, config.lr, config.betas, config.weight_decay, form)
