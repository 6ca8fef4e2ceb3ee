"""What is known of one feature, for its card on the page; finding features by what they raise or are called;
and what a reader notes of them, kept in the run.

Axes:  P point of the dictionary   S stream   k features in use   B batch   T token
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from srmlab.dictionaries import Lexicon
from srmlab.errors import UserError
from srmlab.explorer.tracing import TextTokens, display_strings
from srmlab.files import write_file
from srmlab.models import LanguageModel

EXAMPLES = 5
BINS = 24
FOUND = 40  # features listed at most


@dataclass(frozen=True)
class Note:
    """What a reader says of a feature."""

    label: str = ""
    pinned: bool = False


@dataclass
class Notes:
    """The notes on a dictionary's features, in a file of the run; without a path they are not kept."""

    path: Path | None = None
    notes: dict[str, Note] = field(default_factory=dict)  # by "STREAM.FEATURE"

    @classmethod
    def read(cls, path: Path) -> Notes:
        if not path.is_file():
            return cls(path)
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            notes = {str(name): Note(str(one["label"]), bool(one["pinned"])) for name, one in saved.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} cannot be read ({error}): repair it, or move it away") from None
        return cls(path, notes)

    def put(self, name: str, note: Note) -> None:
        notes = {**self.notes, name: note}
        if note == Note():
            del notes[name]
        if self.path is not None:
            text = json.dumps({key: asdict(one) for key, one in sorted(notes.items())}, indent=1)
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_file(self.path, text)
            except OSError as error:
                raise UserError(
                    f"cannot write {self.path} ({error.strerror}): copy the run to where you may write"
                ) from None
        self.notes = notes


@torch.inference_mode()
def in_use_over(
    model: LanguageModel, lexicon: Lexicon, batches: Iterable[Tensor]
) -> tuple[np.ndarray, np.ndarray]:
    """The features in use over some text and their activations, each [token, stream, P·k]."""
    points = lexicon.dictionary.config.points
    features, activations = [], []
    for tokens in batches:
        with model.evaluating():
            _, cache = model.run_with_cache(tokens.to(model.device), names_filter=list(points))
        used = [lexicon.in_use(cache[point].flatten(0, 1)) for point in points]  # [B·T, S, k]
        for kept, parts in zip((features, activations), zip(*used, strict=True), strict=True):
            kept.append(torch.cat(parts, -1).cpu().numpy())
    return np.concatenate(features), np.concatenate(activations)


def histogram(used: tuple[np.ndarray, np.ndarray], stream: int, feature: int) -> dict[str, Any]:
    """How strong a feature is, where it is in use at all: counts in bins of equal width from 0 to `most`."""
    features, activations = used
    values = activations[:, stream][features[:, stream] == feature]
    most = float(values.max()) if len(values) else 0.0
    counts, _ = np.histogram(values, BINS, (0.0, most or 1.0))
    return {"counts": counts.tolist(), "most": most, "tokens": len(features)}


def card(lexicon: Lexicon, tokenizer: TextTokens, note: Note, stream: int, feature: int) -> dict[str, Any]:
    """A feature's tokens, and the text around its strongest places."""
    found = lexicon.features
    streams, features = found.fired.shape
    if not (0 <= stream < streams and 0 <= feature < features):
        raise UserError(f"S{stream} feature {feature}: there are {streams} streams of {features} features")
    examples = []
    for place in range(min(EXAMPLES, found.strength.shape[-1])):
        tokens, activation = found.context[stream, feature, place], found.activation[stream, feature, place]
        there = tokens >= 0
        if found.strength[stream, feature, place] > 0:
            strings = display_strings(tokenizer, tokens[there].tolist())
            examples.append({"strings": strings, "activation": np.round(activation[there], 4).tolist()})
    return {
        "stream": stream,
        "feature": feature,
        **asdict(note),
        "frequency": float(found.frequency[stream, feature]),
        "raises": display_strings(tokenizer, found.raised[stream, feature].tolist()),
        "lowers": display_strings(tokenizer, found.lowered[stream, feature].tolist()),
        "examples": examples,
    }


def find(lexicon: Lexicon, tokenizer: TextTokens, notes: Notes, query: str) -> list[dict[str, Any]]:
    """Features whose label or raised tokens have the words, the most frequent first; without words, those
    with a note."""
    found, query = lexicon.features, query.strip().lower()
    named = {
        tuple(map(int, name.split("."))) for name, one in notes.notes.items() if query in one.label.lower()
    }
    if query:
        matches = _matching(tokenizer, np.unique(found.raised), query)
        places = np.argwhere(np.isin(found.raised, matches).any(-1) & (found.fired > 0))
        named |= {tuple(place) for place in places.tolist()}
    ranked = sorted(named, key=lambda at: (str_of(at) not in notes.notes, -found.fired[at]))
    return [
        {
            "stream": stream,
            "feature": feature,
            **asdict(notes.notes.get(str_of((stream, feature)), Note())),
            "raises": display_strings(tokenizer, found.raised[stream, feature][:3].tolist()),
        }
        for stream, feature in ranked[:FOUND]
        if stream < found.fired.shape[0] and feature < found.fired.shape[1]
    ]


def str_of(at: Sequence[int]) -> str:
    return f"{at[0]}.{at[1]}"


def _matching(tokenizer: TextTokens, ids: np.ndarray, query: str) -> list[int]:
    strings = display_strings(tokenizer, ids.tolist())
    return [int(token) for token, text in zip(ids, strings, strict=True) if query in text.lower()]
