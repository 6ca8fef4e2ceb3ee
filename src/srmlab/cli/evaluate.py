"""`srmlab evaluate RUN`: how good a model is on text it has not seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from srmlab.cli.shared import ExitsEarly, OfText


@dataclass(kw_only=True)
class Command(ExitsEarly, OfText):
    """Loss, perplexity and bits per byte on the validation text, with standard errors.

    Unigram and bigram counts serve as baselines.

    Example:
        srmlab evaluate runs/nano
        srmlab evaluate --pretrained
        srmlab evaluate exports/nano --data data/sotu --tokens 100000 --json
    """

    text: Path | None = None
    """Read this text file, as one document, instead of the validation tokens."""
    tokens: int | None = None
    """Read this many tokens, in windows spread evenly over the text; by default all of it."""
    batch_size: int = 8
    """Windows per batch."""
    context: int | None = None
    """Tokens per window; by default as in training."""

    def result(self) -> dict[str, Any]:
        from srmlab.data import reference_losses
        from srmlab.training.evaluation import evaluate

        text = self.open_text(text=self.text, context=self.context, spread=True)
        batches = text.batches(self.batch_size, self.tokens)
        with self.display() as display:
            task = display.task("evaluating", len(batches), "batches")
            result = evaluate(
                text.model,
                batches,
                tokenizer=text.tokenizer,
                exit=self.early_exit(),
                progress=task.update,
            )
        answers = text.marks is not None
        read = text.data if not answers else None  # what references are counted on
        part = None if self.tokens is None else batches
        counts = reference_losses(read.train, read.val, windows=part) if read else None
        return (
            {"model": str(text.path), "data": str(text.data.path if text.data else text.source)}
            | result.to_dict()
            | {"answers_only": answers, "exit": self.exit, "levels": text.model.depth}
            | {"references": asdict(counts) if counts else None}
        )

    def lines(self, result: dict[str, Any]) -> Iterator[str]:
        for name, unit in (("loss", "  nats per token"), ("perplexity", ""), ("bits_per_byte", "")):
            if found := result[name]:
                error = f" ± {found['standard_error']:.4f}" if result["windows"] > 1 else ""
                yield f"{name.replace('_', ' '):<15} {found['mean']:>9.4f}{error}{unit}"
        for name in ("bigram", "unigram", "uniform") if result["references"] else ():
            yield f"{name + ' loss':<15} {result['references'][name]:>9.4f}"
        if result["exit"] is not None:
            yield f"{'depth':<15} {result['mean_levels']:>9.4f} of {result['levels']} levels"
        answers = " of answers" if result["answers_only"] else ""
        yield f"{result['tokens']:,} tokens{answers} of {result['data']}"
        if result["windows"] > 1:
            yield f"± is one standard error over {result['windows']:,} windows"
        else:
            yield "one window has no standard error: read more tokens"
