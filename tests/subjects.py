"""What tests of several rooms are done on: small models, and a run of a few steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from srmlab.data import PrepareConfig, prepare
from srmlab.models import SRMConfig
from srmlab.training import TrainConfig, train

SMALL = SRMConfig(
    vocab_size=97,
    context=32,
    embedding_dim=24,
    streams=4,
    stream_dim=16,
    mlp_dim=32,
    token_heads=2,
    stream_heads=2,
    head_dim=8,
    order="ABC",
    depth=4,
    gradient_depth=2,
)
OF_BYTES = SMALL.replace(
    vocab_size=257,
    context=16,
    embedding_dim=8,
    streams=3,
    stream_dim=8,
    mlp_dim=16,
    head_dim=4,
    depth=3,
)


def trained_run(folder: Path) -> Path:
    """A run of six steps on random words, with a checkpoint and an evaluation half-way."""
    words = np.random.default_rng(0).choice(["alpha", "beta", "stream", "layer"], 3000)
    (folder / "words.txt").write_text("\n\n".join(" ".join(words[i : i + 40]) for i in range(0, 3000, 40)))
    source = PrepareConfig(
        source=str(folder / "words.txt"),
        out=folder / "data",
        tokenizer="byte",
        section_chars=300,
        val_fraction=0.2,
    )
    prepare(source)
    config = TrainConfig(
        steps=6,
        batch_size=4,
        lr=1e-2,
        warmup=2,
        eval_every=3,
        eval_tokens=64,
        checkpoint_every=3,
        device="cpu",
    )
    train(config, OF_BYTES, folder / "data", folder / "run")
    return folder / "run"
