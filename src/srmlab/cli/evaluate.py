"""`srmlab evaluate RUN`: how good a model is on text it has not seen."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro

from srmlab.errors import UserError


@dataclass
class Command:
    """Loss, perplexity and bits per byte on the validation text, each with its standard error.

    Beside them is what counting tokens (unigram) and pairs of tokens (bigram) would give.

    Example:
        srmlab evaluate runs/nano
        srmlab evaluate exports/nano --data data/sotu --limit-tokens 100000 --json
    """

    path: tyro.conf.Positional[Path]
    """A run (its last good checkpoint), a checkpoint or an export."""
    data: Path | None = None
    """Folder of `srmlab prepare`; by default the run's."""
    limit_tokens: int | None = None
    """Stop after so many tokens; by default all of the validation text."""
    batch_size: int = 8
    """Windows at a time."""
    context: int | None = None
    """Tokens per window; by default what the run was trained on."""
    document_mask: bool = False
    """Attention does not cross documents (always so if the run was trained so)."""
    answers_only: bool = False
    """Count only what follows "=" in a document (always so if the run was trained so)."""
    device: str = "auto"
    json: bool = False
    """Print JSON, for a program to read."""

    def run(self) -> None:
        answer = self.evaluate()
        print(json.dumps(answer, indent=2) if self.json else "\n".join(lines(answer)))

    def evaluate(self) -> dict[str, Any]:
        from srmlab.data import open_tokens, reference_losses
        from srmlab.storage import load, weights_folder
        from srmlab.training.distributed import device_of
        from srmlab.training.evaluation import check_vocabulary, evaluate
        from srmlab.training.memory import keep_buffers
        from srmlab.training.run import run_config

        keep_buffers()
        weights_folder(self.path)  # a path that holds no model is the first thing to say
        run = run_config(self.path)
        folder = self.data or (run and run.data)
        if folder is None:
            raise UserError(f"{self.path} is no run and does not say what it was trained on: give --data")
        data = open_tokens(folder)
        model = load(self.path, device=device_of(self.device))
        check_vocabulary(model.config.vocab_size, data.vocab_size, data.path)
        trained = run.training if run else None
        answers = self.answers_only or bool(trained and trained.answers_only)
        result = evaluate(
            model,
            data.val,
            tokenizer=data.tokenizer,
            context=self.context or (trained.context if trained else None),
            batch_size=self.batch_size,
            limit_tokens=self.limit_tokens,
            document_mask=self.document_mask or bool(trained and trained.document_mask),
            marks=data.tokenizer.answer_marks if answers else None,
        )
        return (
            {"model": str(self.path), "data": str(data.path)}
            | result.to_dict()
            | {"references": None if answers else asdict(reference_losses(data.train, data.val))}
        )


def lines(answer: dict[str, Any]) -> list[str]:
    def row(name: str, estimate: dict[str, float], unit: str) -> str:
        return f"{name:<15} {estimate['mean']:>9.4f} ± {estimate['standard_error']:.4f}  {unit}"

    references = answer["references"]
    shown = [row("loss", answer["loss"], "nats per token"), row("perplexity", answer["perplexity"], "")]
    if answer["bits_per_byte"]:
        shown.append(row("bits per byte", answer["bits_per_byte"], ""))
    if references:
        rows = ("bigram", "unigram", "uniform")
        shown += [f"{name + ' loss':<15} {references[name]:>9.4f}" for name in rows]
    return [
        *shown,
        f"{answer['tokens']:,} tokens{'' if references else ' of answers'} of {answer['data']}; "
        f"± is one standard error over {answer['windows']:,} windows",
    ]
