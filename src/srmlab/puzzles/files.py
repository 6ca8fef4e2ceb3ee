"""Other people's puzzles: one a line, tables with question and answer, and data folders of HRM and TRM.

    sudoku:puzzles.txt    a sudoku a line, 16, 36 or 81 characters, `.` or `0` for empty; after # a remark
    sudoku:puzzles.csv    columns question, answer and rating; what is lacking of the last two is found out
    maze:mazes.csv        the same with `#` walls, blanks, S, G and in the answers o
    sudoku:FOLDER         train.csv and test.csv, which stay apart
    hrm:FOLDER            train/ and test/ with dataset.json and all__*.npy, as HRM and TRM read them

A line that is wrong is named with its number and the reason; nothing is written then.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from srmlab.data import DataError
from srmlab.puzzles.folder import SIDES, Boards
from srmlab.puzzles.generation import Example
from srmlab.puzzles.kinds import BOXES, COLOURS, EMPTY, WAY, Kind, box_numbers, find_kind
from srmlab.puzzles.maze import only_way
from srmlab.puzzles.sudoku import rate, solve

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
    rows = csv.reader(text_lines(path))
    header = [name.strip() for name in next(rows, [])]
    if "question" not in header:
        raise DataError(f"{path} has no column `question` (but {', '.join(header)}): name its columns so")
    wanted = ("question", "answer", "rating")
    for row in rows:
        if not any(field.strip() for field in row):
            continue
        named = dict(zip_longest(header, row[: len(header)], fillvalue=""))
        yield rows.line_num, {name: named.get(name, "") for name in wanted}


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
    if family == "maze" and square:
        return find_kind(f"maze:{side}")
    if family == "sudoku" and square and side in BOXES:
        return find_kind(f"sudoku:{side}x{side}")
    sizes = "16, 36 or 81" if family == "sudoku" else "a square number of"
    raise BadLine(f"it has {len(question)} characters; a {family} has {sizes}")


def read_example(kind: Kind, question: str, answer: str = "", rating: str = "") -> Example:
    if rating and not rating.strip().lstrip("-").isdecimal():
        raise BadLine(f"the rating {rating!r} is not a whole number")
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
    """The solution and the rating; a given answer is checked by the rules, a lacking one is searched."""
    digits = [value - EMPTY for value in board]
    if answer is None:
        solutions = solve(digits)
        if len(solutions) != 1:
            raise BadLine("it has more than one solution" if solutions else "it has no solution")
        answer = [digit + EMPTY for digit in solutions[0]]
    elif any(given not in (EMPTY, value) for given, value in zip(board, answer, strict=True)):
        raise BadLine("its answer changes a given")
    elif not is_solution(kind, answer):
        raise BadLine("its answer breaks the rules")
    return answer, rate(digits) if rated else 0


def is_solution(kind: Kind, answer: list[int]) -> bool:
    side = kind.rows
    boxes = box_numbers(side)
    units: list[set[int]] = [set() for _ in range(3 * side)]
    for cell, value in enumerate(answer):
        for unit in (cell // side, side + cell % side, 2 * side + boxes[cell]):
            units[unit].add(value)
    return EMPTY not in answer and all(len(unit) == side for unit in units)


def maze_example(kind: Kind, board: list[int], answer: list[int] | None, _: bool) -> tuple[list[int], int]:
    start, goal = (kind.symbols.index(mark) for mark in "SG")
    if board.count(start) != 1 or board.count(goal) != 1 or WAY in board:
        raise BadLine("a question has one S, one G and no o")
    way = only_way(board, kind.rows)
    if answer is None:
        if way is None:
            raise BadLine("it has no shortest way, or several")
        answer = list(board)
        for cell in way[1:-1]:
            answer[cell] = WAY
    elif any(value != own and value != WAY for own, value in zip(board, answer, strict=True)):
        raise BadLine("its answer changes more than the way")
    return answer, answer.count(WAY) + 1


# --- folders of HRM and TRM ---------------------------------------------------------------------------------


def read_hrm(folder: Path) -> tuple[Kind, dict[str, Boards], list[str], int | None]:
    """The kind, both sides, the names of the identifiers, and the label that does not count."""
    about = {side: read_description(folder / side / "dataset.json") for side in SIDES}
    sides = {side: read_sets(folder / side, about[side]) for side in SIDES}
    first = about["train"]
    for name in ("seq_len", "vocab_size", "num_puzzle_identifiers", "ignore_label_id", "pad_id"):
        if about["test"][name] != first[name]:
            raise DataError(f"{folder}: train and test have different {name}: make them of one piece")
    if first["pad_id"] != 0 or first["blank_identifier_id"] != 0:
        raise DataError(f"{folder}: padding and the blank identifier must be 0; they are not")
    kind = kind_of_boards(folder, first["seq_len"], first["vocab_size"], sides["train"])
    for side, boards in sides.items():
        check_boards(folder / side, kind, boards, first["num_puzzle_identifiers"])
    names = [str(number) for number in range(first["num_puzzle_identifiers"])]
    if (folder / "identifiers.json").is_file():
        found = read_json(folder / "identifiers.json")
        names = [str(name) for name in found] if len(found) == len(names) else names
    return kind, sides, names, first["ignore_label_id"]


def read_description(path: Path) -> dict:
    about = read_json(path)
    needed = ("seq_len", "vocab_size", "pad_id", "ignore_label_id", "blank_identifier_id", "sets")
    for name in (*needed, "num_puzzle_identifiers"):
        if name not in about:
            raise DataError(f"{path} has no {name!r}: give a data folder of HRM or TRM")
    return about


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(
            f"{path} is missing: give a data folder of HRM or TRM, with train/ and test/"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}): repair it or take it away") from None


def read_sets(folder: Path, about: dict) -> Boards:
    """The sets of one side, one after the other."""
    parts = [read_set(folder, name) for name in about["sets"]]
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


def read_set(folder: Path, name: str) -> Boards:
    arrays = {}
    for field in fields(Boards):
        path = folder / f"{name}__{field.name}.npy"
        if field.name == "ratings" and not path.is_file():
            continue
        try:
            arrays[field.name] = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read ({error}): repair or restore it") from None
    examples = len(arrays["inputs"])
    return Boards(**{"ratings": np.full(examples, -1, np.int32), **arrays})


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
    shape = (len(boards.inputs), kind.cells)
    ends = (
        ("puzzle_indices", boards.puzzle_indices, len(boards.inputs)),
        ("group_indices", boards.group_indices, len(boards.puzzle_identifiers)),
    )
    for name, array in (("inputs", boards.inputs), ("labels", boards.labels)):
        if array.shape != shape:
            raise DataError(f"{folder}: {name} have the shape {array.shape} instead of {shape}: restore them")
        if array.size and not 0 <= array.min() <= array.max() < kind.vocab_size:
            row = int(np.flatnonzero(((array < 0) | (array >= kind.vocab_size)).any(1))[0])
            raise DataError(f"{folder}: row {row} of {name} has a value beyond 0 … {kind.vocab_size - 1}")
    for name, array, end in ends:
        if not len(array) or array[0] != 0 or array[-1] != end or (np.diff(array) < 1).any():
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
