"""The folder of results: analysis/ of a run. A result is identified by its model, text and settings, and
measured again if one of them changes.

    store = Store(Path("runs/nano"), model, "validation tokens 4f…, 64 windows of 256", [0.1, 4096, None])
    if not store.has("routing"):
        store.save(routing(model, batches))
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from srmlab.analysis import null
from srmlab.analysis.capture import Batches
from srmlab.analysis.result import Result, ResultError, load
from srmlab.analysis.survey import passes, survey
from srmlab.files import write_file
from srmlab.models import LanguageModel
from srmlab.storage.identity import model_fingerprint


class Store:
    def __init__(
        self,
        folder: Path,
        model: LanguageModel,
        text: str,
        settings: Sequence[Any],
        own: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        """`own` has, by name, the settings that only one result depends on."""
        self.results = folder / "analysis"
        self.origin, self.own = (text, *settings), own or {}
        self.model = model_fingerprint(model)
        origin = [self.model, text, *settings]
        self.identity = _hash(origin)
        self.identities = {name: _hash([*origin, *more]) for name, more in self.own.items()}
        self.partial = self.results / "partial" / self.identity  # what is half done
        self.index = self.results / "index.json"  # name of a result → MODEL:IDENTITY, or IDENTITY

    def has(self, name: str) -> bool:
        """Whether it is there, whole, and of this model, text and settings."""
        if self._index().get(name, "").rpartition(":")[2] != self.identities.get(name, self.identity):
            return False
        try:
            self.load(name)
        except ResultError:
            return False
        return True

    def load(self, name: str) -> Result:
        return load(self.results / name)

    def known(self, names: Iterable[str] | None = None) -> dict[str, Result]:
        """Those of the results (by default of all) that need not be measured again."""
        asked = self._index() if names is None else names
        return {name: self.load(name) for name in asked if self.has(name)}

    def save(self, result: Result) -> None:
        result.save(self.results / result.kind)
        identity = self.identities.get(result.kind, self.identity)
        index = self._index() | {result.kind: f"{self.model}:{identity}"}
        write_file(self.index, json.dumps(index, indent=2) + "\n")

    def survey(
        self,
        model: LanguageModel,
        batches: Batches,
        asked: Sequence[str],
        keep: Callable[[Result], None],
        **options: Any,
    ) -> dict[str, Result]:
        """The analyses asked for: known ones as they are, others measured, and kept pass by pass, so that a
        later stop costs less. `options` are those of `srmlab.analysis.survey`."""
        results = self.known(asked)
        for _, missing in passes(name for name in asked if name not in results):
            found = survey(model, batches, missing, known=results, checkpoint=self.partial, **options)
            for name in found.keys() - results.keys():
                keep(found[name])
            results |= found
        return {name: results[name] for name in asked}

    def about(self, result: Result) -> dict[str, Any]:
        """A result in short, for a program to read."""
        return {
            "finding": result.headline(),
            "tokens": result.evidence.tokens,
            "sequences": result.evidence.sequences,
            "text": result.evidence.fingerprint,
            "file": str(self.results / f"{result.kind}.npz"),
        }

    def twin(self, seed: int, model: LanguageModel) -> Store:
        """The folder of an untrained twin's results on the same text: analysis/null/seed-N."""
        text, *settings = self.origin
        folder = self.results / null.FOLDER
        store = Store(folder, model, text, settings, self.own)
        store.results = folder / f"seed-{seed}"
        store.partial, store.index = store.results / "partial" / store.identity, store.results / "index.json"
        return store

    def finish(self, order: Sequence[str]) -> None:
        """Delete partial results, and write the summary of all that was measured of this model, on any text,
        next to untrained twins where they are known."""
        shutil.rmtree(self.partial.parent, ignore_errors=True)
        self.results.mkdir(parents=True, exist_ok=True)
        sections = []
        for name in order:
            if self._index().get(name, "").startswith(f"{self.model}:") or self.has(name):
                with suppress(ResultError):
                    result = self.load(name)
                    twins = null.saved_twins(self.results, result)
                    sections.append(result.summary() + (f"\n{null.summary(result, twins)}" if twins else ""))
        write_file(self.results / "summary.txt", "\n\n".join(map(str.rstrip, sections)) + "\n")

    def _index(self) -> dict[str, str]:
        try:
            return json.loads(self.index.read_text())
        except (OSError, ValueError):
            return {}


def _hash(origin: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(origin).encode()).hexdigest()[:16]
