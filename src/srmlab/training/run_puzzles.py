"""A run with its puzzles: a model that works in segments, and the test boards to analyse it on.

    boards = open_boards("runs/sudoku")
    for batch in boards.batches(batch_size=8, limit_tokens=4096):
        logits = boards.model(batch.tokens)                   # after the last segment

For analysis the model is *unrolled*: the recursion has the same weights in every segment and sees the board
in each, so that 8 segments of 4 layers are one pass of 32 layers, bit for bit. Whatever is defined on layers
is thereby defined on segments × layers, and layer 4 is the first of the second segment.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from srmlab.data import Batch
from srmlab.errors import Notice, UserError
from srmlab.files import sha256
from srmlab.models import LanguageModel, config_from_dict
from srmlab.puzzles import Puzzles, evaluation_puzzles, find_kind, open_puzzles
from srmlab.puzzles.files import read_puzzles
from srmlab.puzzles.folder import FORMAT, Manifest
from srmlab.puzzles.generation import as_boards
from srmlab.puzzles.symmetries import orbits
from srmlab.storage import load
from srmlab.storage.weights import read_json, weights_folder
from srmlab.training.distributed import device_of
from srmlab.training.memory import keep_buffers
from srmlab.training.run import RunConfig, run_config

BOARDS = "puzzles.csv"  # a few test puzzles, beside a model
USUAL = 16  # segments of a model that does not say


@dataclass(frozen=True)
class BoardBatches:
    """Test boards in their order, as batches that can be read again and again; only cells that are to be
    filled are targets.
    """

    puzzles: Puzzles
    batch_size: int
    windows: int  # how many boards

    @property
    def context(self) -> int:
        """Cells of a board."""
        return self.puzzles.kind.cells

    def __len__(self) -> int:
        return -(-self.windows // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for batch in evaluation_puzzles(self.puzzles, self.batch_size, self.windows):
            yield Batch(batch.inputs, batch.unknown_only(self.puzzles.kind).labels)


@dataclass(frozen=True)
class RunPuzzles:
    path: Path
    run: RunConfig | None  # None for an export
    model: LanguageModel  # unrolled
    trained: LanguageModel  # a segment of it
    puzzles: Puzzles
    segments: int

    def batches(self, batch_size: int, limit_tokens: int | None = None) -> BoardBatches:
        """The test boards, or the first of them: as many as have `limit_tokens` cells."""
        boards = len(self.puzzles.test)
        if limit_tokens is not None:
            boards = min(boards, max(1, limit_tokens // self.puzzles.kind.cells))
        if not boards:
            raise UserError(f"{self.puzzles.path} has no test puzzles: prepare with --val-fraction above 0")
        return BoardBatches(self.puzzles, batch_size, boards)

    def name(self, batches: BoardBatches) -> str:
        """What was read, and how. A result is known by it."""
        boards = f"{batches.windows} test boards of {self.puzzles.kind.name} {self.puzzles.fingerprint[:12]}"
        return f"{boards}, {self.segments} segments of {self.trained.depth} {self.trained.level_name}"


def reads_puzzles(path: str | Path) -> bool:
    """Whether the model of a run, a checkpoint or an export reads puzzles rather than text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)  # whoever opens it says what is wrong
            about = read_json(weights_folder(Path(path)) / "config.json")
    except UserError:
        return False
    return "model" in about and not config_from_dict(about["model"]).causal


def open_boards(
    path: str | Path,
    *,
    data: Path | None = None,
    segments: int | None = None,
    device: str = "auto",
    verify: bool = True,
) -> RunPuzzles:
    """The model of a run, a checkpoint or an export, unrolled over `segments` (by default as in training),
    and the test boards of `data`, by default those that it comes with, or the run's.
    """
    keep_buffers()
    path = Path(path)
    model, run = load(path, device=device_of(device)), run_config(path)
    count = segments if segments is not None else (run.training.segments if run else USUAL)
    if segments is None and count > 1 and not goes_on(model):
        count = 1
        warnings.warn(
            f"only one segment is analysed: a second one of this {model.config.architecture} does not repeat "
            f"the same {model.level_name}",
            Notice,
            stacklevel=2,
        )
    puzzles = puzzles_of(path, run, data, verify=verify)
    if puzzles.vocab_size > model.config.vocab_size:
        raise UserError(
            f"{puzzles.path} has {puzzles.vocab_size} values, the model {model.config.vocab_size}"
        )
    return RunPuzzles(path, run, unrolled(model, count), model, puzzles, count)


def puzzles_of(
    path: Path, run: RunConfig | None, data: Path | None, file: Path | None = None, *, verify: bool = True
) -> Puzzles:
    """The puzzles of a file, of a folder, those that lie beside a model, or the run's."""
    if file is None and data is None and (path / BOARDS).is_file():
        file = path / BOARDS
    if file is not None:
        return from_file(file, find_kind(run.puzzles).family if run and run.puzzles else "sudoku")
    folder = data or (run.data if run else None)
    if folder is None:
        raise UserError(f"{path} does not say what it was trained on: give --data DIR")
    return open_puzzles(folder, verify=verify)


def from_file(file: Path, family: str) -> Puzzles:
    """The puzzles of a file as test puzzles."""
    if family == "arc":
        raise UserError("--file is for sudokus and mazes, not for ARC: give --data with prepared tasks")
    kind, examples = read_puzzles(file, family)
    sides = {"train": as_boards(kind, []), "test": as_boards(kind, examples)}
    counts = {side: len(boards) for side, boards in sides.items()}
    manifest = Manifest(FORMAT, kind.name, file.name, 0, 1, counts)
    return Puzzles(file, manifest, kind, **sides, identifiers=["<blank>"], fingerprint=sha256(file))


def warn_of_trained(path: Path, run: RunConfig | None, puzzles: Puzzles, limit: int) -> None:
    """Of puzzles other than the run's own: how many of the first `limit` test boards it was trained on."""
    if run is not None and puzzles.fingerprint == run.data_fingerprint:
        return
    if puzzles.path == path / BOARDS:  # chosen for this model
        return
    trained = training_side(run)
    if trained is None:
        where = f"its training data is not at {run.data}" if run else "it does not say what it was trained on"
        said = f"whether {path} was trained on some of these puzzles could not be checked: {where}"
        warnings.warn(said, Notice, stacklevel=2)
        return
    known = set(orbits(puzzles.kind, *trained))
    keys = orbits(puzzles.kind, puzzles.test.inputs[:limit], puzzles.test.labels[:limit])
    if shared := sum(key in known for key in keys):
        said = f"{shared:,} of {len(keys):,} boards are, up to symmetry, puzzles that {path} was trained on"
        warnings.warn(said, Notice, stacklevel=2)


def training_side(run: RunConfig | None) -> tuple[np.ndarray, np.ndarray] | None:
    """Boards and answers that a run was trained on, one puzzle of every group of symmetries; None if they are
    no longer there.
    """
    if run is None:
        return None
    try:
        puzzles = open_puzzles(run.data, verify=False)
    except UserError:
        return None
    if puzzles.fingerprint != run.data_fingerprint:
        return None
    train = puzzles.train
    puzzle = np.repeat(np.arange(len(train.puzzle_identifiers)), np.diff(train.puzzle_indices))
    rows = np.isin(puzzle, train.group_indices[:-1])
    return train.inputs[rows], train.labels[rows]


def unrolled(model: LanguageModel, segments: int) -> LanguageModel:
    """A model on the same weights whose one pass is so many segments."""
    if segments < 1:
        raise UserError(f"{segments} segments: give 1 or more")
    if model.config.puzzle_positions and len(model.points) > model.depth:
        raise UserError("post-steps and puzzle positions cannot be combined here; leave one out")
    if segments == 1:
        return model
    if not goes_on(model):
        raise UserError(
            f"a segment of this {model.config.architecture} does not repeat the same {model.level_name}, "
            "so several cannot be unrolled into one pass; use --segments 1"
        )
    return model.at_depth(segments * model.depth)


@torch.no_grad()
def goes_on(model: LanguageModel) -> bool:
    """Whether its second segment repeats the same levels; not so if it sees the board only once, or if its
    blocks have weights of their own.
    """
    if not model.recurrent:
        return False
    cells = model.config.context - model.config.puzzle_positions
    board = torch.arange(cells, device=model.device)[None] % model.config.vocab_size
    second = model.segment(board, state=model.segment(board).state)
    return torch.allclose(model.at_depth(2 * model.depth)(board), second.logits, rtol=1e-3, atol=1e-3)
