"""Mazes: passages grown from one cell, some loops, and exactly one shortest way from start to goal.

>>> from random import Random
>>> from srmlab.puzzles.kinds import find_kind
>>> board, answer, steps = make_maze(Random(4), 6)
>>> steps
11
>>> print(find_kind("maze:6").drawing(answer))
. . . . # S
# . # # o o
. . # o o #
. # o o # .
. # o # # .
. . o o o G
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import NamedTuple

from srmlab.puzzles.kinds import GOAL, OPEN, START, WALL, WAY

LOOPS = 0.03  # of the walls, opened again where two passages meet


def make_maze(random: Random, side: int) -> tuple[list[int], list[int], int]:
    """A maze [side²], the same with its shortest way, and the steps of that way."""
    while True:
        cells = grow(random, side)
        walls = [cell for cell in range(side * side) if cells[cell] == WALL]
        for cell in random.sample(walls, round(LOOPS * len(walls))):
            cells[cell] = OPEN
        start, goal = random.sample([cell for cell in range(side * side) if cells[cell] == OPEN], 2)
        cells[start], cells[goal] = START, GOAL
        way = only_way(cells, side)
        if way is not None:
            answer = list(cells)
            for cell in way[1:-1]:
                answer[cell] = WAY
            return cells, answer, len(way) - 1


def grow(random: Random, side: int) -> list[int]:
    """Passages without a loop: a cell is opened if just one beside it is open, the newest passages first."""
    cells = [WALL] * (side * side)
    first = random.randrange(side * side)
    edge = [first]
    cells[first] = OPEN
    while edge:
        at = len(edge) - 1 if random.random() < 0.7 else random.randrange(len(edge))
        around = [
            cell
            for cell in beside(side)[edge[at]]
            if cells[cell] == WALL and sum(cells[next] == OPEN for next in beside(side)[cell]) == 1
        ]
        if around:
            cell = random.choice(around)
            cells[cell] = OPEN
            edge.append(cell)
        else:
            edge.pop(at)
    return cells


def only_way(cells: Sequence[int], side: int) -> list[int] | None:
    """The shortest way from start to goal, both included; None if there is none, or another as short."""
    count, way = shortest_ways(cells, side)
    return way if count == 1 else None


def shortest_ways(cells: Sequence[int], side: int) -> tuple[int, list[int]]:
    """How many shortest ways lead from start to goal, and one of them, both ends included."""
    start, goal = cells.index(START), cells.index(GOAL)
    found = searched([cell == WALL for cell in cells], side, start, goal)
    if goal not in found.ways:
        return 0, []
    way = [goal]
    while way[-1] != start:
        way.append(found.comes_from[way[-1]])
    return found.ways[goal], way[::-1]


class Searched(NamedTuple):
    """By cell that was reached: how many steps it takes, in how many ways, and the cell before it."""

    steps: dict[int, int]
    ways: dict[int, int]
    comes_from: dict[int, int]


def searched(walls: Sequence[bool], side: int, start: int, goal: int) -> Searched:
    """Outwards from the start, one step at a time, until the goal is reached."""
    found = Searched({start: 0}, {start: 1}, {start: start})
    queue = deque([start])
    while queue and (cell := queue.popleft()) != goal:
        for next in (next for next in beside(side)[cell] if not walls[next]):
            if next not in found.steps:
                found.steps[next], found.ways[next], found.comes_from[next] = found.steps[cell] + 1, 0, cell
                queue.append(next)
            if found.steps[next] == found.steps[cell] + 1:
                found.ways[next] += found.ways[cell]
    return found


@cache
def beside(side: int) -> list[list[int]]:
    """The cells above, below, left and right of each."""
    found = []
    for cell in range(side * side):
        row, column = divmod(cell, side)
        around = ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
        found.append([r * side + c for r, c in around if 0 <= r < side and 0 <= c < side])
    return found
