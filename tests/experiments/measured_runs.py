"""A run to be measured after its training, and the text that it is measured on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import srmlab
from srmlab.data import Batch, EvaluationBatches, PrepareConfig, open_tokens, prepare
from srmlab.experiments.measures import measure
from srmlab.models import LanguageModel, SRMConfig
from srmlab.storage import save


def measured(folder: Path, config: SRMConfig, name: str) -> tuple[LanguageModel, list[Batch], dict[str, Any]]:
    """A model as if trained, the windows it was measured on, and what folder/run/NAME.json says of it."""
    (folder / "words.txt").write_text("\n\n".join(f"stream {n} meets step {n * n}" for n in range(300)))
    prepare(PrepareConfig(source=str(folder / "words.txt"), out=folder / "data", tokenizer="byte"))
    model = srmlab.build(config)
    for weight in model.parameters():
        weight.data *= 1.5
    save(model, folder / "run")
    measure(folder / "run", str(folder / "data"), [name])
    tokens, context = open_tokens(folder / "data").val, config.context
    batches = list(EvaluationBatches(tokens, context, 8, 8 * context, spread=True))
    return model, batches, json.loads((folder / "run" / f"{name}.json").read_text())
