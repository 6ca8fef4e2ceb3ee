"""The reader of a run's `metrics.jsonl`; `srmlab.training.metrics` says what is in a row, and writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def iter_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a `metrics.jsonl` one by one; a last line that was cut short by a crash is left out."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            yield row


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All rows of a `metrics.jsonl`."""
    return list(iter_metrics(path))
