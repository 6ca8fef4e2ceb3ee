"""The paper's training recipe of every preset, as functions; and one for a laptop.

    >>> recipe("srm-large").warmup
    1000

All of the paper's runs: Adam-atan2 in HRM's form, weight decay 0.1, constant rate after a linear warm-up,
512 sequences of 1024 tokens a step, 10,000 steps (5.2B tokens).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def ouro() -> TrainConfig:
    """As Ouro: AdamW, a warm-up, a constant rate, clipped. Its 7.7T tokens and its growing batch are not."""
    return paper(lr=3e-4, warmup=2000).replace(optimizer="adamw", clip=1.0)


def hyper() -> TrainConfig:
    """As OLMo-1B: AdamW at 4e-4, decaying, clipped; on this project's tokens."""
    return paper(lr=4e-4, warmup=2000).replace(optimizer="adamw", schedule="cosine", clip=1.0)


def huginn() -> TrainConfig:
    """As Huginn: AdamW, a constant low rate, hardly any decay, clipped; depth drawn for every step."""
    adam = paper(lr=4e-5, warmup=4096).replace(optimizer="adamw", clip=1.0, weight_decay=1e-4)
    return adam.replace(depth_schedule="poisson")


def mor() -> TrainConfig:
    """As Mixture-of-Recursions: AdamW at 3e-3 after a short warm-up, clipped. Its decay at the end is not."""
    return paper(lr=3e-3, warmup=86).replace(optimizer="adamw", clip=1.0)


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


def puzzles(**changes: Any) -> TrainConfig:
    """HRM's and TRM's training on puzzles, at their scale."""
    config = TrainConfig(
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
    return config.replace(**changes)


def hrm_sudoku() -> TrainConfig:
    """20,000 passes over 1000 puzzles, each as often as it takes segments."""
    return puzzles(steps=26_000)


def trm_sudoku() -> TrainConfig:
    return puzzles(steps=65_000, halting="trm", ema=0.999)


def sudoku_nano() -> TrainConfig:
    """Five minutes on two cores for srm-sudoku-nano on 4 × 4 sudokus."""
    return TrainConfig(
        steps=5000,
        batch_size=64,
        lr=1.5e-3,
        warmup=50,
        schedule="cosine",
        segments=8,
        halting="trm",
        ema=0.99,
        puzzle_lr=1e-3,
        eval_every=500,
        eval_tokens=4000,
        checkpoint_every=500,
        log_every=50,
    )


def sr2_sudoku_nano() -> TrainConfig:
    return sudoku_nano().replace(halting="fixed", ema=0.995)


RECIPES: dict[str, Callable[[], TrainConfig]] = {
    "srm-base": srm_base,
    "srm-med": srm_med,
    "srm-large": srm_large,
    "hrm": hrm,
    "trm": hrm,
    "sr2": hrm,
    "gpt2": gpt2,
    "huginn": huginn,
    "hyper": hyper,
    "hyper-static": hyper,
    "mor": mor,
    "ouro": ouro,
    "ouro-2.6b": ouro,
    "hrm-sudoku": hrm_sudoku,
    "trm-sudoku": trm_sudoku,
    "trm-maze": trm_sudoku,
    "sr2-sudoku-nano": sr2_sudoku_nano,
}


def recipe(preset: str) -> TrainConfig:
    """How the preset of that name is trained."""
    if preset == "srm-nano":
        return nano()
    if preset == "huginn-nano":
        return nano().replace(lr=3e-3, depth_schedule="poisson")
    if preset.endswith("-sudoku-nano"):
        return RECIPES.get(preset, sudoku_nano)()
    if preset.endswith("-nano"):  # its baselines: the same tokens, at a rate that suits them
        return nano().replace(lr=3e-3)
    if preset.startswith("srm-sweep"):
        return sweep()
    return RECIPES.get(preset, srm_med)()
