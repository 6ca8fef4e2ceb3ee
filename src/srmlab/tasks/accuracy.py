"""How many problems a model solves.

A problem is solved if every token of its answer, the end-of-text behind it included, is the most likely one
after the question and the answer's tokens before it. One pass gives that for all tokens at once. It is the
same as writing the answer greedily and stopping at end-of-text: the first wrong token ends both.

    >>> import srmlab
    >>> from srmlab.data import byte_tokenizer
    >>> model = srmlab.build(srmlab.preset("srm-nano", vocab_size=257))
    >>> solved(model, byte_tokenizer(), [Problem("2+2", "4")]).tolist()
    [False]
    >>> Accuracy(right=45, problems=50)
    Accuracy(right=45, problems=50)
    >>> print(Accuracy(right=45, problems=50))
    90.0 % [78.6, 95.7]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from srmlab.data import ANSWER, Batch, Tokenizer
from srmlab.errors import UserError
from srmlab.models import LanguageModel
from srmlab.models.loss import IGNORE
from srmlab.tasks.problems import Problem

Z95 = 1.959964  # standard normal deviations that hold 95 %


@dataclass(frozen=True)
class Accuracy:
    right: int
    problems: int

    @property
    def share(self) -> float:
        return self.right / self.problems

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval, which stays within 0 … 1 and has a width at 0 and 1 too."""
        n, p, z = self.problems, self.share, Z95
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        reach = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return middle - reach if self.right else 0.0, middle + reach if self.right < n else 1.0

    def __str__(self) -> str:
        return percent(self.share, *self.interval)


def percent(share: float, low: float, high: float) -> str:
    """A share and its interval."""
    return f"{100 * share:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def encode(tokenizer: Tokenizer, problem: Problem, *, first: bool) -> tuple[list[int], list[int]]:
    """The ids before the answer, and the answer's with end-of-text.

    `first` puts an end-of-text in front: what a model reads before a document, unless its attention was kept
    within documents.
    """
    front = [tokenizer.end_of_text] if first else []
    before = tokenizer.encode(problem.question + ANSWER)
    whole = tokenizer.encode(problem.text)
    if whole[: len(before)] != before:
        raise UserError(
            f"{problem.text!r}: a token of the tokenizer joins {ANSWER!r} and the answer: "
            "prepare the task with --tokenizer byte"
        )
    return front + before, [*whole[len(before) :], tokenizer.end_of_text]


def solved(
    model: LanguageModel,
    tokenizer: Tokenizer,
    problems: Sequence[Problem],
    *,
    batch_size: int = 64,
    first: bool = True,
) -> np.ndarray:
    """Which problems the model solves, [problem] bool; `first` as in `encode`."""
    rows = [encode(tokenizer, problem, first=first) for problem in problems]
    longest = max((len(before) + len(answer) - 1 for before, answer in rows), default=0)
    if longest > model.config.context:
        raise UserError(
            f"a problem of {longest} tokens exceeds the model's context of {model.config.context}: "
            "choose a lower difficulty, or train with a longer context"
        )
    with model.evaluating():
        parts = [
            _solved_batch(model, rows[start : start + batch_size], tokenizer.end_of_text)
            for start in range(0, len(rows), batch_size)
        ]
    return np.concatenate(parts) if parts else np.zeros(0, bool)


def _solved_batch(model: LanguageModel, rows: list[tuple[list[int], list[int]]], filler: int) -> np.ndarray:
    batch = _batch(rows, filler)
    asked = batch.counted
    hidden = model.output_embedding(batch.tokens.to(model.device))  # [problem, T, E]
    hidden = hidden[asked.to(model.device)]  # [answer tokens, E]
    chosen = (hidden @ model.unembedding.T).argmax(-1).cpu()
    right = torch.ones_like(asked)
    right[asked] = chosen == batch.targets[asked]
    return right.all(1).numpy()


def _batch(rows: list[tuple[list[int], list[int]]], filler: int) -> Batch:
    """Questions with their answers; only the answers are targets."""
    width = max(len(before) + len(answer) for before, answer in rows) - 1
    inputs = torch.full((len(rows), width), filler)  # behind the answer anything may stand: models are causal
    targets = torch.full((len(rows), width), IGNORE)
    for row, (before, answer) in enumerate(rows):
        tokens = torch.tensor(before + answer)
        inputs[row, : len(tokens) - 1] = tokens[:-1]
        targets[row, len(before) - 1 : len(tokens) - 1] = tokens[len(before) :]
    return Batch(inputs, targets)
