"""A trained model that comes with the package: something real to look at one second after install.

    >>> import srmlab
    >>> model = srmlab.load(srmlab.pretrained.folder())
    >>> model.num_parameters()
    491520

The folder is an export (weights and tokenizer) with the run's record, log and analyses, a dictionary of its
streams, a piece of the validation text, an early checkpoint to compare with, and `train.toml`, which
`srmlab train --config` takes to make it again.
"""

from __future__ import annotations

from pathlib import Path

NAME = "srm-nano"


def folder() -> Path:
    """Where the model is: a path for `srmlab.load` and for every command that takes a run."""
    return Path(__file__).parent / NAME
