"""Problems with one right answer, as plain text: `question=answer`.

A task is a function of a random generator and a difficulty. The difficulty counts how many steps must follow
one another, or how much is unknown:

    addition      digits of the numbers; the sum is written with its last digit first
    permutations  permutations applied one after the other
    hops          arrows followed
    sudoku        empty cells of a 4×4 grid with one solution
    maze          side of a square with walls; the answer is the length of the shortest way

A question has no "=" in it and an answer begins with a letter or a digit, so every tokenizer of ours begins a
new token with the answer.

    >>> TASKS["addition"].make(Random(0), 2)
    Problem(question='59+63', answer='221')
    >>> next(problems("hops", difficulty=1)).text
    'k>i l>h f>j g>d i>c j>e e>k h>a c>l a>g d>b b>f c1=l'
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from random import Random

import numpy as np

from srmlab.data import ANSWER
from srmlab.errors import UserError, unknown, written_anew
from srmlab.puzzles.maze import searched
from srmlab.puzzles.sudoku import solve


@dataclass(frozen=True)
class Problem:
    """A question with one right answer."""

    question: str
    answer: str

    def __post_init__(self) -> None:
        if ANSWER in self.question:  # the loss on answers would count what follows it
            raise UserError(
                f"question {self.question!r}: {ANSWER!r} stands before the answer only; write it without"
            )
        if not self.answer:
            raise UserError(f"question {self.question!r} has no answer: give it one of a character or more")

    @property
    def text(self) -> str:
        return f"{self.question}{ANSWER}{self.answer}"


@dataclass(frozen=True)
class Task:
    """A kind of problem, at several difficulties."""

    make: Callable[[Random, int], Problem]
    counts: str  # what the difficulty counts
    least: int
    most: int
    usual: tuple[int, int]  # the difficulties of a corpus, if none are asked for

    def check(self, name: str, difficulty: int) -> None:
        if not self.least <= difficulty <= self.most:
            raise UserError(
                f"{name} of difficulty {difficulty}: it counts {self.counts}, {self.least} to {self.most}"
            )


def problems(name: str, difficulty: int, seed: int = 0) -> Iterator[Problem]:
    """Endlessly many problems of one difficulty; the n-th is the same in every call."""
    task = find_task(name)
    task.check(name, difficulty)
    number = 0
    while True:
        yield task.make(Random(f"{name} {difficulty} {seed} {number}"), difficulty)
        number += 1


# --- the tasks ----------------------------------------------------------------------------------------------


def addition(random: Random, digits: int) -> Problem:
    """The sum's last digit comes first: a digit then depends on two digits and a carry that is known."""
    least = 10 ** (digits - 1) if digits > 1 else 0
    a, b = (random.randrange(least, 10**digits) for _ in range(2))
    return Problem(f"{a}+{b}", str(a + b)[::-1])


def permutations(random: Random, count: int) -> Problem:
    """Words that are arrangements of abcde: each says which letter of the last arrangement goes where."""
    words = ["".join(random.sample("abcde", 5)) for _ in range(count)]
    state = "abcde"
    for word in words:
        state = "".join(state["abcde".index(letter)] for letter in word)
    return Problem(" ".join(words), state)


RING = "abcdefghijkl"


def hops(random: Random, count: int) -> Problem:
    """Follow the arrows of one ring of 12 letters, half way round at most: no way back is shorter."""
    ring = random.sample(RING, len(RING))
    arrows = [f"{a}>{b}" for a, b in zip(ring, [*ring[1:], ring[0]], strict=True)]
    random.shuffle(arrows)
    start = random.randrange(len(ring))
    return Problem(f"{' '.join(arrows)} {ring[start]}{count}", ring[(start + count) % len(ring)])


def sudoku(random: Random, empty: int) -> Problem:
    """A grid and its empty cells, drawn until there is one solution: all such puzzles are equally likely."""
    grids = sudoku_grids()
    while True:
        grid = grids[random.randrange(len(grids))]  # [16]
        hidden = random.sample(range(16), empty)
        clues = [place for place in range(16) if place not in hidden]
        if (grids[:, clues] == grid[clues]).all(axis=1).sum() == 1:
            answer = "".join(map(str, grid))
            shown = "".join("." if place in hidden else answer[place] for place in range(16))
            return Problem(in_rows(shown, 4), in_rows(answer, 4))


@cache
def sudoku_grids() -> np.ndarray:
    """The full grids in order, [288, 16]: every row, column and 2×2 box holds 1 2 3 4."""
    return np.array(sorted(solve([0] * 16, most=288)), np.uint8)


def maze(random: Random, side: int) -> Problem:
    """From S to E, up, down, left or right, around the walls #, which fill three cells in ten."""
    while True:
        cells = ["#" if random.random() < 0.3 else "." for _ in range(side * side)]
        start, end = random.sample(range(side * side), 2)
        cells[start], cells[end] = "S", "E"
        length = shortest_way("".join(cells), side)
        if length is not None:
            return Problem(in_rows("".join(cells), side), str(length))


def shortest_way(cells: str, side: int) -> int | None:
    """Steps from S to E; None if there is no way."""
    end = cells.index("E")
    return searched([cell == "#" for cell in cells], side, cells.index("S"), end).steps.get(end)


def in_rows(cells: str, side: int) -> str:
    """
    >>> in_rows("abcd", 2)
    'ab cd'
    """
    return " ".join(cells[start : start + side] for start in range(0, len(cells), side))


# --- by name ------------------------------------------------------------------------------------------------

TASKS: dict[str, Task] = {
    "addition": Task(addition, "digits", 1, 32, (1, 4)),
    "permutations": Task(permutations, "permutations", 1, 32, (1, 4)),
    "hops": Task(hops, "arrows to follow", 1, 6, (1, 6)),
    "sudoku": Task(sudoku, "empty cells", 1, 12, (1, 8)),
    "maze": Task(maze, "cells on a side", 2, 12, (3, 6)),
}


def register(name: str, task: Task) -> None:
    """Register your own task, for `srmlab prepare task:NAME` and `srmlab solve`, in place of an earlier
    version of itself.
    """
    if not name.isidentifier():
        raise UserError(f"a task called {name!r}: use letters, digits and underscores")
    if name in TASKS and not written_anew(TASKS[name].make, task.make):
        raise UserError(f"there is already a task called {name!r}: choose another name")
    TASKS[name] = task


def find_task(name: str) -> Task:
    """A task by its name."""
    if name not in TASKS:
        raise unknown("task", name, TASKS, own=True)
    return TASKS[name]
