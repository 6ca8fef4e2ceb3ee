"""The sudoku solver, against a search that knows nothing but the rules."""

from random import Random

import pytest

from srmlab.puzzles.files import MOVES
from srmlab.puzzles.sudoku import Undecided, make_grid, make_puzzle, rate, solve

BOX = {4: (2, 2), 6: (2, 3), 9: (3, 3)}


def meets(cell: int, other: int, side: int) -> bool:
    """Whether two cells share a row, a column or a box."""
    high, wide = BOX[side]
    (r, c), (s, d) = divmod(cell, side), divmod(other, side)
    return r == s or c == d or (r // high, c // wide) == (s // high, d // wide)


def brute_force(puzzle: list[int]) -> list[list[int]]:
    """Every solution: fill the first empty cell with each digit, and look at all pairs in the end."""
    side, cells = round(len(puzzle) ** 0.5), range(len(puzzle))
    if 0 not in puzzle:
        clash = any(puzzle[a] == puzzle[b] and meets(a, b, side) for a in cells for b in cells if a != b)
        return [] if clash else [puzzle]
    cell = puzzle.index(0)
    seen = {puzzle[other] for other in cells if meets(cell, other, side)}
    found = []
    for digit in set(range(1, side + 1)) - seen:
        found += brute_force([*puzzle[:cell], digit, *puzzle[cell + 1 :]])
    return found


def test_all_288_full_grids_are_found_from_the_empty_one():
    found = solve([0] * 16, most=1000)
    assert len(found) == 288
    assert sorted(found) == sorted(brute_force([0] * 16))


@pytest.mark.parametrize(("side", "givens"), [(4, 4), (4, 6), (6, 14), (6, 18)])
def test_solutions_are_those_of_brute_force(side, givens):
    for seed in range(12):
        random = Random(seed)
        grid = make_grid(random, side)
        kept = random.sample(range(side * side), givens)
        puzzle = [digit if cell in kept else 0 for cell, digit in enumerate(grid)]
        if seed % 3 == 0:  # a given that is wrong: often no solution
            puzzle[kept[0]] = puzzle[kept[0]] % side + 1
        assert sorted(solve(puzzle, most=10**6)) == sorted(brute_force(puzzle))


def test_a_published_hard_puzzle_is_solved():
    line = "4.....8.5.3..........7......2.....6.....8.4......1.......6.3.7.5..2.....1.4......"
    puzzle = [int(mark) for mark in line.replace(".", "0")]
    [solution] = solve(puzzle)
    assert all(given in (0, digit) for given, digit in zip(puzzle, solution, strict=True))
    for unit in range(9):
        assert set(solution[9 * unit : 9 * unit + 9]) == set(solution[unit::9]) == set(range(1, 10))


@pytest.mark.parametrize(("side", "count"), [(4, 60), (6, 20)])
def test_a_made_puzzle_has_the_one_solution_it_says(side, count):
    for seed in range(count):
        puzzle, solution = make_puzzle(Random(seed), side, side * side // 2)
        assert brute_force(puzzle) == [solution]
        assert puzzle.count(0) == side * side // 2


def test_a_made_9x9_puzzle_has_one_solution_and_cannot_lose_another_given():
    puzzle, solution = make_puzzle(Random(3), 9, 81)
    assert solve(puzzle) == [solution]
    for cell in range(81):
        if puzzle[cell]:
            assert len(solve([*puzzle[:cell], 0, *puzzle[cell + 1 :]])) == 2


def test_the_rating_counts_moves_and_is_at_least_the_empty_cells():
    easy, _ = make_puzzle(Random(0), 9, 20)
    hard, _ = make_puzzle(Random(0), 9, 81)
    assert rate(easy) == 20
    assert rate(hard) > hard.count(0)


def test_givens_that_contradict_each_other_have_no_solution():
    assert solve([1, 1] + [0] * 14) == []


@pytest.mark.parametrize(
    ("line", "rating"),
    [
        (
            "000000010400000000020000000000050407008000300001090000300400200050100000000806000",
            6819,
        ),  # 17 givens
        (
            "000000012008030000000000040120500000000004700060000000507000300000620000000100000",
            37391,
        ),  # 17 givens
        (
            "000000000000003085001020000000507000004000100090000000500000073002010000000040009",
            73817,
        ),  # 17 givens
        ("800000000003600000070090200050007000000045700000100030001000068008500010090000400", 18810),
    ],
)
def test_published_puzzles_are_decided_far_within_the_limit_of_an_import(line, rating):
    puzzle = [int(mark) for mark in line]
    assert len(solve(puzzle, limit=MOVES // 40)) == 1
    assert rate(puzzle) == rating


def test_a_search_stops_at_its_limit():
    puzzle, solution = make_puzzle(Random(3), 9, 30)
    assert solve(puzzle, limit=30) == [solution]
    with pytest.raises(Undecided):
        solve([0] * 81, limit=30)
