"""`srmlab compare RUN RUN …`: runs of any architectures side by side, on the same tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from srmlab.cli.shared import aligned
from srmlab.errors import UserError

if TYPE_CHECKING:
    from srmlab.analysis.comparison import Compared
    from srmlab.training.run_text import RunText


@dataclass
class Command:
    """Compare two or more runs: parameters, FLOP, depth, loss on the same tokens with its interval, the
    paired difference from the first run, and how similar the states of different tokens are.

    Example:
        srmlab compare runs/srm runs/ouro runs/huginn
        srmlab compare runs/srm runs/hrm --json
    """

    runs: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN RUN …")]]
    """Runs, checkpoints or exports; the others are compared with the first."""
    data: Path | None = None
    """Output folder of `srmlab prepare`; by default the first run's."""
    text: Path | None = None
    """Read this text file, as one document, instead of the validation tokens."""
    limit_tokens: int = 65_536
    """Stop after this many tokens."""
    batch_size: int = 8
    """Windows per batch."""
    context: int | None = None
    """Tokens per window; by default the shortest of the runs' training contexts."""
    device: str = "auto"
    json: bool = False
    """Print JSON, for scripts."""

    def run(self) -> None:
        from srmlab.analysis.comparison import compare
        from srmlab.progress import Display

        texts = self.open()
        first = next(iter(texts.values()))
        batches = list(first.batches(self.batch_size, self.limit_tokens))
        if not batches:
            raise UserError(f"{first.source} is shorter than one window of {first.context}: give --context")
        with Display(show=not self.json) as display:
            task = display.task("comparing", len(texts) * len(batches), "batches")
            done = 0

            def step() -> None:
                nonlocal done
                done += 1
                task.update(done)

            models = {name: text.model for name, text in texts.items()}
            flops = {name: training_flops(text) for name, text in texts.items()}
            rows = compare(models, batches, flops, step)
        windows = sum(len(batch.tokens) for batch in batches)
        read = f"{windows} windows of {first.context} tokens of {first.source}"
        if self.json:
            print(json.dumps({"read": read, "models": [row.to_dict() for row in rows]}, indent=2))
            return
        print(table(rows))
        print()
        print(f"{read}; ± is a 95 % interval over windows, and does not cover training seeds.")
        print("difference: to the first, on the same windows; collapse: cosine between the states of")
        print("different tokens where they are read out, 1 where all are the same.")

    def open(self) -> dict[str, RunText]:
        """Every run, at a context that all of them have; the first one's text is read by all."""
        from srmlab.training.run_text import open_text

        if len(self.runs) < 2:
            raise UserError("give two runs or more: srmlab compare runs/srm runs/ouro")
        if len(set(self.runs)) < len(self.runs):
            raise UserError("a run is named twice: give each once")
        found = [open_text(run, data=self.data, text=self.text, device=self.device) for run in self.runs]
        context = self.context or min(text.context for text in found)
        for run, text in zip(self.runs, found, strict=True):
            if text.tokenizer.fingerprint != found[0].tokenizer.fingerprint:
                first = self.runs[0]
                raise UserError(f"{run} has another tokenizer than {first}: compare runs of the same tokens")
            if not 1 <= context <= text.model.config.context:
                raise UserError(f"--context {context}: that of {run} is {text.model.config.context}")
        return {run: replace(text, context=context) for run, text in zip(self.runs, found, strict=True)}


def training_flops(text: RunText) -> float | None:
    """Of the run's whole training, if it is a run."""
    from srmlab.training.depth import TrainingDepth

    if text.run is None:
        return None
    config, model = text.run.training, text.run.model
    return TrainingDepth.of(config, model).mean_flops() * config.steps * config.tokens_per_step(model.context)


def table(rows: list[Compared]) -> str:
    """One line a model, of 100 columns or fewer where names are short."""
    heads = ["", "parameters", "FLOP/token", "training FLOP", "depth", "S", "loss", "difference", "collapse"]
    lines = [heads]
    for row in rows:
        name = Path(row.name).name if len({Path(r.name).name for r in rows}) == len(rows) else row.name
        difference = (
            "" if row.difference is None else f"{row.difference.mean:+.4f} ± {row.difference.half:.4f}"
        )
        lines.append(
            [
                name,
                f"{row.parameters:,}",
                f"{row.forward_flops:.3g}",
                "–" if row.training_flops is None else f"{row.training_flops:.3g}",
                f"{row.depth} {row.unit}",
                str(row.streams),
                str(row.loss),
                difference,
                f"{row.collapse:.2f}",
            ]
        )
    return aligned(lines)
