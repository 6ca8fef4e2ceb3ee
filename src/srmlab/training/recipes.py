"""The paper's training recipe for every preset, as a table; and one for a laptop.

    >>> recipe("srm-large").warmup
    1000

All of the paper's runs: Adam-atan2 in HRM's form, weight decay 0.1, constant learning rate after a linear
warm-up, 512 sequences of 1024 tokens per step, 10,000 steps (5.2B tokens).
"""

from __future__ import annotations

from typing import Any

from srmlab.errors import unknown
from srmlab.models.registry import FAMILIES, PRESETS, SWEEP_PRESETS
from srmlab.training.config import TrainConfig


def paper(*, warmup: int, **changes: Any) -> TrainConfig:
    """As the paper trains, but for the warm-up and what is changed."""
    return TrainConfig(warmup=warmup, dtype="auto", eval_tokens=2_000_000).replace(**changes)


NANO = TrainConfig(  # five minutes on two cores for srm-nano: 573,440 tokens; the best rate of 2, 4 and 8e-3
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
PUZZLES = TrainConfig(  # HRM's and TRM's training on puzzles, at their scale
    batch_size=768,
    lr=1e-4,
    warmup=2000,
    weight_decay=1.0,
    puzzle_lr=1e-4,
    dtype="auto",
    eval_every=2000,
    eval_tokens=100_000,
    checkpoint_every=2000,
)
SUDOKU_NANO = TrainConfig(  # three minutes on one core for srm-sudoku-nano on 4 × 4 sudokus
    steps=2000,
    batch_size=64,
    lr=4e-3,
    warmup=50,
    schedule="cosine",
    segments=8,
    halting="trm",
    ema=0.99,
    puzzle_lr=1e-3,
    eval_every=200,
    eval_tokens=4000,
    checkpoint_every=200,
    log_every=50,
)
BASELINE_NANO = NANO.replace(lr=3e-3)  # the same tokens, at a rate that suits them
SRM_MED = paper(warmup=200)
HRM = paper(lr=1e-4, warmup=1000)
ADAM: dict[str, Any] = {"optimizer": "adamw", "clip": 1.0}
OURO = paper(lr=3e-4, warmup=2000, **ADAM)  # as Ouro, without its 7.7T tokens and its growing batch
HYPER = paper(lr=4e-4, warmup=2000, schedule="cosine", **ADAM)  # as OLMo-1B; on this project's tokens
HRM_PUZZLES = PUZZLES.replace(steps=26_000)
TRM_PUZZLES = PUZZLES.replace(steps=65_000, halting="trm", ema=0.999)
# as long as TRM's public checkpoint for ARC-1 was trained; of HRM the number is not known
ARC: dict[str, Any] = {"steps": 518_000, "weight_decay": 0.1, "puzzle_lr": 1e-2}

RECIPES = {
    "srm-base": paper(warmup=100),
    "srm-med": SRM_MED,
    "srm-large": paper(warmup=1000),
    "srm-nano": NANO,
    "srm-sudoku": TRM_PUZZLES,  # nobody has trained these: as TRM
    "srm-maze": TRM_PUZZLES,
    "srm-arc": TRM_PUZZLES.replace(**ARC),
    "hrm": HRM,
    "hrm-single": HRM,
    "trm": HRM,
    "sr2": HRM,
    "gpt2": paper(warmup=0),
    # as Huginn: a low rate, hardly any decay, depth drawn for every step
    "huginn": paper(lr=4e-5, warmup=4096, weight_decay=1e-4, depth_schedule="poisson", **ADAM),
    "huginn-nano": BASELINE_NANO.replace(depth_schedule="poisson"),
    "hyper": HYPER,
    "hyper-static": HYPER,
    "mor": paper(lr=3e-3, warmup=86, **ADAM),  # as Mixture-of-Recursions, without its decay at the end
    "ouro": OURO,
    "ouro-2.6b": OURO,
    # 20,000 passes over 1000 puzzles, each as often as it takes segments
    "hrm-sudoku": HRM_PUZZLES,
    "hrm-maze": HRM_PUZZLES,
    "hrm-arc": HRM_PUZZLES.replace(**ARC),
    "trm-sudoku": TRM_PUZZLES,
    "trm-maze": TRM_PUZZLES,
    "trm-arc": TRM_PUZZLES.replace(**ARC),
    "sr2-sudoku-nano": SUDOKU_NANO.replace(halting="fixed", ema=0.995),
}


def recipe(preset: str) -> TrainConfig:
    """How the preset of that name is trained; one of your own as SRM-med, or at nano size as the baselines.

    >>> recipe("srm-lrge")
    Traceback (most recent call last):
    srmlab.errors.UserError: no recipe is called 'srm-lrge'; did you mean 'srm-large'?
    """
    known = PRESETS | SWEEP_PRESETS | FAMILIES
    if preset not in known:
        raise unknown("recipe", preset, known, "`srmlab presets` lists the models that have one")
    if preset in RECIPES:
        return RECIPES[preset]
    if preset.endswith("-sudoku-nano"):
        return SUDOKU_NANO
    if preset.endswith("-nano"):
        return BASELINE_NANO
    if preset.startswith("srm-sweep"):
        return paper(warmup=100, steps=1000)
    return SRM_MED
