"""Checkpoints: the whole state of a training run after a step, exact and never half-written.

    checkpoints/step-250/
      config.json              the model
      model.safetensors        its weights and fixed states
      optimizer.safetensors    the optimizer's state, and the generators of what the model draws in training
      shards/*.safetensors     instead of those two if the model is sharded: one file per process
      training.json            the step, the training config, the data's fingerprint, the format
      tokenizer/               so that the model can be used without its data
      SHA256SUMS               every file; `sha256sum -c SHA256SUMS` checks them, and so does every load

A tensor is stored under its parameter's name, the optimizer's under `NAME.exp_avg` and so on, whatever the
number of processes: a checkpoint of one world size loads into any other. With puzzles there are also the
states of their slots, and, if the model is an EMA of the weights, the weights themselves
(`srmlab.training.segments`). There is no other state. Batches, learning rate and dropout are functions of the
seed and the step. `srmlab.storage.weights` finds and reads what is written here.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from srmlab.errors import reason
from srmlab.files import remove_folder, sealed_folder, sweep_leftovers
from srmlab.models import LanguageModel
from srmlab.storage.weights import (
    MODEL,
    OPTIMIZER,
    SHARDS,
    CheckpointError,
    checkpoint_steps,
    contiguous,
    load_tensors,
    model_tensors,
    write_json,
)
from srmlab.training.distributed import World

# --- what is saved beside the model -------------------------------------------------------------------------


def optimizer_tensors(model: LanguageModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by parameter name, counts as vectors of one; and the generators' states."""
    tensors = {
        f"{name}.{key}": value.view(1) if value.ndim == 0 else value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
    return tensors | random_state(model)


def random_state(model: LanguageModel) -> dict[str, Tensor]:
    """The states of the generators that belong to the training state, by name."""
    return {name: generator.get_state() for name, generator in model.generators.items()}


def set_random_state(model: LanguageModel, states: Mapping[str, Tensor]) -> None:
    """The inverse of `random_state`."""
    for name, generator in model.generators.items():
        generator.set_state(states[name])


# --- writing ------------------------------------------------------------------------------------------------


def save_checkpoint(
    folder: Path,
    model: LanguageModel,
    optimizer: torch.optim.Optimizer,
    *,
    config: Mapping[str, Any],
    training: Mapping[str, Any],
    world: World,
    tokenizer: Path | None = None,
    weights: Mapping[str, Tensor] | None = None,
    state: Mapping[str, Tensor] | None = None,
) -> None:
    """Write `folder`, all of it or nothing. Every process calls this; `training` must hold the step.

    `weights` replace those of the model; `state` is the objective's.
    """
    model_part = {**model_tensors(model), **(weights or {})}
    optimizer_part = {**optimizer_tensors(model, optimizer), **(state or {})}
    temporary = folder.with_name(f".writing-{folder.name}")
    sharded = world.strategy == "fsdp"
    try:
        with world.only_main() as mine:
            if mine:
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir(parents=True)
        if sharded:
            _save_shards(temporary / SHARDS, model_part | optimizer_part)
        with world.only_main() as mine:
            if mine:
                with sealed_folder(folder, begun=True) as temporary:
                    if not sharded:
                        save_file(contiguous(model_part), temporary / MODEL)
                        save_file(contiguous(optimizer_part), temporary / OPTIMIZER)
                    write_json(temporary / "config.json", {"model": dict(config)})
                    write_json(temporary / "training.json", training)
                    if tokenizer is not None:
                        shutil.copytree(tokenizer, temporary / "tokenizer")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"cannot write {folder} ({reason(error)}): the checkpoints before it are intact; "
            "free some space or fix the permissions, then `srmlab resume` the run"
        ) from None


def _save_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Every process writes a safetensors file of its own: no pickle, unlike DCP's first format."""
    from torch.distributed.checkpoint import state_dict_saver  # a second that few runs need
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        state_dict_saver.save(dict(tensors), storage_writer=writer)
    except CheckpointException as error:
        raise OSError(reason(next(iter(error.failures.values()))[0])) from None


def prune(folder: Path, keep: int, upto: int) -> None:
    """Remove all but the last `keep` checkpoints up to a step. Later ones, which must be damaged, stay."""
    for step in [step for step in checkpoint_steps(folder) if step <= upto][:-keep]:
        remove_folder(folder / f"step-{step}")
    sweep_leftovers(folder)


# --- reading ------------------------------------------------------------------------------------------------


def load_checkpoint(
    path: Path,
    model: LanguageModel,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Tensor] | None = None,
) -> None:
    """Fill a model and its optimizer, of any world, and the state of the objective from a verified
    checkpoint.
    """
    tensors = model_tensors(model) | optimizer_tensors(model, optimizer)
    load_tensors(path, {**tensors, **(state or {})})
    set_random_state(model, tensors)
