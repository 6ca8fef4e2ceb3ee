"""The problems: each answer is found again another way, slow and obvious."""

from __future__ import annotations

import hashlib
from itertools import islice, permutations, product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srmlab.data import byte_tokenizer, train_bpe
from srmlab.errors import UserError
from srmlab.tasks import TASKS, Problem, Task, find_task, problems, register
from srmlab.tasks.problems import sudoku_grids

SEEDS = st.integers(0, 2**64)


def difficulties(name: str) -> st.SearchStrategy[int]:
    return st.integers(TASKS[name].least, TASKS[name].most)


def make(name: str, seed: int, difficulty: int) -> Problem:
    return TASKS[name].make(Random(seed), difficulty)


@given(SEEDS, difficulties("addition"))
def test_a_sum_read_backwards_is_the_column_addition_of_the_numbers(seed, digits):
    problem = make("addition", seed, digits)
    a, b = problem.question.split("+")
    assert len(a) == len(b) == digits
    written, carry = "", 0
    for x, y in zip(reversed(a), reversed(b), strict=True):
        carry, digit = divmod(int(x) + int(y) + carry, 10)
        written += str(digit)
    assert problem.answer == written + ("1" if carry else "")


@given(SEEDS, difficulties("permutations"))
def test_permutations_multiply_as_matrices(seed, count):
    problem = make("permutations", seed, count)
    words = problem.question.split()
    assert len(words) == count
    state = np.arange(5)
    for word in words:
        matrix = np.zeros((5, 5), int)
        matrix[range(5), ["abcde".index(letter) for letter in word]] = 1
        state = matrix @ state
    assert problem.answer == "".join("abcde"[place] for place in state)


@given(SEEDS, difficulties("hops"))
def test_hops_end_where_the_arrows_lead_and_every_hop_is_to_a_new_letter(seed, count):
    problem = make("hops", seed, count)
    *arrows, ask = problem.question.split()
    to = dict(arrow.split(">") for arrow in arrows)
    assert sorted(to) == sorted(to.values()) == list("abcdefghijkl")
    here, hops = ask[0], int(ask[1:])
    assert hops == count
    seen = [here]
    for _ in range(hops):
        here = to[here]
        seen.append(here)
    assert problem.answer == here
    assert len(set(seen)) == count + 1


def solutions(cells: str) -> list[str]:
    """Every way to fill the dots of a 4×4 sudoku, by trying all digits cell by cell."""
    if "." not in cells:
        return [cells]
    place = cells.index(".")
    row, column = divmod(place, 4)
    found = []
    for digit in "1234":
        peers = [
            cells[i]
            for i in range(16)
            if i // 4 == row or i % 4 == column or (i // 8, i % 4 // 2) == (row // 2, column // 2)
        ]
        if digit not in peers:
            found += solutions(cells[:place] + digit + cells[place + 1 :])
    return found


@given(SEEDS, difficulties("sudoku"))
def test_a_sudoku_has_one_solution_and_so_many_empty_cells(seed, empty):
    problem = make("sudoku", seed, empty)
    cells = problem.question.replace(" ", "")
    assert cells.count(".") == empty
    assert solutions(cells) == [problem.answer.replace(" ", "")]


def test_the_grids_are_the_288_solutions_of_the_empty_sudoku():
    assert ["".join(map(str, grid)) for grid in sudoku_grids()] == solutions("." * 16)


@given(SEEDS, difficulties("maze"))
def test_the_way_through_a_maze_is_the_shortest(seed, side):
    problem = make("maze", seed, side)
    rows = problem.question.split()
    assert [len(row) for row in rows] == [side] * side
    far = side * side
    distance = {(r, c): 0 if rows[r][c] == "S" else far for r, c in product(range(side), repeat=2)}
    for _ in range(side * side):  # relax every cell from its neighbours until nothing can change
        for (r, c), so_far in distance.items():
            around = [distance.get(place, far) for place in ((r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1))]
            if rows[r][c] != "#":
                distance[r, c] = min(so_far, *(step + 1 for step in around))
    (end,) = [place for place in distance if rows[place[0]][place[1]] == "E"]
    assert problem.answer == str(distance[end])
    assert distance[end] < far


@given(st.sampled_from(sorted(TASKS)), SEEDS, st.data())
def test_a_problem_is_ascii_with_one_mark_between_question_and_answer(name, seed, data):
    problem = make(name, seed, data.draw(difficulties(name)))
    assert problem.text.isascii()
    assert problem.text.split("=") == [problem.question, problem.answer]
    assert problem.answer[0].isalnum()


@pytest.mark.parametrize("name", TASKS)
def test_every_tokenizer_begins_a_new_token_with_the_answer(name):
    usual = range(TASKS[name].usual[0], TASKS[name].usual[1] + 1)
    some = [problem for d in usual for problem in islice(problems(name, d), 20)]
    for tokenizer in (byte_tokenizer(), train_bpe((problem.text for problem in some), 264)):
        for problem in some:
            before = tokenizer.encode(problem.question + "=")
            assert before[-1] in tokenizer.answer_marks
            assert tokenizer.encode(problem.text)[: len(before)] == before


def test_the_same_number_is_always_the_same_problem_and_seeds_differ():
    first = list(islice(problems("hops", 3), 50))
    assert first == list(islice(problems("hops", 3), 50))
    assert not set(first) & set(islice(problems("hops", 3, seed=1), 50))


GOLDEN = {
    "addition": "7030e3a9cb3e455b",
    "permutations": "dcd2593d2c54b1b5",
    "hops": "c8be0ac576f5a0e0",
    "sudoku": "d481be34144ccdc9",
    "maze": "6131abd79415016f",
}


@pytest.mark.parametrize("name", TASKS)
def test_the_problems_are_those_of_every_other_machine(name):
    low, high = TASKS[name].usual
    texts = [problem.text for d in (low, high) for problem in islice(problems(name, d), 20)]
    assert hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16] == GOLDEN[name]


def test_permutations_reach_all_arrangements():
    answers = {problem.answer for problem in islice(problems("permutations", 2), 2000)}
    assert answers == {"".join(order) for order in permutations("abcde")}


def test_an_unknown_name_or_difficulty_is_refused_with_what_is_known():
    with pytest.raises(UserError, match="no task is called 'hosp'; did you mean 'hops'"):
        find_task("hosp")
    with pytest.raises(UserError, match="there are addition, permutations, hops, sudoku, maze"):
        find_task("?")
    for bad in (0, 7):
        with pytest.raises(UserError, match=f"hops of difficulty {bad}: it counts arrows to follow, 1 to 6"):
            next(problems("hops", bad))


@pytest.mark.parametrize(
    ("question", "answer", "message"),
    [("2x=4 x", "2", "'=' stands before the answer only"), ("2+2", "", "'2\\+2' has no answer")],
)
def test_a_problem_whose_answer_could_not_be_told_from_its_question_is_refused(question, answer, message):
    with pytest.raises(UserError, match=message):
        Problem(question, answer)


def test_a_task_may_be_written_anew_but_takes_no_name_of_another(monkeypatch):
    def echo(_: Random, size: int) -> Problem:
        return Problem(question="a" * size, answer="a")

    monkeypatch.setitem(TASKS, "echo", Task(echo, counts="letters", least=1, most=4, usual=(1, 2)))
    again = Task(echo, counts="letters", least=1, most=8, usual=(1, 2))
    register("echo", again)
    assert find_task("echo") is again
    with pytest.raises(UserError, match="there is already a task called 'hops'"):
        register("hops", again)
