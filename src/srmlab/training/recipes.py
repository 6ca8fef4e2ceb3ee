"""The paper's training recipe of every preset, as functions; and one for a laptop.

    >>> recipe("srm-large").warmup
    1000

All of the paper's runs: Adam-atan2 in HRM's form, weight decay 0.1, constant rate after a linear warm-up,
512 sequences of 1024 tokens a step, 10,000 steps (5.2B tokens).
"""

from __future__ import annotations

from collections.abc import Callable

from srmlab.training.config import TrainConfig


def paper(*, lr: float = 1e-3, warmup: int) -> TrainConfig:
    return TrainConfig(
        steps=10_000,
        batch_size=512,
        lr=lr,
        warmup=warmup,
        weight_decay=0.1,
        dtype="auto",
        eval_tokens=2_000_000,
    )


def srm_base() -> TrainConfig:
    return paper(warmup=100)


def srm_med() -> TrainConfig:
    return paper(warmup=200)


def srm_large() -> TrainConfig:
    return paper(warmup=1000)


def hrm() -> TrainConfig:
    return paper(lr=1e-4, warmup=1000)


def gpt2() -> TrainConfig:
    return paper(warmup=0)


def sweep() -> TrainConfig:
    """The stream-size and step-order sweeps: 1000 steps."""
    return paper(warmup=100).replace(steps=1000)


def nano() -> TrainConfig:
    """Five minutes on two cores for srm-nano: 573,440 tokens. The rate is the best of 2e-3, 4e-3 and 8e-3."""
    return TrainConfig(
        steps=560,
        batch_size=4,
        lr=8e-3,
        warmup=20,
        schedule="cosine",
        eval_every=140,
        eval_tokens=16_384,
        checkpoint_every=140,
        keep_checkpoints=5,
    )


RECIPES: dict[str, Callable[[], TrainConfig]] = {
    "srm-base": srm_base,
    "srm-med": srm_med,
    "srm-large": srm_large,
    "hrm": hrm,
    "trm": hrm,
    "gpt2": gpt2,
}


def recipe(preset: str) -> TrainConfig:
    """How the preset of that name is trained."""
    if preset == "srm-nano":
        return nano()
    if preset.endswith("-nano"):  # its baselines: the same tokens, at a rate that suits them
        return nano().replace(lr=3e-3)
    if preset.startswith("srm-sweep"):
        return sweep()
    return RECIPES.get(preset, srm_med)()
