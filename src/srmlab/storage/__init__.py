"""Saving a model and loading it back, from a run, a checkpoint or an export.

    srmlab.save(model, "exports/nano", tokenizer=tokenizer)
    model = srmlab.load("exports/nano")            # an export, also one for Hugging Face
    model = srmlab.load("runs/nano")               # the last good checkpoint of a run
    model = srmlab.load("runs/nano/checkpoints/step-600")

An export is `config.json`, `model.safetensors`, `tokenizer/` if there is one, and `SHA256SUMS` over all of
it; a checkpoint is the same with the optimizer beside it. Nothing is unpickled, and a changed bit is
noticed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from srmlab.errors import UserError
from srmlab.models import LanguageModel, build, config_from_dict

if TYPE_CHECKING:
    from srmlab.data import Tokenizer

# The training package is imported on use: `import srmlab` stays quick.


def save(model: LanguageModel, path: str | Path, tokenizer: Tokenizer | None = None) -> Path:
    """Write an export folder, all of it or nothing. An existing one is not overwritten."""
    from safetensors.torch import save_file

    from srmlab.data import Tokenizer
    from srmlab.training.checkpoint import FORMAT, MODEL, contiguous, model_tensors, write_json
    from srmlab.training.files import sealed_folder

    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        kind = type(tokenizer).__name__
        raise UserError(f"the tokenizer is a {kind}, not one of srmlab.data; save the model without it")
    path = Path(path)
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise UserError(f"{path} exists and is not overwritten: choose another folder, or delete it")
    try:
        with sealed_folder(path) as folder:
            write_json(folder / "config.json", {"format": FORMAT, "model": model.config.to_dict()})
            save_file(contiguous(model_tensors(model)), folder / MODEL)
            if tokenizer is not None:
                tokenizer.save(folder / "tokenizer")
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write {path} ({reason}): choose another folder, or make room") from None
    return path


def load(path: str | Path, *, device: torch.device | str | None = None, verify: bool = True) -> LanguageModel:
    """The model in a run (its last good checkpoint), a checkpoint or an export; in `eval()` mode.

    `verify=False` trusts the files and skips their checksums (about a second for every gigabyte).
    """
    from srmlab.training.checkpoint import load_tensors, model_tensors, read_json, verify_files

    folder = model_folder(path)
    if is_huggingface(folder):
        return load_huggingface(folder).to(device).eval()
    if verify and folder == Path(path):  # a run's checkpoint has been checked when it was chosen
        verify_files(folder)
    model = build(config_from_dict(read_json(folder / "config.json")["model"]))
    load_tensors(folder, model_tensors(model))
    return model.to(device).eval()


def load_tokenizer(path: str | Path) -> Tokenizer | None:
    """The tokenizer that was saved with a run, a checkpoint or an export, if one was."""
    from srmlab.data import load_tokenizer

    folder = Path(path) if is_huggingface(path) else Path(path) / "tokenizer"
    return load_tokenizer(folder) if (folder / "about.json").is_file() else None


def is_huggingface(path: str | Path) -> bool:
    """Whether a folder is an export for Hugging Face tools."""
    try:
        return "model_type" in json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


def load_huggingface(folder: Path) -> LanguageModel:
    from srmlab.interop.huggingface import SRMForCausalLM, quietly

    with quietly():
        return SRMForCausalLM.from_pretrained(folder).model


def model_folder(path: str | Path) -> Path:
    """The folder that holds the weights: the path itself, or the last good checkpoint of a run."""
    from srmlab.training.checkpoint import weights_folder

    return weights_folder(Path(path))
