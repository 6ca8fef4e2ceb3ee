"""Symmetries written out, as the code of HRM and TRM wants its training data; ours draws them as it goes.

A puzzle and its copies are one group, of which HRM and TRM take one member an epoch. A copy of an ARC task
is a variant of the whole task, with an identifier of its own; tests are copied too, for votes.
"""

from __future__ import annotations

import numpy as np

from srmlab.puzzles.folder import Boards
from srmlab.puzzles.kinds import Kind
from srmlab.puzzles.symmetries import arc_symmetry, random_symmetries


def with_copies(kind: Kind, boards: Boards, copies: int, seed: int) -> Boards:
    """Sudokus or mazes, each followed by so many of its symmetries."""
    each = 1 + copies
    rows = np.repeat(np.arange(len(boards)), each)
    inputs, labels = boards.inputs[rows], boards.labels[rows]
    changed = np.flatnonzero(np.arange(len(rows)) % each)
    if len(changed):
        symmetry = random_symmetries(kind, seed, changed)
        inputs[changed], labels[changed] = symmetry.apply(inputs[changed]), symmetry.apply(labels[changed])
    ends = np.arange(len(rows) + 1, dtype=np.int32)  # every example is a puzzle
    groups = (boards.puzzle_indices[boards.group_indices] * each).astype(np.int32)
    identifiers = boards.identifiers[rows].astype(np.int32)
    return Boards(inputs, labels, boards.ratings[rows], identifiers, ends, groups)


def with_variants(boards: Boards, variants: int, seed: int, move: bool) -> Boards:
    """ARC's tasks, each written out in so many variants; with `move`, each pair at a place of its own."""
    pairs, identifiers, sizes, ratings = [], [], [], []
    for puzzle, identifier in enumerate(boards.puzzle_identifiers):
        own = range(boards.puzzle_indices[puzzle], boards.puzzle_indices[puzzle + 1])
        for variant in range(variants):
            for row in own:
                pair = boards.inputs[row], boards.labels[row]
                number = len(pairs) if move and variant else 0
                change = arc_symmetry(seed, variant, number, pair)
                pairs.append([change.apply(board) for board in pair])
            identifiers.append(identifier + variant)
            sizes.append(len(own))
            ratings += boards.ratings[list(own)].tolist()
    both = np.array(pairs, np.uint8).reshape(-1, 2, boards.inputs.shape[1])  # also without a pair
    ends = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    groups = boards.group_indices * variants
    names = np.array(identifiers, np.int32)
    return Boards(both[:, 0], both[:, 1], np.array(ratings, np.int32), names, ends, groups.astype(np.int32))
