"""Puzzles → boards → batches: sudokus, mazes and ARC, in the format of HRM and TRM.

    puzzles  = prepare_puzzles(PuzzleConfig("sudoku:6x6", Path("data/sudoku6")))
    puzzles  = open_puzzles("data/sudoku6")                # verified: a damaged file is refused
    examples = PuzzleBatches(puzzles, seed=0)
    batch    = examples.batch(first=0, count=64)           # a function of (seed, index), symmetry included
    for batch in evaluation_puzzles(puzzles, batch_size=64): ...

What a user can cause is a `DataError`, one line that names the fix.
"""

from srmlab.puzzles.batches import PuzzleBatch, PuzzleBatches, evaluation_puzzles, variant_of
from srmlab.puzzles.folder import Boards, Puzzles, is_puzzles, open_puzzles
from srmlab.puzzles.kinds import Kind, find_kind
from srmlab.puzzles.preparation import PuzzleConfig, is_puzzle_source, prepare_puzzles

__all__ = [
    "Boards",
    "Kind",
    "PuzzleBatch",
    "PuzzleBatches",
    "PuzzleConfig",
    "Puzzles",
    "evaluation_puzzles",
    "find_kind",
    "is_puzzle_source",
    "is_puzzles",
    "open_puzzles",
    "prepare_puzzles",
    "variant_of",
]
