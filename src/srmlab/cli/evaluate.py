"""`srmlab evaluate RUN`: how good a model is on text it has not seen."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from srmlab.cli.shared import OfText


@dataclass(kw_only=True)
class Command(OfText):
    """Loss, perplexity and bits per byte on the validation text, with standard errors.

    Unigram and bigram count models are given as baselines.

    Example:
        srmlab evaluate runs/nano
        srmlab evaluate --pretrained
        srmlab evaluate exports/nano --data data/sotu --limit-tokens 100000 --json
    """

    text: Path | None = None
    """Read this text file, as one document, instead of the validation tokens."""
    limit_tokens: int | None = None
    """Stop after this many tokens; by default all of the validation text."""
    batch_size: int = 8
    """Windows per batch."""
    context: int | None = None
    """Tokens per window; by default as in training."""
    exit: float | None = None
    """Stop the recursion of a batch where the state changes by less than this share of it, such as 0.05;
    or where the model's own rule says so for all of its tokens, as Ouro's gate: 0.9."""
    exit_by: str | None = None
    """Which of the model's rules --exit is for: change, gate …"""

    def run(self) -> None:
        answer = self.evaluate()
        print(json.dumps(answer, indent=2) if self.json else "\n".join(lines(answer)))

    def evaluate(self) -> dict[str, Any]:
        from srmlab.data import reference_losses
        from srmlab.models import Exit
        from srmlab.progress import Display
        from srmlab.training.evaluation import evaluate

        text = self.open_text(text=self.text, context=self.context)
        batches = text.batches(self.batch_size, self.limit_tokens)
        with Display(show=not self.json) as display:
            task = display.task("evaluating", len(batches), "batches")
            result = evaluate(
                text.model,
                batches,
                tokenizer=text.tokenizer,
                exit=None if self.exit is None else Exit(self.exit, self.exit_by),
                progress=task.update,
            )
        answers = text.marks is not None
        read = text.data if not answers else None  # what references are counted on
        return (
            {"model": str(text.path), "data": str(text.data.path if text.data else text.source)}
            | result.to_dict()
            | {"answers_only": answers, "exit": self.exit, "levels": text.model.depth}
            | {"references": asdict(reference_losses(read.train, read.val)) if read else None}
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
    if answer["exit"] is not None:
        shown.append(f"{'depth':<15} {answer['mean_levels']:>9.4f} of {answer['levels']} levels")
    return [
        *shown,
        f"{answer['tokens']:,} tokens{' of answers' if answer['answers_only'] else ''} of {answer['data']}; "
        f"± is one standard error over {answer['windows']:,} windows",
    ]
