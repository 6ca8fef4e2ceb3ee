"""Sudokus: a solver, how hard a puzzle is for it, and puzzles with exactly one solution.

The solver keeps one integer for each digit, with a bit for every cell where the digit may still go. Forced
moves are made until there are none (a cell with one digit left; a digit with one cell left in a row, column
or box); then it tries the digits of a cell with the fewest.

    >>> puzzle = [0, 0, 0, 4,  3, 0, 0, 0,  0, 0, 1, 0,  0, 2, 0, 0]
    >>> [solution] = solve(puzzle)
    >>> solution
    [2, 1, 3, 4, 3, 4, 2, 1, 4, 3, 1, 2, 1, 2, 4, 3]
    >>> rate(puzzle)
    12

How hard a puzzle is, is said in moves of the plainest search, which only looks at single cells: all that it
writes into cells, on the way to the solution and in branches that fail, until it has proved that there is no
other. An easy puzzle costs as many moves as it has empty cells; a hard one more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random

from srmlab.puzzles.kinds import box_numbers


@dataclass(frozen=True)
class Geometry:
    """Masks of cells; bit c is cell c, in rows."""

    side: int
    units: tuple[int, ...]  # every row, column and box
    peers: tuple[int, ...]  # of each cell: itself and those that share a unit with it

    @property
    def cells(self) -> int:
        return self.side * self.side


@cache
def geometry(side: int) -> Geometry:
    cells = range(side * side)
    rows, columns = [cell // side for cell in cells], [cell % side for cell in cells]
    divisions = (rows, columns, box_numbers(side).tolist())
    units = [sum(1 << cell for cell in cells if part[cell] == k) for part in divisions for k in range(side)]
    peers = []
    for cell in cells:
        seen = 0
        for unit in units:
            if unit >> cell & 1:
                seen |= unit
        peers.append(seen)
    return Geometry(side, tuple(units), tuple(peers))


class Undecided(Exception):
    """A search was stopped at its limit of moves."""


@dataclass
class Search:
    """A depth-first search over one puzzle; counts the cells it fills."""

    shape: Geometry
    lines: bool = True  # also look for digits with one cell left in a unit
    random: Random | None = None  # the order in which digits are tried
    limit: int | None = None  # moves after which to give up
    moves: int = 0
    filled: list[int] = field(default_factory=list)  # each digit's cells, along the present branch

    def start(self, puzzle: Sequence[int]) -> list[int] | None:
        """Where each digit may go once the givens are in; None if they contradict each other."""
        open_to = [(1 << self.shape.cells) - 1] * self.shape.side
        self.filled = [0] * self.shape.side
        for cell, digit in enumerate(puzzle):
            if digit and not self.fill(open_to, digit - 1, cell):
                return None
        self.moves = 0
        return open_to

    def fill(self, open_to: list[int], digit: int, cell: int) -> bool:
        bit = 1 << cell
        if not open_to[digit] & bit:
            return False
        self.moves += 1
        for other in range(self.shape.side):
            open_to[other] &= ~bit
        open_to[digit] &= ~self.shape.peers[cell]
        self.filled[digit] |= bit
        return True

    def solutions(self, open_to: list[int]) -> Iterator[list[int]]:
        """Every solution, as the masks of each digit's cells."""
        if self.limit is not None and self.moves > self.limit:
            raise Undecided
        choices = self.force(open_to)
        if choices is None:
            return
        if not choices:
            yield list(self.filled)
            return
        before = list(self.filled)
        for digit, cell in choices:
            self.filled = list(before)
            branch = list(open_to)
            self.fill(branch, digit, cell)
            yield from self.solutions(branch)

    def force(self, open_to: list[int]) -> list[tuple[int, int]] | None:
        """Make the forced moves. What may be tried next: the (digit, cell) of a cell; [] when all are filled;
        None when something has no place left.
        """
        whole = (1 << self.shape.cells) - 1
        while True:
            done = 0
            for mask in self.filled:
                done |= mask
            if done == whole:
                return []
            once = twice = thrice = 0
            for mask in open_to:
                thrice |= twice & mask
                twice |= once & mask
                once |= mask
            if once | done != whole:
                return None
            single = once & ~twice
            if single:
                if not self.fill_singles(open_to, single):
                    return None
                continue
            moved = self.lines and self.fill_lines(open_to)
            if moved is None:
                return None
            if not moved:
                return self.choices(open_to, twice & ~thrice, once)

    def fill_singles(self, open_to: list[int], single: int) -> bool:
        for digit in range(self.shape.side):
            cells = open_to[digit] & single
            while cells:
                bit = cells & -cells
                if not self.fill(open_to, digit, bit.bit_length() - 1):
                    return False  # another single of this digit sees it
                cells ^= bit
        return True

    def fill_lines(self, open_to: list[int]) -> bool | None:
        """Whether a digit had one cell left in a unit; None if one has none."""
        moved = False
        for digit in range(self.shape.side):
            for unit in self.shape.units:
                cells = open_to[digit] & unit
                if not cells:
                    if not self.filled[digit] & unit:
                        return None
                elif not cells & (cells - 1):
                    self.fill(open_to, digit, cells.bit_length() - 1)
                    moved = True
        return moved

    def choices(self, open_to: list[int], pairs: int, some: int) -> list[tuple[int, int]]:
        """The digits of the first cell with two, or else of the first with fewest."""
        if pairs:
            cell = (pairs & -pairs).bit_length() - 1
        else:
            cells = [cell for cell in range(self.shape.cells) if some >> cell & 1]
            cell = min(cells, key=lambda c: sum(mask >> c & 1 for mask in open_to))
        found = [(digit, cell) for digit, mask in enumerate(open_to) if mask >> cell & 1]
        if self.random is not None:
            self.random.shuffle(found)
        return found


def solve(puzzle: Sequence[int], most: int = 2, limit: int | None = None) -> list[list[int]]:
    """Up to `most` solutions of a puzzle of 16, 36 or 81 digits, 0 for an empty cell.

    With a `limit`, a search that takes more moves is `Undecided`.
    """
    shape = geometry_of(puzzle)
    search = Search(shape, limit=limit)
    open_to = search.start(puzzle)
    found: list[list[int]] = []
    if open_to is None:
        return found
    for masks in search.solutions(open_to):
        found.append(digits_of(masks, shape))
        if len(found) == most:
            break
    return found


def rate(puzzle: Sequence[int]) -> int:
    """Moves of the plain search until every branch has ended."""
    search = Search(geometry_of(puzzle), lines=False)
    open_to = search.start(puzzle)
    if open_to is not None:
        for _ in search.solutions(open_to):
            pass
    return search.moves


def geometry_of(puzzle: Sequence[int]) -> Geometry:
    return geometry(round(len(puzzle) ** 0.5))


def digits_of(masks: Sequence[int], shape: Geometry) -> list[int]:
    digits = [0] * shape.cells
    for number, mask in enumerate(masks, 1):
        while mask:
            bit = mask & -mask
            digits[bit.bit_length() - 1] = number
            mask ^= bit
    return digits


# --- making puzzles -----------------------------------------------------------------------------------------


def make_grid(random: Random, side: int) -> list[int]:
    """A full grid: a random first row, then a search that tries digits in random order."""
    search = Search(geometry(side), random=random)
    first = random.sample(range(1, side + 1), side)
    open_to = search.start(first + [0] * (side * (side - 1)))
    assert open_to is not None
    return digits_of(next(search.solutions(open_to)), search.shape)


def make_puzzle(random: Random, side: int, empty: int) -> tuple[list[int], list[int]]:
    """A puzzle with exactly one solution, and the solution; `empty` cells are cleared, or as many as can be.

    Cells are cleared in random order. One is left if the puzzle would then have a solution with another digit
    in it; as there was one solution before, that is the only way to get a second.
    """
    solution = make_grid(random, side)
    puzzle = list(solution)
    for cell in random.sample(range(side * side), side * side):
        if empty == 0:
            break
        puzzle[cell] = 0
        if has_other(puzzle, cell, solution[cell], side):
            puzzle[cell] = solution[cell]
        else:
            empty -= 1
    return puzzle, solution


def has_other(puzzle: Sequence[int], cell: int, digit: int, side: int) -> bool:
    """Whether the puzzle has a solution with another digit than this in that cell."""
    search = Search(geometry(side))
    open_to = search.start(puzzle)
    assert open_to is not None
    open_to[digit - 1] &= ~(1 << cell)
    return next(search.solutions(open_to), None) is not None
