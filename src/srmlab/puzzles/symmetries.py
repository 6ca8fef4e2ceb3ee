"""The symmetries of puzzles: a board and its answer, changed together, are again a board and its answer.

    sudoku  digits × bands × rows in a band × stacks × columns in a stack × transposition, if boxes are square
    maze    the eight turns and flips of a square
    arc     turns and flips of the grids × colours but black × translation on the board

For sudokus and mazes a symmetry rearranges the cells and renames the values; any number of them are one
object of two arrays. ARC's change the grids that lie on the boards, which may be of different sizes.

`orbits` gives every puzzle a key that is the same for all its symmetries; so whatever is divided by this key
keeps a puzzle and its symmetries together. For mazes and ARC it is the least of all forms, and two puzzles
with one key are symmetries of each other. For sudokus that would be 3 million forms at 9×9; there the key is
a colouring of the puzzle, refined step by step (Weisfeiler and Leman): each cell, row, column, box, band,
stack and digit is given a number from the *set* of numbers around it, in which no order or name takes part.
Symmetries permute those sets, so they cannot change the key. Different puzzles might share one; that would
merely keep them on one side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from srmlab.data.batches import mix
from srmlab.puzzles.kinds import ARC_SIDE, BLACK, COLOURS, EDGE, PADDING, Kind, box_numbers

REFINEMENTS = 6  # of the colouring; a sudoku's parts are at most four steps apart


class Symmetry(Protocol):
    def apply(self, boards: np.ndarray) -> np.ndarray:
        """Boards [..., cells], changed."""
        ...

    def inverse(self) -> Symmetry: ...


@dataclass(frozen=True, eq=False)
class Rearrangement:
    """Symmetries that move whole cells and rename values, of sudokus and mazes; one or several at once."""

    cells: np.ndarray  # [..., cells] where each cell of the result comes from
    values: np.ndarray  # [..., values] what each value becomes

    def apply(self, boards: np.ndarray) -> np.ndarray:
        shape = np.broadcast_shapes(boards.shape[:-1], self.cells.shape[:-1])
        boards = np.broadcast_to(boards, (*shape, boards.shape[-1]))
        cells = np.broadcast_to(self.cells, (*shape, self.cells.shape[-1]))
        values = np.broadcast_to(self.values, (*shape, self.values.shape[-1]))
        moved = np.take_along_axis(boards, cells, -1).astype(np.int64)
        return np.take_along_axis(values, moved, -1).astype(boards.dtype)

    def inverse(self) -> Rearrangement:
        return Rearrangement(self.cells.argsort(-1), self.values.argsort(-1))


@dataclass(frozen=True, eq=False)
class GridChange:
    """A symmetry of ARC: the grids on the boards are turned, their colours renamed, their places moved."""

    turn: int  # 0 … 7: quarter turns, then flipped or not
    values: np.ndarray  # [12]
    before: tuple[int, int] = (0, 0)  # row and column where the grids begin …
    after: tuple[int, int] = (0, 0)  # … and will begin

    def apply(self, boards: np.ndarray) -> np.ndarray:
        flat = boards.reshape(-1, boards.shape[-1])
        changed = [place(self.values[turned(grid_of(b, self.before), self.turn)], self.after) for b in flat]
        return np.stack(changed).reshape(boards.shape).astype(boards.dtype)

    def inverse(self) -> GridChange:
        back = self.turn if self.turn >= 4 else (-self.turn) % 4  # a flip after turns undoes itself
        return GridChange(back, self.values.argsort(), self.after, self.before)


# --- drawing one at random ----------------------------------------------------------------------------------


def random_symmetries(kind: Kind, seed: int, numbers: np.ndarray) -> Rearrangement:
    """A symmetry for each of `numbers`, of a sudoku or a maze: a function of (seed, number) alone."""
    if kind.box is not None:
        return sudoku_symmetries(kind, draws(seed, numbers, sudoku_draws(kind)))
    turns = dihedral(kind.rows)[draws(seed, numbers, 1)[:, 0] % np.uint64(8)]
    return Rearrangement(turns, np.broadcast_to(np.arange(kind.vocab_size), (len(turns), kind.vocab_size)))


def draws(seed: int, numbers: np.ndarray, count: int) -> np.ndarray:
    """`count` random 64-bit numbers for each of `numbers`, [n, count]; each a hash of its place."""
    key = np.random.SeedSequence([seed, 0x50555A5A]).generate_state(1, np.uint64)
    own = mix(np.asarray(numbers).astype(np.uint64) ^ key)  # [n]
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return mix(own[:, None] + steps)


def sudoku_draws(kind: Kind) -> int:
    """How many random numbers one symmetry takes: for digits, rows and bands, columns and stacks, and one."""
    rows, columns = kind.box or (1, 1)
    return kind.rows + (kind.rows + kind.rows // rows) + (kind.rows + kind.rows // columns) + 1


def sudoku_symmetries(kind: Kind, random: np.ndarray) -> Rearrangement:
    """[n, draws] → n symmetries; a permutation is the order of random numbers."""
    assert kind.box is not None
    n, side = len(random), kind.rows
    digits, random = random[:, :side].argsort(1) + 2, random[:, side:]
    values = np.concatenate((np.broadcast_to([0, 1], (n, 2)), digits), 1)
    rows, random = lines(random, side, kind.box[0])
    columns, random = lines(random, side, kind.box[1])
    cells = rows[:, :, None] * side + columns[:, None, :]  # [n, side, side]
    if kind.box[0] == kind.box[1]:
        flipped = rows[:, None, :] * side + columns[:, :, None]
        cells = np.where((random[:, 0] & np.uint64(1)).astype(bool)[:, None, None], flipped, cells)
    return Rearrangement(cells.reshape(n, -1), values)


def lines(random: np.ndarray, side: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Orders of rows [n, side] that keep groups of `size` together, and the random numbers left over."""
    groups = random[:, : side // size].argsort(1)  # [n, groups]
    within = random[:, side // size : side // size + side].reshape(len(random), side // size, size).argsort(2)
    return (groups[:, :, None] * size + within).reshape(len(random), side), random[:, side // size + side :]


def dihedral(side: int) -> np.ndarray:
    """[8, side²]: the eight ways a square comes to lie on itself, as cells to read."""
    square = np.arange(side * side).reshape(side, side)
    return np.stack([turned(square, turn).reshape(-1) for turn in range(8)])


def turned(grid: np.ndarray, turn: int) -> np.ndarray:
    """Quarter turns, then transposed for 4 … 7."""
    quarter = np.rot90(grid, turn % 4)
    return quarter.T if turn >= 4 else quarter


# --- ARC's boards -------------------------------------------------------------------------------------------


def grid_of(board: np.ndarray, begin: tuple[int, int] = (0, 0)) -> np.ndarray:
    """The grid on a board [900], which begins there. Of a board that holds no proper grid (a model's answer),
    the largest rectangle from there on with nothing but colours in it, as HRM and TRM read one.
    """
    square = board.reshape(ARC_SIDE, ARC_SIDE)[begin[0] :, begin[1] :]
    widths = np.logical_and.accumulate(square >= BLACK, axis=1).sum(1)  # coloured cells that begin each row
    widths = np.minimum.accumulate(widths)  # and all rows above it
    rows = int((widths * np.arange(1, len(widths) + 1)).argmax()) + 1
    return square[:rows, : widths[rows - 1]]


def place(grid: np.ndarray, begin: tuple[int, int] = (0, 0)) -> np.ndarray:
    """A grid of values on a board [900], with its edge behind the last row and column where there is room."""
    board = np.full((ARC_SIDE, ARC_SIDE), PADDING, np.uint8)
    up, left = begin
    down, right = up + grid.shape[0], left + grid.shape[1]
    board[up:down, left:right] = grid
    board[down : down + 1, left:right] = EDGE
    board[up:down, right : right + 1] = EDGE
    return board.reshape(-1)


def arc_symmetry(seed: int, variant: int, number: int, pair: tuple[np.ndarray, np.ndarray]) -> GridChange:
    """Turn and colours by `variant` (0: none), the place of this pair of boards by `number` (0: unmoved)."""
    turn, values = 0, np.arange(BLACK + COLOURS)
    if variant:
        random = draws(seed, np.array([variant]), COLOURS)[0]
        turn = int(random[0] % np.uint64(8))
        values = np.concatenate((values[: BLACK + 1], random[1:].argsort() + BLACK + 1))
    before = begin_of(pair[0])
    if not number:
        return GridChange(turn, values, before, before)
    shapes = np.array([turned(grid_of(board, before), turn).shape for board in pair]).max(0)
    room = np.maximum(ARC_SIDE - shapes, 0) + 1
    random = draws(seed ^ 0x5EED, np.array([number]), 2)[0]
    down, right = (int(value % np.uint64(free)) for value, free in zip(random, room, strict=True))
    return GridChange(turn, values, before, (down, right))


def begin_of(board: np.ndarray) -> tuple[int, int]:
    """The row and column of the first coloured cell, where the grids of a pair begin."""
    return divmod(int((board >= BLACK).argmax()), ARC_SIDE)


# --- orbits -------------------------------------------------------------------------------------------------


def orbits(kind: Kind, inputs: np.ndarray, labels: np.ndarray) -> list[bytes]:
    """A key for every puzzle of [n, cells], the same for all its symmetries."""
    if kind.box is not None:
        return sudoku_orbits(kind, inputs, labels)
    if kind.family == "maze":
        forms = np.asarray(inputs)[:, dihedral(kind.rows)].astype(np.uint8)  # [n, 8, cells]
        return [min(form.tobytes() for form in puzzle) for puzzle in forms]
    return [arc_orbit(i, o) for i, o in zip(inputs, labels, strict=True)]


def arc_orbit(board: np.ndarray, answer: np.ndarray) -> bytes:
    """The least of eight forms in which the colours but black are named in the order they appear."""
    begin = begin_of(board)
    grids = grid_of(board, begin), grid_of(answer, begin)
    return min(arc_form(*(turned(grid, turn) for grid in grids)) for turn in range(8))


def arc_form(grid: np.ndarray, answer: np.ndarray) -> bytes:
    both = np.concatenate((grid.reshape(-1), answer.reshape(-1))).astype(int)
    names = {BLACK: 0}
    for value in both.tolist():
        names.setdefault(value, len(names))
    return bytes([*grid.shape, *answer.shape]) + bytes(names[value] for value in both.tolist())


def sudoku_orbits(kind: Kind, inputs: np.ndarray, labels: np.ndarray) -> list[bytes]:
    """128 bits of the refined colouring of the givens and the solution together."""
    parts = []
    for first in range(0, len(inputs), 4096):
        some = slice(first, first + 4096)
        parts += [refined(kind, np.asarray(inputs[some]), np.asarray(labels[some]), key) for key in (1, 2)]
    ordered = [np.concatenate(parts[start::2]) for start in (0, 1)] if parts else [np.empty(0, np.uint64)] * 2
    return [row.tobytes() for row in np.stack(ordered, 1)]


def refined(kind: Kind, inputs: np.ndarray, labels: np.ndarray, key: int) -> np.ndarray:
    """[n] numbers; sums over sets of mixed numbers, so that no order takes part."""
    assert kind.box is not None
    n, side, (high, wide) = len(inputs), kind.rows, kind.box
    square = high == wide  # then rows and columns are treated alike, for a transposition exchanges them
    row_key, column_key = np.uint64(3), np.uint64(3 if square else 5)
    given = (inputs != kind.blank).astype(np.uint64).reshape(n, side, side)
    digit = labels.reshape(n, side, side).astype(np.int64) - 2
    cell = mix(given + np.uint64(key * 1_000_003))
    digits = np.zeros((n, side), np.uint64)
    boxes = box_numbers(side)
    for _ in range(REFINEMENTS):
        sent = mix(cell)  # from a cell to the parts it is in
        rows, columns = sent.sum(2, dtype=np.uint64), sent.sum(1, dtype=np.uint64)  # [n, side]
        bands = mix(rows).reshape(n, side // high, high).sum(2, dtype=np.uint64).repeat(high, 1)
        stacks = mix(columns).reshape(n, side // wide, wide).sum(2, dtype=np.uint64).repeat(wide, 1)
        rows, columns = mix(mix(rows) + bands * row_key), mix(mix(columns) + stacks * column_key)
        flat = sent.reshape(n, -1)
        box = np.stack([flat[:, boxes == b].sum(1, dtype=np.uint64) for b in range(side)], 1)  # [n, boxes]
        for d in range(side):
            digits[:, d] = mix(np.where(digit == d, sent, np.uint64(0)).sum((1, 2), dtype=np.uint64))
        lines = mix(rows * row_key)[:, :, None] + mix(columns * column_key)[:, None, :]
        around = mix(box[:, boxes].reshape(n, side, side)) * np.uint64(7)
        named = np.take_along_axis(digits, digit.reshape(n, -1), 1).reshape(n, side, side) * np.uint64(11)
        cell = mix(cell + mix(lines) + around + named)
    return mix(cell).sum((1, 2), dtype=np.uint64)
