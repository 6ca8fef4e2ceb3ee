"""What the training tests share: a small model, a short run of it, and how to compare two runs."""

from __future__ import annotations

import hashlib
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from srmlab.data import PrepareConfig, prepare
from srmlab.models import GPT2Config, HRMConfig, SRMConfig
from srmlab.storage import read_metrics
from srmlab.storage.weights import checkpoint_steps
from srmlab.training import TrainConfig, resume, train
from srmlab.training.loop import Trainer

VOCAB = 257  # bytes and end-of-text
SPEED = ("tokens_per_second", "mfu")  # what may differ between two equal runs

MODEL = SRMConfig(
    vocab_size=VOCAB, context=16, embedding_dim=8, streams=3, stream_dim=8, mlp_dim=16,
    token_heads=2, head_dim=4, stream_heads=2, depth=3, gradient_depth=2,
)  # fmt: skip
RANDOM_ORDER = MODEL.replace(order="random:3")
GPT2 = GPT2Config(vocab_size=VOCAB, context=16, dim=8, blocks=2, heads=2, mlp_dim=16, dropout=0.1)
TRM = HRMConfig(
    vocab_size=VOCAB, context=16, dim=8, heads=2, head_dim=4, mlp_dim=16, low_blocks=1, high_blocks=1,
    low_cycles=2, high_cycles=2, shared_net=True, gradient="last-cycle",
)  # fmt: skip
PUZZLES = HRMConfig(
    vocab_size=6, context=17, causal=False, puzzle_positions=1, dim=8, heads=2, head_dim=4, mlp_dim=16,
    low_blocks=1, high_blocks=1, low_cycles=1, high_cycles=2,
)  # fmt: skip


def small_config(**changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "steps": 12, "batch_size": 4, "lr": 1e-2, "warmup": 3, "eval_every": 5, "eval_tokens": 128,
        "checkpoint_every": 4, "peak_flops": 1e11, "device": "cpu",
    }  # fmt: skip
    return TrainConfig(**settings | changes)


def write_data(folder: Path, *, sections: int = 60, val_fraction: float = 0.1) -> Path:
    """A folder of prepared tokens: random words, as bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["alpha", "beta", "gamma", "delta", "stream", "step", "layer"]
    generator = np.random.default_rng(0)
    text = "\n\n".join(" ".join(generator.choice(words, 40)) for _ in range(sections))
    (folder / "words.txt").write_text(text)
    out = folder / "data"
    prepare(
        PrepareConfig(
            source=str(folder / "words.txt"),
            out=out,
            tokenizer="byte",
            section_chars=300,
            val_fraction=val_fraction,
        )
    )
    return out


def loss_log(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run, without what the clock decides."""
    rows = read_metrics(run / "metrics.jsonl")
    return [{name: value for name, value in row.items() if name not in SPEED} for row in rows]


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(run / "metrics.jsonl") if "loss" in row]


def last_checkpoint(run: Path) -> Path:
    return run / "checkpoints" / f"step-{checkpoint_steps(run / 'checkpoints')[-1]}"


def state(run: Path) -> dict[str, str]:
    """The last checkpoint, file by file, as hashes: weights, optimizer, random state, counters."""
    folder = last_checkpoint(run)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def train_twice(config, model, data, folder, monkeypatch, step: int = 3) -> tuple[Path, Path]:
    """A run that was never stopped, and one that was stopped during `step` and resumed."""
    train(config, model, data, folder / "never-stopped", show=False)
    with monkeypatch.context() as patch:
        stop_after(patch, step)
        train(config, model, data, folder / "stopped", show=False)
    resume(folder / "stopped", show=False)
    return folder / "never-stopped", folder / "stopped"


def stop_after(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Have the next training run be told to stop during `step`."""
    advance = Trainer.advance

    def told(self: Trainer) -> int:
        if self.step + 1 == step:
            self.stop.signal = signal.SIGTERM
        return advance(self)

    monkeypatch.setattr(Trainer, "advance", told)
