"""A model and its tokenizer as a folder: `save`, `load`, `load_tokenizer`.

>>> import srmlab
>>> model, tokenizer = srmlab.load("srm-nano"), srmlab.load_tokenizer("srm-nano")
>>> written = srmlab.generate(model, tokenizer("My fellow"), max_new_tokens=8, seed=0)
>>> tokenizer.decode(written[0].tolist())[:9]
'My fellow'
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file

from srmlab import data, pretrained
from srmlab.data import Tokenizer
from srmlab.errors import UserError
from srmlab.files import refuse_unwritable, sealed_folder, writing
from srmlab.models import PRESETS, LanguageModel, build, config_from_dict
from srmlab.storage.run_directory import RunDirectory, homes
from srmlab.storage.weights import (
    MODEL,
    contiguous,
    load_tensors,
    model_tensors,
    read_json,
    saved_in_double,
    verify_files,
    weights_folder,
    write_json,
)


def save(model: LanguageModel, path: str | Path, tokenizer: Tokenizer | None = None) -> Path:
    """Write an export folder, all of it or nothing. An existing one is not overwritten."""
    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        kind = type(tokenizer).__name__
        raise UserError(f"the tokenizer is a {kind}, not one of srmlab.data; save the model without it")
    path = Path(path)
    refuse_unwritable(path, "folder")
    with writing(path, "folder"), sealed_folder(path) as folder:
        write_json(folder / "config.json", {"model": model.config.to_dict()})
        save_file(contiguous(model_tensors(model)), folder / MODEL)
        if tokenizer is not None:
            tokenizer.save(folder / "tokenizer")
    return path


def load(path: str | Path, *, device: torch.device | str | None = None, verify: bool = True) -> LanguageModel:
    """The model in a run (its last good checkpoint), a checkpoint or an export, or one that comes with
    the package, `load("srm-nano")`; in `eval()` mode, and in float64 if it was saved so. It knows the
    tokenizer beside it: `model.tokenizer`.

    `verify=False` trusts the files and skips their checksums (about a second for every gigabyte).
    """
    path = named(path)
    if str(path) in PRESETS and not path.exists():
        fresh = f'srmlab.build(srmlab.preset("{path}"))'
        raise UserError(f"{path} is a preset, which has no trained weights: {fresh} draws new ones")
    folder = weights_folder(path)
    if is_huggingface(folder):
        model = _load_huggingface(folder)
    else:
        if verify and folder == Path(path):  # a run's checkpoint has been checked when it was chosen
            verify_files(folder)
        model = build(config_from_dict(read_json(folder / "config.json")["model"]))
        model = model.double() if saved_in_double(folder) else model
        load_tensors(folder, model_tensors(model))
    model.find_tokenizer = partial(saved_tokenizer, path)
    return model.to(device).eval()


def named(path: str | Path) -> Path:
    """A path, or the name of a model that comes with the package."""
    shipped = str(path) in pretrained.NAMES and not Path(path).exists()
    return pretrained.folder(str(path)) if shipped else Path(path)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a run, a checkpoint, an export, or the shipped model, `load_tokenizer("srm-nano")`."""
    if (found := saved_tokenizer(path)) is None:
        raise UserError(f"no tokenizer.json in {path} or its folder tokenizer/: give the run or the export")
    return found


def saved_tokenizer(path: str | Path) -> Tokenizer | None:
    """The tokenizer that was saved with a run, a checkpoint or an export, if one was."""
    for home in homes(named(path)):
        folder = home if (home / "tokenizer.json").is_file() else home / "tokenizer"
        if any((folder / name).is_file() for name in ("tokenizer.json", "about.json")):
            RunDirectory(home).check_seal()
            return data.load_tokenizer(folder)
    return None


def is_huggingface(path: str | Path) -> bool:
    """Whether a folder is an export for Hugging Face tools; other people's models are refused."""
    try:
        content = json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if "model_type" not in content:
        return False
    if "srm" not in content:
        kind = content["model_type"]
        raise UserError(f"{path} is a {kind} model of another library: give a run, a checkpoint or an export")
    return True


def _load_huggingface(folder: Path) -> LanguageModel:
    from srmlab.interop.huggingface import SRMForCausalLM, quietly

    with quietly():
        return SRMForCausalLM.from_pretrained(folder).model
