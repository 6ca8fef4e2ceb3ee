"""Puzzles in the explorer: a board is a prompt, its cells are the tokens, and each has a right answer.

The model is unrolled over its segments (`srmlab.training.run_puzzles`), so that a trace has their layers one
after the other and every view of layers works. What is added is the board: the value that every cell would
have after every layer, how likely it is, and which cells were given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.registry import has_streams
from srmlab.analysis.states import state_means
from srmlab.errors import UserError
from srmlab.explorer.lens import Reading
from srmlab.explorer.session import Session
from srmlab.models import LanguageModel
from srmlab.puzzles import Kind, Puzzles
from srmlab.puzzles.files import BadLine, read_example
from srmlab.storage import load
from srmlab.training.run_puzzles import open_boards, unrolled
from srmlab.training.segments import LIKELIHOODS

EXAMPLES = 6  # boards offered, from the hardest, where depth matters most, to the easiest
REFERENCE_BOARDS = 64  # whose mean states ablations put in
RULES = "|-+ \t\r\n"  # what a drawn board has between its cells


@dataclass(frozen=True, eq=False)
class Board:
    """What the explorer knows of puzzles of one kind; it reads them as a tokenizer reads text."""

    kind: Kind
    segment_depth: int  # layers of a segment
    likelihood: Callable[[Tensor], Tensor]  # logits → log-probabilities, as in training
    known: dict[bytes, list[int]] = field(default_factory=dict)  # answers that cannot be worked out

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def vocab_size(self) -> int:
        return self.kind.vocab_size

    @property
    def values(self) -> list[int]:
        """What can stand in a filled cell: not the padding, and in a sudoku not an empty cell."""
        return [i for i in range(1, self.vocab_size) if not (self.kind.box and i == self.kind.blank)]

    @property
    def reading(self) -> Reading:
        return Reading(self.likelihood, self.values)

    def encode(self, text: str) -> list[int]:
        """A board in one line, or drawn in several."""
        marks = text.replace("0", ".") if self.kind.box else text
        if self.kind.box or self.kind.family == "maze":
            marks = "".join(mark for mark in marks if mark not in RULES)
        else:
            marks = marks.replace("\n", "")
        if self.kind.family == "maze" and len(marks) != self.kind.cells:  # blanks are open cells, then
            marks = self.blank_as_open(text) or marks
        for mark in marks:
            if mark not in self.kind.symbols:
                raise UserError(
                    f"{mark!r} is not a value of a {self.kind.name}: write {self.kind.symbols.strip()}"
                )
        if len(marks) != self.kind.cells:
            raise UserError(f"{len(marks)} cells: a {self.kind.name} has {self.kind.cells}")
        return [self.kind.symbols.index(mark) for mark in marks]

    def blank_as_open(self, text: str) -> str | None:
        """A maze whose blanks are open cells, in one line or drawn; None if it has another size."""
        lines = text.strip("\r\n").splitlines()
        if len(lines) == self.kind.rows:  # blanks at the ends of lines are easily lost
            lines = [line.ljust(self.kind.columns) for line in lines]
        marks = "".join(lines).replace(" ", ".")
        return marks if len(marks) == self.kind.cells else None

    def decode(self, ids: Iterable[int]) -> str:
        return self.kind.line(np.array(list(ids)))

    def token_strings(self, ids: Iterable[int]) -> list[str]:
        return [self.kind.symbols[i] for i in ids]

    def answer(self, ids: Sequence[int]) -> list[int] | None:
        """The right values; None where nobody knows them."""
        if self.kind.family == "arc":
            return self.known.get(bytes(ids))
        try:
            return read_example(self.kind, self.kind.line(np.array(ids)), rating="0")[1]
        except BadLine as error:
            raise UserError(f"this board has no answer ({error}): change it") from None

    def arrays(self, model: LanguageModel, states: Tensor, ids: Sequence[int]) -> dict[str, Tensor]:
        """Of the states [layer, token, stream, dim]: the likeliest value of every cell, and how likely."""
        logits = model.read_out(states.to(model.unembedding.dtype)) @ model.unembedding.T
        best = self.likelihood(logits).max(-1)
        given = torch.from_numpy(~self.kind.unknown(np.array(ids)))
        return {
            "given": given.to(torch.uint8),
            "cell_value": best.indices.int(),
            "cell_probability": best.values.exp().half(),
        }

    @property
    def manifest(self) -> dict[str, Any]:
        kind = self.kind
        box = list(kind.box) if kind.box else None
        return {
            "kind": kind.name,
            "rows": kind.rows,
            "columns": kind.columns,
            "box": box,
            "symbols": kind.symbols,
            "segment_depth": self.segment_depth,
        }


def open_board_run(path: str | Path, segments: int | None = None) -> Session:
    """A puzzle run, a checkpoint or an export of one."""
    from srmlab.explorer.opening import checkpoint_folders, saved_results

    path = Path(path)
    boards = open_boards(path, segments=segments, verify=False)
    model, kind = boards.model, boards.puzzles.kind
    likelihood = boards.run.training.likelihood if boards.run else "stablemax"
    board = Board(kind, boards.trained.depth, LIKELIHOODS[likelihood], known_answers(boards.puzzles))
    evaluation = [batch.tokens for batch in boards.batches(8, REFERENCE_BOARDS * kind.cells)]
    checkpoints = {
        folder.name: partial(lambda place: unrolled(load(place), boards.segments), folder)
        for folder in checkpoint_folders(path)
    }
    lines = [
        "from srmlab.explorer.boards import open_board_run",
        f"session = open_board_run({str(path)!r}, segments={boards.segments})",
        "model, tokenizer, reference = session.model, session.tokenizer, session.reference",
    ]
    return Session(
        model,
        board,
        name=path.resolve().name,
        reference=state_means(model, evaluation) if has_streams(model) else None,
        evaluation=evaluation,
        checkpoints=checkpoints,
        twin=True,
        saved=saved_results(path),
        python="\n".join(lines),
        prompts=examples(boards.puzzles),
    )


def examples(puzzles: Puzzles) -> list[str]:
    """Test boards from the hardest to the easiest."""
    order = np.argsort(-puzzles.test.ratings, kind="stable")
    chosen = order[np.linspace(0, len(order) - 1, min(EXAMPLES, len(order))).round().astype(int)]
    return [puzzles.kind.line(puzzles.test.inputs[row]) for row in dict.fromkeys(chosen.tolist())]


def known_answers(puzzles: Puzzles) -> dict[bytes, list[int]]:
    if puzzles.kind.family != "arc":
        return {}
    pairs = zip(puzzles.test.inputs, puzzles.test.labels, strict=True)
    return {bytes(board.astype(np.uint8)): answer.tolist() for board, answer in pairs}
