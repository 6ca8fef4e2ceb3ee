"""Symmetries: they keep puzzles valid, can be undone, and share one key."""

from functools import cache
from itertools import permutations, product
from random import Random

import numpy as np
import pytest

from srmlab.puzzles.generation import Wanted, generate
from srmlab.puzzles.kinds import BOXES, find_kind
from srmlab.puzzles.maze import only_way
from srmlab.puzzles.sudoku import make_puzzle, rate, solve
from srmlab.puzzles.symmetries import (
    arc_symmetry,
    grid_of,
    orbits,
    place,
    random_symmetries,
    turned,
)

SUDOKUS = ["sudoku:4x4", "sudoku:6x6", "sudoku:9x9"]


@cache
def some(name: str, count: int = 12):
    return generate(Wanted(find_kind(name), count=count), held_out=0)["train"]


def exact_form(puzzle: list[int], side: int) -> bytes:
    """The least form of a small sudoku under all its symmetries, one by one."""
    high, wide = BOXES[side]
    grid = np.array(puzzle).reshape(side, side)
    forms = []
    for rows, columns in product(orders(side, high), orders(side, wide)):
        moved = grid[np.ix_(rows, columns)]
        for form in (moved, moved.T) if high == wide else (moved,):
            names: dict[int, int] = {0: 0}
            forms.append(bytes(names.setdefault(v, len(names)) for v in form.reshape(-1).tolist()))
    return min(forms)


def orders(side: int, size: int) -> list[list[int]]:
    groups = [range(start, start + size) for start in range(0, side, size)]
    return [
        [row for group in ordered for row in group]
        for arranged in permutations(groups)
        for ordered in product(*(permutations(group) for group in arranged))
    ]


@pytest.mark.parametrize("name", SUDOKUS)
def test_a_changed_sudoku_is_solved_by_its_changed_solution_alone(name):
    boards, kind = some(name, 6), find_kind(name)
    change = random_symmetries(kind, 5, np.arange(6))
    inputs, labels = change.apply(boards.inputs), change.apply(boards.labels)
    assert (inputs != boards.inputs).any(axis=1).all()
    for puzzle, solution in zip(inputs, labels, strict=True):
        assert solve((puzzle.astype(int) - 1).tolist()) == [(solution.astype(int) - 1).tolist()]


def test_a_changed_maze_has_its_changed_way_as_its_only_shortest_one():
    boards, kind = some("maze:8"), find_kind("maze:8")
    change = random_symmetries(kind, 1, np.arange(12))
    inputs, labels = change.apply(boards.inputs), change.apply(boards.labels)
    for puzzle, answer, steps in zip(inputs, labels, boards.ratings, strict=True):
        way = only_way(puzzle.tolist(), 8)
        assert way is not None
        assert len(way) - 1 == steps
        assert set(way[1:-1]) == set(np.flatnonzero(answer == 5).tolist())


@pytest.mark.parametrize("name", [*SUDOKUS, "maze:7"])
def test_the_inverse_undoes_a_symmetry(name):
    boards, kind = some(name), find_kind(name)
    change = random_symmetries(kind, 2, np.arange(100, 112))
    assert np.array_equal(change.inverse().apply(change.apply(boards.inputs)), boards.inputs)


def test_a_symmetry_is_a_function_of_seed_and_number():
    kind = find_kind("sudoku:9x9")
    alone = random_symmetries(kind, 7, np.array([40]))
    among = random_symmetries(kind, 7, np.arange(30, 50))
    assert np.array_equal(alone.cells[0], among.cells[10])
    assert not np.array_equal(random_symmetries(kind, 8, np.array([40])).cells, alone.cells)


@pytest.mark.parametrize("name", [*SUDOKUS, "maze:7"])
def test_all_symmetries_of_a_puzzle_have_one_key(name):
    boards, kind = some(name, 5), find_kind(name)
    for seed in range(8):
        change = random_symmetries(kind, seed, np.arange(5))
        changed = orbits(kind, change.apply(boards.inputs), change.apply(boards.labels))
        assert changed == orbits(kind, boards.inputs, boards.labels)


@pytest.mark.parametrize(("side", "count", "empty"), [(4, 400, (4, 12)), (6, 12, (3, 24))])
def test_sudokus_have_one_key_exactly_if_one_is_a_symmetry_of_the_other(side, count, empty):
    """The key is an invariant; on the puzzles we make it also tells orbits apart, as the exact form does."""
    kind = find_kind(f"sudoku:{side}x{side}")
    made = [make_puzzle(Random(k), side, Random(-k).randint(*empty)) for k in range(count)]
    inputs, labels = (np.array(boards) + 1 for boards in zip(*made, strict=True))
    keys = orbits(kind, inputs, labels)
    forms = [exact_form(puzzle, side) for puzzle, _ in made]
    assert len(set(zip(keys, forms, strict=True))) == len(set(keys)) == len(set(forms))


def test_every_symmetry_of_the_4x4_group_is_drawn():
    kind = find_kind("sudoku:4x4")
    change = random_symmetries(kind, 0, np.arange(4000))
    assert len({row.tobytes() for row in change.cells}) == 128
    assert len({row.tobytes() for row in change.values}) == 24


def test_six_by_six_is_never_transposed():
    kind = find_kind("sudoku:6x6")
    cells = random_symmetries(kind, 0, np.arange(200)).cells.reshape(200, 6, 6)
    assert (cells // 6 == cells[:, :, :1] // 6).all()  # a row comes from one row


def test_ratings_hardly_depend_on_how_a_puzzle_is_turned():
    """An easy puzzle has no choices to make, so its rating is the same for every symmetry."""
    kind, boards = find_kind("sudoku:4x4"), some("sudoku:4x4", 20)
    changed = random_symmetries(kind, 3, np.arange(20)).apply(boards.inputs).astype(int) - 1
    assert [rate(puzzle.tolist()) for puzzle in changed] == boards.ratings.tolist()


@pytest.mark.parametrize("variant", range(6))
@pytest.mark.parametrize("number", [0, 1, 2])
def test_arc_grids_of_two_sizes_are_changed_together_and_back(variant, number):
    random = np.random.default_rng(variant)
    grids = random.integers(2, 12, (3, 7)), random.integers(2, 12, (5, 30))
    boards = np.stack([place(grid) for grid in grids])
    change = arc_symmetry(0, variant, number, (boards[0], boards[1]))
    changed = change.apply(boards)
    for before, after in zip(grids, changed, strict=True):
        expected = change.values[turned(before, change.turn)]
        assert np.array_equal(grid_of(after, change.after), expected)
    assert np.array_equal(change.inverse().apply(changed), boards)
    assert (change.turn, change.after) == (0, (0, 0)) or variant or number
    assert change.values[2] == 2  # black stays


@pytest.mark.parametrize("seed", range(8))
def test_the_grid_of_an_answer_is_the_largest_rectangle_of_colours_at_its_corner(seed):
    """Of answers with holes and torn edges, by trying all rectangles; a tie goes to the fewest rows."""
    random = np.random.default_rng(seed)
    board = random.integers(2, 12, (30, 30))
    board[random.random((30, 30)) < 0.02 * seed] = 1
    whole = [(r, c) for r in range(1, 31) for c in range(1, 31) if (board[:r, :c] >= 2).all()]
    found = grid_of(board.reshape(-1))
    assert found.size == max((r * c for r, c in whole), default=0)
    if whole:
        rows, columns = max(whole, key=lambda size: (size[0] * size[1], -size[0]))
        assert np.array_equal(found, board[:rows, :columns])


def test_an_arc_answer_with_a_hole_is_not_the_grid_with_black_there():
    grid = np.full((3, 3), 5)
    grid[1, 1] = 2
    holed = place(grid)
    holed[31] = 0
    same = arc_symmetry(0, 0, 0, (place(grid), place(grid)))
    assert np.array_equal(same.inverse().apply(place(grid)), place(grid))
    assert not np.array_equal(same.inverse().apply(holed), place(grid))


def test_arc_pairs_have_one_key_exactly_if_they_are_symmetries():
    random = np.random.default_rng(0)
    kind = find_kind("arc")
    boards = np.stack([place(random.integers(2, 5, (3, 4))) for _ in range(20)])
    answers = np.stack([place(random.integers(2, 5, (2, 2))) for _ in range(20)])
    changed = [
        arc_symmetry(9, k + 1, 0, (b, a)) for k, (b, a) in enumerate(zip(boards, answers, strict=True))
    ]
    keys = orbits(kind, boards, answers)
    same = orbits(
        kind,
        np.stack([c.apply(b) for c, b in zip(changed, boards, strict=True)]),
        np.stack([c.apply(a) for c, a in zip(changed, answers, strict=True)]),
    )
    assert keys == same
    assert len(set(keys)) == 20
