"""What a puzzle model solves: board by board, after every segment and where it would halt.

    puzzles = open_puzzles("data/sudoku4")
    found   = solve(model, evaluation_puzzles(puzzles, 64), puzzles.kind, segments=16)
    found.right[-1].mean()                    # of the boards, whole, after the last segment
    found.halts("trm").mean()                 # segments they would take if q decided

A board is solved if every cell is right, the givens included, as HRM and TRM count; a model that was trained
on the unknown cells alone is not asked for the others. Shares of cells are of the unknown ones only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from srmlab.models import LanguageModel
from srmlab.models.loss import IGNORE
from srmlab.puzzles import Kind, PuzzleBatch, Puzzles, evaluation_puzzles, variant_of
from srmlab.training.config import Halting
from srmlab.training.segments import run_segments


@dataclass(frozen=True, eq=False)
class Solving:
    """What came out for some boards, in their order."""

    inputs: np.ndarray  # [board, cell]
    labels: np.ndarray  # [board, cell] −100 where none counts
    unknown: np.ndarray  # [board, cell] whether it was to be found
    answers: np.ndarray  # [segment, board, cell]
    q: np.ndarray  # [segment, board, 2]

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def wrong(self) -> np.ndarray:
        """[segment, board, cell] whether it is, of the cells that count."""
        return wrong_cells(self.answers, self.labels)

    @property
    def right(self) -> np.ndarray:
        """[segment, board] whether it is solved: no cell is wrong."""
        return np.all(~self.wrong, axis=-1)

    @property
    def cells(self) -> np.ndarray:
        """[segment, board] the share of the unknown cells that are right."""
        asked = self.unknown & (self.labels != IGNORE)
        return ((self.answers == self.labels) & asked).sum(-1) / np.maximum(asked.sum(-1), 1)

    def halts(self, halting: Halting) -> np.ndarray:
        """[board] the segment after which q would halt, counted from 1; the last, if it never does."""
        wants = self.q[..., 0] > (self.q[..., 1] if halting == "hrm" else 0)
        wants[-1] = True
        if halting == "fixed":
            wants[:-1] = False
        return wants.argmax(0) + 1

    def at(self, segments: np.ndarray) -> np.ndarray:
        """[board] whether each is right after a number of segments of its own."""
        return self.right[segments - 1, np.arange(len(self))]


def wrong_cells(answers: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return (answers != labels) & (labels != IGNORE)


def solve(
    model: LanguageModel,
    batches: Iterator[PuzzleBatch],
    kind: Kind,
    *,
    segments: int,
    unknown_only: bool = False,
    depth: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Solving:
    """All segments on all boards; `progress` is called with the number of boards done."""
    parts: list[Solving] = []
    done = 0
    with model.evaluating():
        for batch in batches:
            here = batch.to(model.device)
            outs = list(run_segments(model, here, segments, depth))
            inputs, labels = batch.inputs.numpy(), batch.labels.numpy()
            unknown = kind.unknown(inputs)
            parts.append(
                Solving(
                    inputs,
                    np.where(unknown, labels, IGNORE) if unknown_only else labels,
                    unknown,
                    torch.stack([out.logits[..., : kind.vocab_size].argmax(-1) for out in outs])
                    .cpu()
                    .numpy(),
                    torch.stack([out.q for out in outs]).float().cpu().numpy(),
                )
            )
            progress(done := done + len(batch))
    together = {
        name: np.concatenate([getattr(part, name) for part in parts], axis=int(name in ("answers", "q")))
        for name in ("inputs", "labels", "unknown", "answers", "q")
    }
    return Solving(**together)


# --- votes --------------------------------------------------------------------------------------------------


def vote(
    model: LanguageModel,
    puzzles: Puzzles,
    *,
    votes: int,
    attempts: int,
    limit: int,
    batch_size: int,
    segments: int,
    unknown_only: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> np.ndarray:
    """[board] whether one of the `attempts` most frequent answers to `votes` symmetries of a board is right.

    An answer is a whole board, brought back by the inverse symmetry; of equally frequent ones the first is
    the one that is most probably right, by the mean of the sigmoid of q_halt.
    """
    ballots: list[dict[bytes, list[float]]] = [defaultdict(list) for _ in range(limit)]
    first: Solving | None = None
    for variant in range(votes):
        batches = evaluation_puzzles(puzzles, batch_size, limit, variant)
        found = solve(model, batches, puzzles.kind, segments=segments, unknown_only=unknown_only)
        first = first or found
        back = variant_of(puzzles, variant).inverse()
        answers = back.apply(found.answers[-1].astype(np.uint8)).astype(np.int64)
        sure = np.exp(-np.logaddexp(0, -found.q[-1, :, 0]))  # sigmoid
        for ballot, answer, probability in zip(ballots, answers, sure, strict=True):
            ballot[answer.tobytes()].append(float(probability))
        progress(variant + 1)
    assert first is not None
    solved = np.zeros(limit, bool)
    for board, ballot in enumerate(ballots):
        ranked = sorted(ballot, key=lambda answer: (-len(ballot[answer]), -float(np.mean(ballot[answer]))))
        tried = [np.frombuffer(answer, np.int64) for answer in ranked[:attempts]]
        solved[board] = any(not wrong_cells(answer, first.labels[board]).any() for answer in tried)
    return solved
