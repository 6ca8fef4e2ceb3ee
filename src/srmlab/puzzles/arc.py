"""ARC: tasks from the public JSON files, as boards.

    arc:FOLDER   FOLDER/training/*.json and FOLDER/evaluation/*.json, or tasks directly in FOLDER,
                 or the pairs of files NAME_challenges.json and NAME_solutions.json

As for HRM and TRM, a model is given the task as an identifier, and learns what that means from the task's
examples. So the examples of every task are for training; the test set is the test pairs of the tasks in
`evaluation` (or of all tasks, where there is no such folder). A task of `training` gives all its pairs.

A variant of a task is the task turned and recoloured; each has an identifier of its own. Variant 0 is the
task as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from srmlab.data import DataError
from srmlab.puzzles.files import read_json
from srmlab.puzzles.folder import Boards
from srmlab.puzzles.kinds import ARC_SIDE, BLACK, COLOURS
from srmlab.puzzles.symmetries import arc_orbit, place

FIX = "give a folder of ARC's JSON tasks"
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
        raise DataError(f"{folder} is not a folder: {FIX}")
    parts = [(folder / "training", False), (folder / "evaluation", True)]
    if not any(part.is_dir() for part, _ in parts):
        parts = [(folder, False)]
    for part, is_test in parts:
        for path in sorted(part.glob("*.json")):
            if path.name.endswith("_solutions.json"):
                continue
            content = read_json(path)
            if path.name.endswith("_challenges.json"):
                answers = path.with_name(path.name.replace("_challenges", "_solutions"))
                solutions = read_json(answers) if answers.is_file() else {}
                for name, task in content.items():
                    yield as_task(path, name, task, solutions.get(name)), "evaluation" in path.name
            else:
                yield as_task(path, path.stem, content, None), is_test


def as_task(path: Path, name: str, content: dict, solutions: list | None) -> ArcTask:
    try:
        examples = [
            as_pair(f"example {n}", p["input"], p["output"]) for n, p in enumerate(content["train"], 1)
        ]
        outputs = solutions or [pair.get("output") for pair in content["test"]]
        inputs = [pair["input"] for pair in content["test"]]
        numbered = enumerate(zip(inputs, outputs, strict=True), 1)
        return ArcTask(
            name, examples, [as_pair(f"test {n}", i, o) for n, (i, o) in numbered if o is not None]
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path}: task {name} is not an ARC task ({reason}): {FIX}") from None


def as_pair(where: str, question: list[list[int]], answer: list[list[int]]) -> Pair:
    """The two boards; a grid that is wrong is named."""
    boards = []
    for side, rows in (("input", question), ("output", answer)):
        try:
            boards.append(grid(rows))
        except ValueError as error:
            raise ValueError(f"{side} of {where}: {error}") from None
    return boards[0], boards[1]


def grid(rows: list[list[int]]) -> np.ndarray:
    """A board [900] with this grid on it."""
    if len(set(map(len, rows))) > 1:
        raise ValueError(f"its rows have different lengths, {min(map(len, rows))} to {max(map(len, rows))}")
    cells = np.array(rows)
    if (
        cells.ndim != 2
        or cells.dtype.kind != "i"
        or not 1 <= min(cells.shape) <= max(cells.shape) <= ARC_SIDE
    ):
        raise ValueError(f"a grid must be 1 to {ARC_SIDE} rows of as many columns")
    if cells.min() < 0 or cells.max() >= COLOURS:
        raise ValueError(f"a colour is a number from 0 to {COLOURS - 1}")
    return place(cells + BLACK)
