"""Examples as a pure function of (seed, index): an endless sequence, and no loader whose state must be saved.

An epoch visits every group of puzzles, once for each example a puzzle of it has, in a shuffled order. Where a
group has several puzzles (symmetries that were written out), one is drawn; then, unless `augment` is off, the
example is changed by a symmetry of its kind, drawn from (seed, index) as well.

    puzzles = open_puzzles("data/sudoku")
    examples = PuzzleBatches(puzzles, seed=0)
    batch = examples.batch(first=0, count=64)      # inputs, labels [64, cells], identifiers [64]
    batch = examples.at([3, 17, 18])               # any of them
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from srmlab.data import DataError
from srmlab.data.batches import permute
from srmlab.puzzles.folder import Boards, Puzzles
from srmlab.puzzles.kinds import BLACK, Kind
from srmlab.puzzles.symmetries import Rearrangement, Symmetry, arc_symmetry, draws, random_symmetries

if TYPE_CHECKING:
    import torch  # imported on use: preparing puzzles does without


@dataclass(frozen=True, eq=False)
class PuzzleBatch:
    """Boards and their answers."""

    inputs: torch.Tensor  # [B, cells] int64
    labels: torch.Tensor  # [B, cells] int64; −100 where none counts
    identifiers: torch.Tensor  # [B] int64; 0 is none

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device | str) -> PuzzleBatch:
        return PuzzleBatch(self.inputs.to(device), self.labels.to(device), self.identifiers.to(device))

    def unknown_only(self, kind: Kind) -> PuzzleBatch:
        """The same where given cells do not count."""
        import torch

        from srmlab.models.loss import IGNORE

        unknown = torch.from_numpy(kind.unknown(self.inputs.cpu().numpy())).to(self.labels.device)
        return replace(self, labels=self.labels.masked_fill(~unknown, IGNORE))


@dataclass(frozen=True, eq=False)
class PuzzleBatches:
    """The examples of a training, by their index in an endless sequence."""

    puzzles: Puzzles
    seed: int = 0
    augment: bool = True

    def __post_init__(self) -> None:
        if not len(self.boards):
            raise DataError(
                f"{self.puzzles.path} has no puzzles to train on: prepare with a smaller --val-fraction"
            )

    @property
    def boards(self) -> Boards:
        return self.puzzles.train

    @cached_property
    def slots(self) -> np.ndarray:
        """[slots, 2] the group and the number within a puzzle of every visit of an epoch."""
        boards = self.boards
        first = boards.group_indices[:-1]  # the first puzzle of each group
        sizes = np.diff(boards.puzzle_indices)[first]
        groups = np.repeat(np.arange(boards.num_groups), sizes)
        return np.stack((groups, np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)), 1)

    @property
    def epoch_examples(self) -> int:
        return len(self.slots)

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """[n] which example of the folder is at each index of the sequence."""
        boards, count = self.boards, self.epoch_examples
        epochs, places = indices // count, indices % count
        slots = np.empty_like(indices)
        for epoch in np.unique(epochs):
            now = epochs == epoch
            slots[now] = permute(places[now], count, self.seed, int(epoch))
        group, number = self.slots[slots].T
        begin, end = boards.group_indices[group], boards.group_indices[group + 1]
        puzzle = begin + (self._draws(indices, 1)[:, 0] % (end - begin).astype(np.uint64)).astype(np.int64)
        begin, end = boards.puzzle_indices[puzzle], boards.puzzle_indices[puzzle + 1]
        return begin + number % (end - begin)

    def at(self, indices: Sequence[int] | np.ndarray) -> PuzzleBatch:
        """The examples at these indices."""
        wanted = np.asarray(indices, np.int64)
        rows = self.rows(wanted)
        inputs, labels = self.boards.inputs[rows], self.boards.labels[rows]
        identifiers = self.boards.identifiers[rows].astype(np.int64)
        if self.augment and self.puzzles.kind.family == "arc":
            inputs, labels, identifiers = self._arc(wanted, inputs, labels, identifiers)
        elif self.augment:
            symmetry = random_symmetries(self.puzzles.kind, self.seed, wanted)
            inputs, labels = symmetry.apply(inputs), symmetry.apply(labels)
        return as_puzzle_batch(inputs, labels, identifiers, self.puzzles.ignore)

    def batch(self, first: int, count: int) -> PuzzleBatch:
        """Examples first … first + count − 1."""
        return self.at(np.arange(first, first + count))

    def example(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        """One example: its board [cells], its answer [cells], its identifier."""
        batch = self.batch(index, 1)
        return batch.inputs[0], batch.labels[0], int(batch.identifiers[0])

    def _draws(self, indices: np.ndarray, count: int) -> np.ndarray:
        return draws(self.seed + 1, indices, count)

    def _arc(
        self, indices: np.ndarray, inputs: np.ndarray, labels: np.ndarray, identifiers: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A variant of the task, which has an identifier of its own, at a place of this example's own."""
        variants = self.puzzles.manifest.variants
        chosen = (self._draws(indices, 2)[:, 1] % np.uint64(variants)).astype(np.int64)
        seed, changed = self.puzzles.manifest.seed, []
        for index, variant, board, answer in zip(indices, chosen, inputs, labels, strict=True):
            change = arc_symmetry(seed, int(variant), int(index) + 1, (board, answer))
            changed.append((change.apply(board), change.apply(answer)))
        known = identifiers > 0
        both = np.array(changed)  # [n, 2, cells]
        return both[:, 0], both[:, 1], np.where(known, identifiers + chosen, 0)


def evaluation_puzzles(
    puzzles: Puzzles, batch_size: int, limit: int | None = None, variant: int = 0
) -> Iterator[PuzzleBatch]:
    """The test puzzles in their order, up to `limit`; the last batch may be smaller.

    With a `variant`, each is changed by one symmetry, the same for all: what a vote over several needs. The
    answers come back by `variant_of(…).inverse()`.
    """
    boards, count = puzzles.test, len(puzzles.test) if limit is None else min(limit, len(puzzles.test))
    for first in range(0, count, batch_size):
        rows = np.arange(first, min(first + batch_size, count))
        inputs, labels = boards.inputs[rows], boards.labels[rows]
        identifiers = boards.identifiers[rows].astype(np.int64)
        if variant:
            symmetry = variant_of(puzzles, variant)
            inputs, labels = symmetry.apply(inputs), symmetry.apply(labels)
            identifiers = np.where(identifiers > 0, identifiers + variant, 0)
        yield as_puzzle_batch(inputs, labels, identifiers, puzzles.ignore)


def variant_of(puzzles: Puzzles, variant: int) -> Symmetry:
    """The symmetry of this number; 0 changes nothing. ARC has `manifest.variants`, those of training."""
    kind = puzzles.kind
    if kind.family == "arc":
        if variant >= puzzles.manifest.variants:
            raise DataError(
                f"variant {variant}: {puzzles.path} was prepared with {puzzles.manifest.variants}; "
                "prepare with more --variants"
            )
        anywhere = np.full(kind.cells, BLACK, np.uint8)
        return arc_symmetry(puzzles.manifest.seed, variant, 0, (anywhere, anywhere))
    if variant == 0:
        return Rearrangement(np.arange(kind.cells), np.arange(kind.vocab_size))
    return random_symmetries(kind, puzzles.manifest.seed, np.array([variant]))


def as_puzzle_batch(
    inputs: np.ndarray, labels: np.ndarray, identifiers: np.ndarray, ignore: int | None
) -> PuzzleBatch:
    import torch

    from srmlab.models.loss import IGNORE

    answers = torch.from_numpy(labels.astype(np.int64))
    if ignore is not None:
        answers[answers == ignore] = IGNORE
    boards = torch.from_numpy(inputs.astype(np.int64))
    return PuzzleBatch(boards, answers, torch.from_numpy(identifiers.astype(np.int64)))
