"""A lexicon: a dictionary with the descriptions of its features. It gives the active features of a state, and
what each of them is.

    lexicon = srmlab.dictionaries.Lexicon.load("runs/nano/dictionaries/last-256-4")
    features, activations = lexicon.in_use(cache["layers.7.out"])   # [batch, token, stream, place]
    lexicon.features.frequency[stream, feature]
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from srmlab.dictionaries.dictionary import CONFIG, Dictionary, check, load
from srmlab.dictionaries.features import Features
from srmlab.errors import UserError
from srmlab.files import sealed
from srmlab.models import LanguageModel
from srmlab.training.run_text import place_for


@dataclass(frozen=True)
class Lexicon:
    """A dictionary with the descriptions of its features."""

    dictionary: Dictionary
    features: Features

    def __post_init__(self) -> None:
        config = self.dictionary.config
        if self.features.fired.shape != (config.streams, config.features):
            raise UserError("these features belong to another dictionary: train it again")

    @classmethod
    def load(cls, folder: str | Path, model: LanguageModel | None = None) -> Lexicon:
        """What `srmlab dictionary` wrote; with a model, only if it was learned on this one."""
        dictionary = load(folder)
        if model is not None:
            check(model, dictionary)
            dictionary.to(model.device)
        if not Features.exists(Path(folder) / "features"):
            raise UserError(f"{folder} has a dictionary but no features: `srmlab dictionary RUN` writes both")
        return cls(dictionary, Features.load(Path(folder) / "features"))

    @torch.inference_mode()
    def in_use(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """States […, S, D] → the features in use, the strongest first, and their activations, each […, S, k]
        (4·k of a dictionary with thresholds). Where fewer are, the others are −1, at 0."""
        activations, features = self.dictionary.encode(states).topk(self.dictionary.config.most)
        return features.masked_fill(activations == 0, -1), activations


def lexicons_of(path: str | Path, config: str = CONFIG) -> list[Path]:
    """The folders that `srmlab dictionary` (or another command, with its `config` file) wrote for a run, a
    checkpoint of one, or an export, newest first; those that a shipped model comes with last. They may be of
    other weights: a run that was trained further, another checkpoint."""
    path = Path(path)
    homes = [
        place_for(path, "dictionaries"),
        path / "dictionaries",
        path.parent / f"{path.name}-dictionaries",
    ]
    if path.parent.name == "checkpoints":
        homes.append(path.parent.parent / "dictionaries")
    found = {file.parent: file.stat().st_mtime for home in homes for file in home.glob(f"[!.]*/{config}")}
    return sorted(found, key=lambda one: (sealed(path) and path in one.parents, -found[one]))


def dictionary_folder(path: str | Path, suits: Callable[[Dictionary], object]) -> Path | None:
    """The newest folder of these whose dictionary `suits` does not refuse."""
    for folder in lexicons_of(path):
        with suppress(UserError):
            suits(load(folder))
            return folder
    return None
