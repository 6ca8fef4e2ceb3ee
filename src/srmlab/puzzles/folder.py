"""A folder of puzzles: prepared once, sealed, checked at every opening, and readable by HRM's and TRM's code.

    OUT/train/, OUT/test/
        all__inputs.npy             [examples, cells] boards
        all__labels.npy             [examples, cells] their answers
        all__ratings.npy            [examples] how hard each is
        all__puzzle_identifiers.npy [puzzles] 0 unless the puzzles are tasks that a model learns one by one
        all__puzzle_indices.npy     [puzzles + 1] where the examples of a puzzle begin
        all__group_indices.npy      [groups + 1] where the puzzles of a group begin: symmetries of one another
        dataset.json                sizes and special numbers, by HRM's names
    OUT/identifiers.json            the names of the identifiers
    OUT/manifest.json               the kind of puzzle, where it is from
    OUT/SHA256SUMS                  the seal on all of it

All but the ratings, the manifest and the seal is the format of the repositories of HRM and TRM.

    puzzles = open_puzzles("data/sudoku")
    puzzles.train.inputs[0]
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from srmlab.data import DataError
from srmlab.files import SUMS, DamagedFile, check_sums, sealed_folder, writing
from srmlab.puzzles.kinds import PADDING, Kind, find_kind

FORMAT = 1
SIDES = ("train", "test")
FIX = "prepare the puzzles again, or restore the file"


@dataclass(frozen=True, eq=False)
class Boards:
    """One side of the puzzles. Examples of one puzzle lie together, puzzles of one group too."""

    inputs: np.ndarray  # [N, cells] uint8
    labels: np.ndarray  # [N, cells] uint8
    ratings: np.ndarray  # [N] int32
    puzzle_identifiers: np.ndarray  # [puzzles] int32
    puzzle_indices: np.ndarray  # [puzzles + 1] int32
    group_indices: np.ndarray  # [groups + 1] int32

    @classmethod
    def single(cls, inputs: np.ndarray, labels: np.ndarray, ratings: np.ndarray) -> Boards:
        """Every example a puzzle and a group of its own, without identifier."""
        ends = np.arange(len(inputs) + 1, dtype=np.int32)
        none = np.zeros(len(inputs), np.int32)
        return cls(inputs, labels, ratings.astype(np.int32), none, ends, ends)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def num_groups(self) -> int:
        return len(self.group_indices) - 1

    @cached_property
    def identifiers(self) -> np.ndarray:
        """[N] the identifier of each example; 0 is none."""
        return np.repeat(self.puzzle_identifiers, np.diff(self.puzzle_indices))


@dataclass(frozen=True)
class Manifest:
    format: int
    kind: str  # of puzzle, as in `srmlab prepare`
    source: str  # what was prepared: the generator with its settings, or a file
    seed: int
    num_identifiers: int  # the one for none included
    examples: dict[str, int]  # by side
    variants: int = 1  # of a task: forms with an identifier each, which training and votes draw from
    ignore: int | None = PADDING  # labels that do not count
    dropped: int = 0  # puzzles left out: the same as another, or of training and a symmetry of a test


@dataclass(frozen=True, eq=False)
class Puzzles:
    """A folder of puzzles, opened."""

    path: Path
    manifest: Manifest
    kind: Kind
    train: Boards
    test: Boards
    identifiers: list[str]  # names
    fingerprint: str  # sha256 of the seal, and through it of every file

    @property
    def vocab_size(self) -> int:
        return self.kind.vocab_size

    @property
    def num_identifiers(self) -> int:
        return self.manifest.num_identifiers

    @property
    def ignore(self) -> int | None:
        """The label that does not count; None: all count."""
        return self.manifest.ignore


def is_puzzles(path: str | Path) -> bool:
    """Whether a folder holds puzzles, prepared here or by the code of HRM or TRM, rather than tokens."""
    return (Path(path) / "train" / "dataset.json").is_file()


def open_puzzles(path: str | Path, *, verify: bool = True) -> Puzzles:
    """Open a prepared folder, refusing it if any file is missing, damaged or from elsewhere.

    `verify=False` leaves out the checksums: enough for the other processes of a run
    whose first one has verified.
    """
    path = Path(path)
    if not is_puzzles(path):
        raise DataError(f"{path} holds no puzzles: run `srmlab prepare sudoku:6x6 --out {path}` first")
    if not (path / "manifest.json").is_file():
        raise DataError(
            f"{path} is a data folder of HRM or TRM: run `srmlab prepare hrm:{path} --out FOLDER` first, "
            "then give --data FOLDER"
        )
    try:
        if verify:
            check_sums(path)
        manifest = read_manifest(path / "manifest.json")
        boards = {side: read_boards(path / side) for side in SIDES}
        identifiers = json.loads((path / "identifiers.json").read_bytes())
        seal = hashlib.sha256((path / SUMS).read_bytes()).hexdigest()
    except DamagedFile as error:
        raise DataError(f"{path}: {error}: {FIX}") from None
    except DataError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read ({error}): {FIX}") from None
    kind = find_kind(manifest.kind)
    return Puzzles(path, manifest, kind, boards["train"], boards["test"], identifiers, seal)


def read_manifest(path: Path) -> Manifest:
    content = json.loads(path.read_bytes())
    if content["format"] != FORMAT:
        raise DataError(f"{path} has format {content['format']}, this version reads {FORMAT}: prepare again")
    return Manifest(**content)


def read_boards(folder: Path) -> Boards:
    files = {field.name: folder / f"all__{field.name}.npy" for field in fields(Boards)}
    return Boards(**{name: np.load(file, "r", allow_pickle=False) for name, file in files.items()})


def write_puzzles(out: Path, manifest: Manifest, sides: dict[str, Boards], identifiers: list[str]) -> Puzzles:
    """Write a folder, all of it or nothing. An existing one is not overwritten."""
    kind = find_kind(manifest.kind)
    with writing(out), sealed_folder(out) as folder:
        for side, boards in sides.items():
            (folder / side).mkdir()
            for field in fields(Boards):
                np.save(folder / side / f"all__{field.name}.npy", getattr(boards, field.name))
            description = hrm_description(kind, manifest, boards)
            (folder / side / "dataset.json").write_text(json.dumps(description) + "\n")
        (folder / "identifiers.json").write_text(json.dumps(identifiers) + "\n")
        (folder / "manifest.json").write_text(json.dumps(asdict(manifest), indent=2) + "\n")
    return open_puzzles(out, verify=False)


def hrm_description(kind: Kind, manifest: Manifest, boards: Boards) -> dict[str, Any]:
    """`dataset.json`, by HRM's names."""
    puzzles = max(1, len(boards.puzzle_identifiers))
    return {
        "pad_id": PADDING,
        "ignore_label_id": manifest.ignore,
        "blank_identifier_id": 0,
        "vocab_size": kind.vocab_size,
        "seq_len": kind.cells,
        "num_puzzle_identifiers": manifest.num_identifiers,
        "total_groups": boards.num_groups,
        "mean_puzzle_examples": len(boards) / puzzles,
        "total_puzzles": puzzles,
        "sets": ["all"],
    }
