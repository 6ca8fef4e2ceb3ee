"""What is known of a puzzle without looking at two cells at once."""

import numpy as np
import pytest

from srmlab.puzzles import PuzzleConfig, prepare_puzzles
from srmlab.puzzles.references import cell_loss


@pytest.mark.parametrize(("source", "values"), [("sudoku:4x4", 4), ("sudoku:6x6", 6)])
def test_counts_know_what_is_given_and_guess_the_rest(source, values, tmp_path):
    puzzles = prepare_puzzles(PuzzleConfig(source, tmp_path / "sudoku", held_out=0.2, count=200))
    empty = float((np.asarray(puzzles.test.inputs) != np.asarray(puzzles.test.labels)).mean())
    assert cell_loss(puzzles) == pytest.approx(empty * np.log(values), rel=0.05)


def test_counts_know_how_many_open_cells_of_a_maze_are_on_the_way(tmp_path):
    puzzles = prepare_puzzles(PuzzleConfig("maze:5", tmp_path / "maze", held_out=0.2, count=300))
    values, answers = np.asarray(puzzles.test.inputs), np.asarray(puzzles.test.labels)
    open_cells = values == np.bincount(values[values != answers]).argmax()
    share = float((values != answers)[open_cells].mean())
    entropy = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert cell_loss(puzzles) == pytest.approx(open_cells.mean() * entropy, rel=0.1)
