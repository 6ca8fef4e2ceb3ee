"""Other people's puzzles: one a line, tables with question and answer, and data folders of HRM and TRM.

    sudoku:puzzles.txt    a sudoku a line, 16, 36 or 81 characters, `.` or `0` for empty; after # a remark
    sudoku:puzzles.csv    columns question, answer and rating; what is lacking of the last two is found out
    maze:mazes.csv        the same with `#` walls, blanks, S, G and in the answers o
    sudoku:FOLDER         train.csv and test.csv, which stay apart
    hrm:FOLDER            train/ and test/ with dataset.json and all__*.npy, as HRM and TRM read them

A puzzle must have just one solution, and an answer that is given must be it. A line that is wrong is named
with its number and the reason; nothing is written then.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from srmlab.data import DataError
from srmlab.puzzles.folder import SIDES, Boards
from srmlab.puzzles.generation import Example
from srmlab.puzzles.kinds import (
    BOXES,
    COLOURS,
    EMPTY,
    LEAST_MAZE,
    MOST_MAZE,
    OPEN,
    WALL,
    WAY,
    Kind,
    box_numbers,
    find_kind,
)
from srmlab.puzzles.maze import shortest_ways
from srmlab.puzzles.sudoku import Undecided, rate, solve

MOVES = 200_000  # of the solver, for one sudoku; 469 forms of 7 published hard ones took at most 7,242
FOLDER = "give a data folder of HRM or TRM, with train/ and test/"
RESTORE = "restore it, or make the folder again"
Report = Callable[[int], None]


class BadLine(Exception):
    """What is wrong with a puzzle."""


# --- lines and tables ---------------------------------------------------------------------------------------


def read_puzzles(path: Path, family: str, report: Report = lambda _: None) -> tuple[Kind, list[Example]]:
    """The puzzles of a file of lines or a table, all of one kind."""
    rows = read_table(path) if path.suffix == ".csv" else read_lines(path, family)
    kind: Kind | None = None
    examples = []
    for number, row in rows:
        try:
            own = kind_of(row["question"], family)
            kind = kind or own
            if own != kind:
                raise BadLine(f"a {own.name} among {kind.name}")
            examples.append(read_example(kind, **row))
        except BadLine as error:
            raise DataError(f"{path} line {number}: {error}; correct or remove the line") from None
        if len(examples) % 50 == 0:
            report(len(examples))
    if kind is None:
        raise DataError(f"{path} contains no puzzles: give a file with one per line")
    report(len(examples))
    return kind, examples


def read_lines(path: Path, family: str) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(text_lines(path), 1):
        question = line.rstrip("\r\n") if family == "maze" else line.partition("#")[0].strip()
        if question:
            yield number, {"question": question}


def read_table(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    rows = table_rows(path)
    header = [name.strip() for name in next(rows, (0, []))[1]]
    if "question" not in header:
        raise DataError(f"{path} has no column `question` (but {', '.join(header)}): name its columns so")
    wanted = ("question", "answer", "rating")
    for number, row in rows:
        if not any(field.strip() for field in row):
            continue
        named = dict(zip_longest(header, row[: len(header)], fillvalue=""))
        yield number, {name: named.get(name, "") for name in wanted}


def table_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of a .csv, each with the number of its first line."""
    rows, first = csv.reader(text_lines(path)), 1
    try:
        for row in rows:
            yield first, row
            first = rows.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path} line {first}: it is not a row of a table ({error}); correct or remove the line"
        ) from None


def text_lines(path: Path) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            yield from file
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text: give a file of puzzles, one per line, or a .csv") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): give another file") from None


def kind_of(question: str, family: str) -> Kind:
    side = round(len(question) ** 0.5)
    square = side * side == len(question)
    if family == "maze" and square and LEAST_MAZE <= side <= MOST_MAZE:
        return find_kind(f"maze:{side}")
    if family == "sudoku" and square and side in BOXES:
        return find_kind(f"sudoku:{side}x{side}")
    squares = f"a square number of them, {LEAST_MAZE**2} to {MOST_MAZE**2}"
    sizes = "16, 36 or 81" if family == "sudoku" else squares
    raise BadLine(f"it has {len(question)} characters; a {family} has {sizes}")


def read_example(kind: Kind, question: str, answer: str = "", rating: str = "") -> Example:
    rating = rating.strip()
    if rating and not re.fullmatch("-?[0-9]{1,9}", rating):
        raise BadLine(f"the rating {rating[:20]!r} is not a whole number of at most 9 digits")
    if answer and len(answer) != len(question):
        raise BadLine(f"the answer has {len(answer)} characters, the question {len(question)}")
    board, given = values_of(kind, question), values_of(kind, answer) if answer else None
    read = sudoku_example if kind.box is not None else maze_example
    found, hard = read(kind, board, given, not rating)
    return board, found, int(rating) if rating else hard


def values_of(kind: Kind, text: str) -> list[int]:
    marks = kind.symbols.replace(" ", "\0")  # padding is never written
    text = text.replace("0", ".") if kind.box is not None else text.replace(" ", ".")
    for mark in text:
        if mark not in marks:
            raise BadLine(f"{mark!r} is not a value of a {kind.name}")
    return [marks.index(mark) for mark in text]


def sudoku_example(
    kind: Kind, board: list[int], answer: list[int] | None, rated: bool
) -> tuple[list[int], int]:
    """The solution and the rating. There must be just one solution, and a given answer must be it."""
    if answer is not None and any(g not in (EMPTY, v) for g, v in zip(board, answer, strict=True)):
        raise BadLine("its answer changes a given")
    if answer is not None and not is_solution(kind, answer):
        raise BadLine("its answer breaks the rules")
    digits = [value - EMPTY for value in board]
    try:
        solutions = solve(digits, limit=MOVES)
    except Undecided:
        raise BadLine(f"whether it has one solution is not decided within {MOVES:,} moves") from None
    if len(solutions) != 1:
        raise BadLine("it has more than one solution" if solutions else "it has no solution")
    return [digit + EMPTY for digit in solutions[0]], rate(digits) if rated else 0


def is_solution(kind: Kind, answer: list[int]) -> bool:
    side = kind.rows
    boxes = box_numbers(side)
    units: list[set[int]] = [set() for _ in range(3 * side)]
    for cell, value in enumerate(answer):
        for unit in (cell // side, side + cell % side, 2 * side + boxes[cell]):
            units[unit].add(value)
    return EMPTY not in answer and all(len(unit) == side for unit in units)


def maze_example(kind: Kind, board: list[int], answer: list[int] | None, _: bool) -> tuple[list[int], int]:
    """The answer and its steps. A given answer must be a shortest way; without one there must be only one."""
    start, goal = (kind.symbols.index(mark) for mark in "SG")
    if board.count(start) != 1 or board.count(goal) != 1 or WAY in board:
        raise BadLine("a question has one S, one G and no o")
    count, way = shortest_ways(board, kind.rows)
    if not count:
        raise BadLine("no way leads from S to G")
    if answer is None:
        if count > 1:
            raise BadLine(f"it has {count:,} shortest ways, and no answer says which")
        between = set(way[1:-1])
        return [WAY if cell in between else value for cell, value in enumerate(board)], len(way) - 1
    pairs = list(zip(board, answer, strict=True))
    if any(own != new and (own, new) != (OPEN, WAY) for own, new in pairs):
        raise BadLine("its answer changes more than open cells into o")
    marked = [WALL if own == new == OPEN else own for own, new in pairs]  # no way but over the o
    if answer.count(WAY) != len(way) - 2 or not shortest_ways(marked, kind.rows)[0]:
        raise BadLine(f"its answer is not a shortest path, which has {len(way) - 2} o")
    return answer, len(way) - 1


# --- folders of HRM and TRM ---------------------------------------------------------------------------------


def read_hrm(folder: Path) -> tuple[Kind, dict[str, Boards], list[str], int | None]:
    """The kind, both sides, the names of the identifiers, and the label that does not count."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: {FOLDER}")
    about = {side: read_description(folder / side / "dataset.json") for side in SIDES}
    sides = {side: read_sets(folder / side, about[side]) for side in SIDES}
    first = about["train"]
    for name in ("seq_len", "vocab_size", "num_puzzle_identifiers", "ignore_label_id", "pad_id"):
        if about["test"][name] != first[name]:
            raise DataError(f"{folder}: train and test have different {name}: make both at once")
    if first["pad_id"] != 0 or first["blank_identifier_id"] != 0:
        raise DataError(
            f"{folder}: pad_id and blank_identifier_id must be 0: make the folder with HRM's or TRM's code"
        )
    if not len(sides["train"]):
        raise DataError(f"{folder / 'train'} holds no puzzle: give a folder with some to train on")
    kind = kind_of_boards(folder, first["seq_len"], first["vocab_size"], sides["train"])
    for side, boards in sides.items():
        check_boards(folder / side, kind, boards, first["num_puzzle_identifiers"])
    names = [str(number) for number in range(first["num_puzzle_identifiers"])]
    if (path := folder / "identifiers.json").is_file():
        found = read_json(path)
        if not isinstance(found, list):
            raise DataError(f"{path} is not a list of names: repair it or remove it")
        names = [str(name) for name in found] if len(found) == len(names) else names
    return kind, sides, names, first["ignore_label_id"]


def read_description(path: Path) -> dict:
    about = read_json(path)
    if not isinstance(about, dict):
        raise DataError(f"{path} is not a description of a data set: {FOLDER}")
    numbers = ("seq_len", "vocab_size", "pad_id", "blank_identifier_id", "num_puzzle_identifiers")
    for name in (*numbers, "ignore_label_id", "sets"):
        if name not in about:
            raise DataError(f"{path} has no {name!r}: {FOLDER}")
    for name in (*numbers, "ignore_label_id"):
        if type(about[name]) is not int and (name in numbers or about[name] is not None):
            raise DataError(f"{path}: {name} is {about[name]!r}, not a whole number: correct it")
    sets = about["sets"]
    if not isinstance(sets, list) or not sets or not all(isinstance(name, str) for name in sets):
        raise DataError(f'{path}: sets is {sets!r}, not a list of names: correct it, such as ["all"]')
    return about


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path} is missing: {FOLDER}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}): repair or replace it") from None


def read_sets(folder: Path, about: dict) -> Boards:
    """The sets of one side, one after the other."""
    parts = [read_set(folder, name, about["seq_len"]) for name in about["sets"]]
    if len(parts) == 1:
        return parts[0]
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("inputs", "labels", "ratings", "puzzle_identifiers")
    }
    for name in ("puzzle_indices", "group_indices"):
        sizes = np.concatenate([np.diff(getattr(part, name)) for part in parts])
        joined[name] = np.concatenate(([0], np.cumsum(sizes)))
    return Boards(**joined)


def read_set(folder: Path, name: str, cells: int) -> Boards:
    arrays = {}
    for field in fields(Boards):
        path = folder / f"{name}__{field.name}.npy"
        if field.name != "ratings" or path.is_file():
            arrays[field.name] = read_array(path, (cells,) if field.name in ("inputs", "labels") else ())
    examples = len(arrays["inputs"])
    arrays.setdefault("ratings", np.full(examples, -1, np.int32))
    for field in ("labels", "ratings"):
        if len(arrays[field]) != examples:
            rows = f"{len(arrays[field])} rows, {name}__inputs.npy {examples}"
            raise DataError(f"{folder}: {name}__{field}.npy has {rows}: {RESTORE}")
    return Boards(**arrays)


def read_array(path: Path, columns: tuple[int, ...]) -> np.ndarray:
    """Whole numbers, [rows, *columns]."""
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read ({error}): {RESTORE}") from None
    if array.dtype.kind not in "iu":
        raise DataError(f"{path} holds {array.dtype}, not whole numbers: {RESTORE}")
    if not array.ndim or array.shape[1:] != columns:
        wanted = " × ".join(map(str, ("rows", *columns)))
        raise DataError(f"{path} has the shape {array.shape} instead of {wanted}: {RESTORE}")
    return array


def kind_of_boards(folder: Path, cells: int, vocab_size: int, boards: Boards) -> Kind:
    """By the number of cells and values; of 16 cells with 6 values, by what is on them."""
    side = round(cells**0.5)
    if vocab_size == 2 + COLOURS and side == 30:
        return find_kind("arc")
    if side * side == cells and side in BOXES and vocab_size == side + 2:
        kind = find_kind(f"sudoku:{side}x{side}")
        if side != 4 or is_solution(kind, boards.labels[0].tolist()):
            return kind
    if side * side == cells and vocab_size == 6:
        return find_kind(f"maze:{side}")
    raise DataError(
        f"{folder}: boards of {cells} cells with {vocab_size} values are of no kind known here: sudokus of "
        "16, 36 or 81 cells, square mazes with 6 values, ARC with 900 and 12"
    )


def check_boards(folder: Path, kind: Kind, boards: Boards, num_identifiers: int) -> None:
    ends = (
        ("puzzle_indices", boards.puzzle_indices, len(boards.inputs)),
        ("group_indices", boards.group_indices, len(boards.puzzle_identifiers)),
    )
    for name, array in (("inputs", boards.inputs), ("labels", boards.labels)):
        beyond = ((array < 0) | (array >= kind.vocab_size)).any(1)
        if beyond.any():
            raise DataError(
                f"{folder}: row {beyond.argmax()} of {name} has a value beyond 0 … {kind.vocab_size - 1}: "
                "correct it, or make the folder again"
            )
    if kind.box is not None:
        wrong = (boards.labels <= EMPTY) | ((boards.inputs != EMPTY) & (boards.inputs != boards.labels))
        if wrong.any():
            raise DataError(
                f"{folder}: row {wrong.any(1).argmax()} of labels leaves a cell empty or changes a given: "
                "correct it, or make the folder again"
            )
    for name, array, end in ends:
        if not len(array) or array[0] != 0 or array[-1] != end or (np.diff(array.astype(np.int64)) < 1).any():
            raise DataError(f"{folder}: {name} do not divide 0 … {end} into parts: restore them")
    if len(boards.puzzle_indices) != len(boards.puzzle_identifiers) + 1:
        raise DataError(f"{folder}: puzzle_indices and puzzle_identifiers do not match: restore them")
    names = boards.puzzle_identifiers
    if names.size and not 0 <= names.min() <= names.max() < num_identifiers:
        raise DataError(f"{folder}: an identifier is not below {num_identifiers}: restore puzzle_identifiers")


def plain_ratings(kind: Kind, inputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How hard boards are, seen from outside: empty cells, steps of the way, or cells of the answer."""
    if kind.family == "sudoku":
        return (inputs == EMPTY).sum(1)
    if kind.family == "maze":
        return (labels == WAY).sum(1) + 1
    return (labels > 1).sum(1)
