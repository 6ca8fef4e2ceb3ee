"""What the cells of most experiments are made of: one SRM with one thing changed, trained one way."""

from __future__ import annotations

from srmlab.experiments import miniatures
from srmlab.experiments.evidence import Claim
from srmlab.experiments.experiment import Cell, Scale
from srmlab.models import ModelConfig, SRMConfig
from srmlab.models.srm_config import srm_base
from srmlab.training.config import TrainConfig
from srmlab.training.recipes import recipe

Findings = list[Claim | str]


def sweep_model(scale: Scale) -> SRMConfig:
    """The SRM that one thing is changed in."""
    return srm_base().replace(post_steps=0) if scale == "paper" else miniatures.srm_med(scale)


def sweep_training(scale: Scale) -> TrainConfig:
    return recipe("srm-sweep") if scale == "paper" else miniatures.training(scale)


def cells_of(
    scale: Scale, models: dict[str, ModelConfig], paper: dict[str, float] | None = None
) -> list[Cell]:
    """One cell a model, trained alike."""
    return [
        Cell(
            name=name,
            model=model,
            training=sweep_training(scale),
            paper=(paper or {}).get(name),
            tuned=scale != "paper",
        )
        for name, model in models.items()
    ]


def changed(scale: Scale, **cells: dict) -> list[Cell]:
    """The sweep's model with some fields changed, by cell."""
    return cells_of(scale, {name: sweep_model(scale).replace(**fields) for name, fields in cells.items()})
