"""Making puzzles: so many different ones, none a symmetry of another, dealt to training and test.

Puzzle number k is a function of (kind, seed, k). It is kept if no symmetry of it was drawn before, and goes
to the side that the hash of its orbit says: a puzzle and its symmetries are on one side for ever, whatever
the seed and however many are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

import numpy as np

from srmlab.data import DataError
from srmlab.data.corpora import text_digest
from srmlab.data.preparation import split_of
from srmlab.puzzles.folder import Boards
from srmlab.puzzles.kinds import EMPTY, Kind
from srmlab.puzzles.maze import make_maze
from srmlab.puzzles.sudoku import make_puzzle, rate
from srmlab.puzzles.symmetries import orbits

COUNT = 2000
EMPTY_CELLS = {4: (6, 12), 6: (14, 26), 9: (40, 58)}  # usual numbers of empty cells, by side
PATIENCE = 2000  # draws without a new puzzle before there are taken to be no more
CHUNK = 50  # puzzles between two reports

Example = tuple[list[int], list[int], int]  # board, answer, rating


@dataclass(frozen=True)
class Range:
    """Whole numbers low … high."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str, name: str) -> Range:
        """
        >>> Range.parse("6-12", "--empty")
        Range(low=6, high=12)
        """
        low, _, high = text.partition("-")
        if not low.isdecimal() or (high and not high.isdecimal()) or int(high or low) < int(low):
            raise DataError(f"{name} {text}: write LOW-HIGH, such as 6-12, or one number")
        return cls(int(low), int(high or low))

    def __contains__(self, number: int) -> bool:
        return self.low <= number <= self.high


@dataclass(frozen=True)
class Wanted:
    """Which puzzles to make."""

    kind: Kind
    count: int = COUNT
    seed: int = 0
    empty: Range | None = None  # empty cells of a sudoku; None: the usual
    rating: Range | None = None  # None: any

    def __post_init__(self) -> None:
        if self.count < 1:
            raise DataError(f"{self.count} puzzles: ask for 1 or more")
        if self.empty is not None and self.kind.box is None:
            raise DataError(f"--empty is for sudokus, not for {self.kind.name}: leave it out")
        if self.empty is not None and not 1 <= self.empty.low <= self.empty.high < self.kind.cells:
            raise DataError(
                f"--empty {self.empty.low}-{self.empty.high}: give numbers from 1 to {self.kind.cells - 1}"
            )

    @property
    def source(self) -> str:
        parts = [f"{self.kind.name} {self.count} seed {self.seed}"]
        parts += [f"empty {self.empty.low}-{self.empty.high}"] if self.empty else []
        parts += [f"rating {self.rating.low}-{self.rating.high}"] if self.rating else []
        return ", ".join(parts)

    def fits(self, example: Example) -> bool:
        """Whether it is within the ranges asked for: not every sudoku can be emptied so far."""
        board, _, rating = example
        return (self.empty is None or board.count(EMPTY) in self.empty) and (
            self.rating is None or rating in self.rating
        )


def make(wanted: Wanted, random: Random) -> Example:
    side = wanted.kind.rows
    if wanted.kind.family == "maze":
        return make_maze(random, side)
    low, high = (wanted.empty.low, wanted.empty.high) if wanted.empty else EMPTY_CELLS[side]
    puzzle, solution = make_puzzle(random, side, random.randint(low, high))
    return [digit + EMPTY for digit in puzzle], [digit + EMPTY for digit in solution], rate(puzzle)


def generate(
    wanted: Wanted, held_out: float, report: Callable[[int], None] = lambda _: None
) -> dict[str, Boards]:
    """Up to `count` puzzles of different orbits, by side; fewer if a long search finds no more."""
    seen: set[bytes] = set()
    kept: dict[str, list[Example]] = {"train": [], "test": []}
    number = idle = 0  # puzzles drawn; those since the last new one
    chunk = min(CHUNK, wanted.count)
    while len(seen) < wanted.count and idle < PATIENCE + 3 * len(seen):
        names = [f"{wanted.kind.name} {wanted.seed} {k}" for k in range(number, number + chunk)]
        some = [example for name in names if wanted.fits(example := make(wanted, Random(name)))]
        number, idle = number + chunk, idle + chunk
        for key, example in zip(keys(wanted.kind, some), some, strict=True):
            if key not in seen and len(seen) < wanted.count:
                idle = 0
                seen.add(key)
                kept[side_of(key, held_out)].append(example)
        report(len(seen))
    if not seen:
        raise DataError(f"{wanted.source}: no such puzzle in {number:,} draws; widen the range")
    return {side: as_boards(wanted.kind, examples) for side, examples in kept.items()}


def keys(kind: Kind, examples: Iterable[Example]) -> list[bytes]:
    boards = as_boards(kind, list(examples))
    return orbits(kind, boards.inputs, boards.labels)


def side_of(key: bytes, held_out: float) -> str:
    """The side of a puzzle, by the hash of its orbit alone."""
    return "test" if split_of(text_digest(key), held_out) == "val" else "train"


def as_boards(kind: Kind, examples: list[Example]) -> Boards:
    inputs = np.array([board for board, _, _ in examples], np.uint8).reshape(-1, kind.cells)
    labels = np.array([answer for _, answer, _ in examples], np.uint8).reshape(-1, kind.cells)
    return Boards.single(inputs, labels, np.array([rating for _, _, rating in examples], np.int32))
