"""The kinds of puzzle: the shape of a board, what its numbers mean, which cells are to be filled.

A cell is a small number, as in the data of HRM and TRM; 0 is padding.

    sudoku:4x4 6x6 9x9   1 an empty cell, 2 … the digits 1 …
    maze:N               1 a wall, 2 an open cell, 3 the start, 4 the goal, 5 (answers only) the shortest way
    arc                  1 the edge behind a grid's last row and column, 2 … 11 the colours 0 … 9

    >>> kind = find_kind("sudoku:4x4")
    >>> kind.cells, kind.vocab_size
    (16, 6)
    >>> print(kind.drawing([1, 3, 2, 5, 2, 5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]))
    . 2 | 1 4
    1 4 | . .
    ----+----
    . . | . .
    . . | . .
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from srmlab.data import DataError

PADDING = 0
BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}  # rows and columns of a sudoku's box, by its number of digits
EMPTY = 1  # of a sudoku
WALL, OPEN, START, GOAL, WAY = 1, 2, 3, 4, 5  # of a maze
EDGE, BLACK, COLOURS = 1, 2, 10  # of an ARC grid
ARC_SIDE = 30
LEAST_MAZE, MOST_MAZE = 3, 64
KINDS = "sudoku:4x4, sudoku:6x6, sudoku:9x9, maze:N or arc"


@dataclass(frozen=True)
class Kind:
    """A kind of puzzle: the shape of its board and the meaning of its cells."""

    name: str
    rows: int
    columns: int
    symbols: str  # how a cell is printed, by its number
    blank: int | None = None  # the cells to be filled; None: all of them
    box: tuple[int, int] | None = None  # of a sudoku: its rows and columns

    @property
    def cells(self) -> int:
        return self.rows * self.columns

    @property
    def vocab_size(self) -> int:
        return len(self.symbols)

    @property
    def family(self) -> str:
        """sudoku, maze or arc."""
        return self.name.partition(":")[0]

    def unknown(self, inputs: np.ndarray) -> np.ndarray:
        """True where a cell is to be filled, of the inputs' shape."""
        return np.ones(inputs.shape, bool) if self.blank is None else inputs == self.blank

    def drawing(self, board: Sequence[int] | np.ndarray) -> str:
        """A board [cells] as lines of text; a sudoku with its boxes, ARC without what is outside."""
        grid = np.asarray(board).reshape(self.rows, self.columns)
        lines = []
        high, wide = self.box or (self.rows, self.columns)
        for row in range(self.rows):
            marks = [self.symbols[cell] for cell in grid[row].tolist()]
            parts = [" ".join(marks[at : at + wide]) for at in range(0, self.columns, wide)]
            lines.append(" | ".join(parts).rstrip())
            if (row + 1) % high == 0 and row + 1 < self.rows:
                width = 2 * wide - 1
                lines.append("-+-".join("-" * width for _ in parts))
        return "\n".join(lines).rstrip("\n")

    def line(self, board: Sequence[int] | np.ndarray) -> str:
        """A board [cells] as one line of symbols."""
        return "".join(self.symbols[cell] for cell in np.asarray(board).tolist())


def box_numbers(side: int) -> np.ndarray:
    """[cells] the box that each cell of a sudoku is in.

    >>> box_numbers(4)
    array([0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3])
    """
    high, wide = BOXES[side]
    rows, columns = np.divmod(np.arange(side * side), side)
    return rows // high * (side // wide) + columns // wide


def find_kind(name: str) -> Kind:
    """The kind of that name."""
    if name == "arc":
        return Kind(name, ARC_SIDE, ARC_SIDE, " |" + "0123456789")
    if found := re.fullmatch(r"sudoku:([469])x\1", name):
        side = int(found[1])
        return Kind(name, side, side, " ." + "123456789"[:side], blank=EMPTY, box=BOXES[side])
    if found := re.fullmatch(r"maze:(\d{1,4})", name):
        side = int(found[1])
        if not LEAST_MAZE <= side <= MOST_MAZE:
            raise DataError(
                f"{name}: a maze has {LEAST_MAZE} to {MOST_MAZE} cells on a side; "
                f"write maze:{LEAST_MAZE} to maze:{MOST_MAZE}"
            )
        return Kind(name, side, side, " #.SGo", blank=OPEN)
    raise DataError(f"no kind of puzzle is called {name!r}: write {KINDS}")
