"""Trained models that come with the package: something real to look at one second after install.

    >>> import srmlab
    >>> model = srmlab.load(srmlab.pretrained.folder())
    >>> model.num_parameters()
    491520

The folder is an export (weights and tokenizer) with the run's record, log and analyses, a dictionary of its
streams, transcoders of its MLPs, a piece of the validation text, an early checkpoint to compare with, and
`train.toml`, which `srmlab train --config` takes to make it again. `folder("sudoku")` is a model of 4 × 4
sudokus, with its test puzzles: `--pretrained sudoku` in the commands.
"""

from __future__ import annotations

from pathlib import Path

NAME = "srm-nano"
NAMES = tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("*/config.json")))


def folder(name: str = NAME) -> Path:
    """Where a model is: a path for `srmlab.load` and for every command that takes a run."""
    return Path(__file__).parent / name
