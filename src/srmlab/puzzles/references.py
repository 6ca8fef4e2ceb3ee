"""What a model of puzzles has to beat: counts that see a cell and none of its neighbours."""

from __future__ import annotations

import numpy as np

from srmlab.puzzles.folder import Boards, Puzzles


def cell_loss(puzzles: Puzzles) -> float:
    """Nats per cell of the test boards, by how often each value of a cell has which answer in training: a
    given cell of a sudoku is certain and an empty one a guess, an open cell of a maze is mostly off the way.
    """
    counts = np.ones((puzzles.vocab_size, puzzles.vocab_size))  # one each, so that nothing is impossible
    np.add.at(counts, _cells(puzzles, puzzles.train), 1)
    likelihood = counts / counts.sum(1, keepdims=True)
    return float(-np.log(likelihood[_cells(puzzles, puzzles.test)]).mean())


def _cells(puzzles: Puzzles, boards: Boards) -> tuple[np.ndarray, np.ndarray]:
    """Value and answer of every cell that counts."""
    values, answers = np.asarray(boards.inputs), np.asarray(boards.labels)
    counted = answers != puzzles.ignore if puzzles.ignore is not None else np.ones(answers.shape, dtype=bool)
    return values[counted], answers[counted]
