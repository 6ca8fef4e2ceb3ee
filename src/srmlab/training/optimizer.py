"""The optimizer that a config names. Its state exists before the first step, for loading checkpoints."""

from __future__ import annotations

import torch

from srmlab.models import LanguageModel
from srmlab.training.adam_atan2 import AdamAtan2, fill_state
from srmlab.training.config import TrainConfig


def build_optimizer(config: TrainConfig, model: LanguageModel) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    named = list(model.named_parameters())
    groups = [
        {"params": [p for name, p in named if model.decays(name)], "weight_decay": config.weight_decay},
        {"params": [p for name, p in named if not model.decays(name)], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if config.optimizer == "adamw":
        optimizer = torch.optim.AdamW(groups, config.lr, config.betas)
        for parameter in parameters:
            fill_state(optimizer.state[parameter], parameter)
        return optimizer
    form = "published" if config.optimizer == "adam-atan2-published" else "hrm"
    return AdamAtan2(groups, config.lr, config.betas, form=form)
