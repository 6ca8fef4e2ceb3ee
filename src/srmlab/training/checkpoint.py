"""Checkpoints: the whole state of a training run after a step, exact and never half there.

    checkpoints/step-250/
      config.json              the model
      model.safetensors        its weights and fixed states
      optimizer.safetensors    the optimizer's means and counts, and the generator of random step orders
      shards/*.safetensors     instead of those two when the model is sharded: one file a process
      training.json            the step, the training config, the data's fingerprint, the format
      tokenizer/               so that the model can be used without its data
      SHA256SUMS               every file; `sha256sum -c SHA256SUMS` checks them, and so does every load

A tensor is filed under its parameter's name, the optimizer's under `NAME.exp_avg` and so on, whatever the
number of processes: a checkpoint of one world loads into any other. There is no other state. Batches,
learning rate and dropout are functions of the seed and the step.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.tensor import DTensor

from srmlab.errors import Notice, UserError
from srmlab.training.distributed import World
from srmlab.training.files import DamagedFile, check_sums, remove_folder, sealed_folder, sweep_leftovers

FORMAT = 1
MODEL, OPTIMIZER, SHARDS = "model.safetensors", "optimizer.safetensors", "shards"
GENERATOR = "order_generator"


class CheckpointError(UserError):
    """A checkpoint that cannot be written or used. The message is one line and names the file."""


# --- what is saved ------------------------------------------------------------------------------------------


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; one that has two names (TRM's shared net) by its first."""
    seen: set[int] = set()
    state = model.state_dict(keep_vars=True)
    return {
        name: tensor.detach()
        for name, tensor in state.items()
        if not (id(tensor) in seen or seen.add(id(tensor)))
    }


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by parameter name, counts as vectors of one; and the generator's state."""
    tensors = {
        f"{name}.{key}": value.view(1) if value.ndim == 0 else value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
    if (generator := getattr(model, GENERATOR, None)) is not None:
        tensors[GENERATOR] = generator.get_state()
    return tensors


# --- writing ------------------------------------------------------------------------------------------------


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    config: Mapping[str, Any],
    training: Mapping[str, Any],
    world: World,
    tokenizer: Path | None = None,
) -> None:
    """Write `folder`, all of it or nothing. Every process calls this; `training` must hold the step."""
    model_part, optimizer_part = model_tensors(model), optimizer_tensors(model, optimizer)
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
                with sealed_folder(folder) as temporary:
                    if not sharded:
                        save_file(contiguous(model_part), temporary / MODEL)
                        save_file(contiguous(optimizer_part), temporary / OPTIMIZER)
                    write_json(temporary / "config.json", {"format": FORMAT, "model": dict(config)})
                    write_json(temporary / "training.json", {"format": FORMAT, **training})
                    if tokenizer is not None:
                        shutil.copytree(tokenizer, temporary / "tokenizer")
    except (OSError, SafetensorError, CheckpointException) as error:
        raise CheckpointError(
            f"cannot write {folder} ({_reason(error)}): the checkpoints before it are intact; "
            "make room, or give yourself permission, and `srmlab resume` the run"
        ) from None


def _save_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Every process writes a safetensors file of its own: no pickle, unlike DCP's first format."""
    state_dict_saver.save(
        dict(tensors), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True)
    )


def prune(folder: Path, keep: int, upto: int) -> None:
    """Remove all but the last `keep` checkpoints up to a step. Later ones, which must be damaged, stay."""
    for step in [step for step in checkpoint_steps(folder) if step <= upto][:-keep]:
        remove_folder(folder / f"step-{step}")
    sweep_leftovers(folder)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _reason(error: BaseException) -> str:
    if isinstance(error, CheckpointException):
        error = next(iter(error.failures.values()))[0]
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.splitlines()[0]


# --- reading ------------------------------------------------------------------------------------------------


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint in `folder`, in order."""
    matches = (re.fullmatch(r"step-(\d+)", path.name) for path in folder.glob("step-*"))
    return sorted(int(match[1]) for match in matches if match)


def weights_folder(path: Path) -> Path:
    """The folder that holds the weights: the path itself, or the last good checkpoint of a run."""
    if (path / "config.json").is_file():
        return path
    if not path.exists():
        raise UserError(f"{path} does not exist: give a run, a checkpoint or an export")
    if not (path / "run.json").is_file():
        raise UserError(f"{path} is no run, checkpoint or export: it has neither run.json nor config.json")
    found = latest_checkpoint(path / "checkpoints", lambda line: warnings.warn(line, Notice, stacklevel=5))
    if found is None:
        raise UserError(f"{path} has no whole checkpoint yet: wait for the first, or `srmlab resume {path}`")
    return found


def latest_checkpoint(folder: Path, report: Callable[[str], None]) -> Path | None:
    """The last checkpoint in `folder` that is whole; `report` gets one line for every later one."""
    for step in reversed(checkpoint_steps(folder)):
        path = folder / f"step-{step}"
        try:
            verify(path)
            return path
        except CheckpointError as error:
            report(f"{error}; trying the checkpoint before it")
    return None


def verify(path: Path) -> None:
    """Raise `CheckpointError` with the name of the bad file, unless all is to the bit what was written."""
    verify_files(path)
    saved = read_json(path / "training.json")["step"]
    if path.name.startswith("step-") and path.name != f"step-{saved}":
        raise CheckpointError(f"{path}: training.json is of step {saved}")


def verify_files(path: Path) -> None:
    """The same for an export, which has no step."""
    try:
        check_sums(path)
    except DamagedFile as error:
        raise CheckpointError(f"{path}: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content["format"]
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent}: {path.name} is missing") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read ({error!r})") from None
    if version > FORMAT:
        raise CheckpointError(
            f"{path} has format {version}, this version reads up to {FORMAT}: upgrade srmlab"
        )
    return content


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Fill a model and its optimizer, of any world, from a verified checkpoint."""
    tensors = model_tensors(model) | optimizer_tensors(model, optimizer)
    load_tensors(path, tensors)
    if GENERATOR in tensors:
        getattr(model, GENERATOR).set_state(tensors[GENERATOR])


def load_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Fill `tensors` in place, each from what is filed under its name."""
    shards = path / SHARDS
    with torch.no_grad():
        if shards.is_dir() or any(isinstance(tensor, DTensor) for tensor in tensors.values()):
            reader = HuggingFaceStorageReader(str(shards if shards.is_dir() else path))
            alone = not torch.distributed.is_initialized()
            with warnings.catch_warnings():  # that it loads in a single process, which is meant
                warnings.simplefilter("ignore", UserWarning)
                state_dict_loader.load(dict(tensors), storage_reader=reader, no_dist=alone)
        else:
            _load_whole(path, tensors)


def _load_whole(path: Path, tensors: dict[str, Tensor]) -> None:
    waiting = dict(tensors)
    for file in (MODEL, OPTIMIZER):
        if not waiting or not (path / file).is_file():
            continue
        try:
            with safe_open(path / file, framework="pt") as stored:
                for name in set(stored.keys()) & set(waiting):
                    target, value = waiting.pop(name), stored.get_tensor(name)
                    if target.shape != value.shape:
                        raise CheckpointError(
                            f"{path / file}: {name} has shape {list(value.shape)}, not {list(target.shape)}; "
                            "config.json does not belong to these weights"
                        )
                    target.copy_(value)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path / file} cannot be read ({_reason(error)})") from None
    if waiting:
        raise CheckpointError(
            f"{path} lacks {next(iter(waiting))} and {len(waiting) - 1} more tensors of this model"
        )
