"""Weights on disk: where a path keeps them, whether they are whole, and how they get into a model.

    FOLDER/config.json              the model
    FOLDER/model.safetensors        its weights and fixed states
    FOLDER/shards/*.safetensors     instead, where a model was trained in shards: one file a process
    FOLDER/tokenizer/               if there is one
    FOLDER/SHA256SUMS               every file; `sha256sum -c SHA256SUMS` checks them, and so does every load

That is an export. A checkpoint (`srmlab.training.checkpoint`) has the optimizer and the step beside it, and a
run keeps its checkpoints as `checkpoints/step-N`. A tensor is stored under its parameter's name, whatever the
number of processes. Nothing is unpickled.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from srmlab.errors import Notice, UserError, nearest, reason
from srmlab.files import DamagedFile, check_sums
from srmlab.pretrained import NAMES

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

FORMAT = 1
MODEL, OPTIMIZER, SHARDS = "model.safetensors", "optimizer.safetensors", "shards"


class CheckpointError(UserError):
    """A checkpoint that cannot be written or used. The message is one line and names the file."""


# --- where they are -----------------------------------------------------------------------------------------


def weights_folder(path: str | Path) -> Path:
    """The folder that holds the weights: the path itself, or the last good checkpoint of a run."""
    path = Path(path)
    if (path / "config.json").is_file():
        return path
    if not path.exists():
        shipped = nearest(str(path), list(NAMES))
        raise UserError(f"{path} does not exist: give a run, a checkpoint or an export{shipped}")
    if not (path / "run.json").is_file():
        raise UserError(f"{path} is not a run, checkpoint or export: it has neither run.json nor config.json")
    found = latest_checkpoint(path / "checkpoints", lambda line: warnings.warn(line, Notice, stacklevel=5))
    if found is None:
        raise UserError(no_checkpoint(path))
    return found


def no_checkpoint(run: Path) -> str:
    """What is wrong with a run that has no whole checkpoint, and what to do."""
    if not (damaged := len(checkpoint_steps(run / "checkpoints"))):
        return f"{run} has no checkpoint yet: wait for the first, or `srmlab resume {run}`"
    all_of_them = "its only checkpoint is" if damaged == 1 else f"all of its {damaged} checkpoints are"
    return f"{run} cannot be used: {all_of_them} damaged; restore one from a backup, or train again"


def latest_checkpoint(folder: Path, report: Callable[[str], None]) -> Path | None:
    """The last checkpoint in `folder` that is whole; `report` gets one line for every later one."""
    steps = checkpoint_steps(folder)
    for step in reversed(steps):
        path = folder / f"step-{step}"
        try:
            verify(path)
            return path
        except CheckpointError as error:
            report(str(error) if step == steps[0] else f"{error}; trying the checkpoint before it")
    return None


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint in `folder`, in order."""
    matches = (re.fullmatch(r"step-(\d+)", path.name) for path in folder.glob("step-*"))
    return sorted(int(match[1]) for match in matches if match)


# --- whether they are whole ---------------------------------------------------------------------------------


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
    """One of the JSON files next to the weights."""
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


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps({"format": FORMAT, **content}, indent=2) + "\n", encoding="utf-8")


# --- to and from a model ------------------------------------------------------------------------------------


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; one that has two names (TRM's shared net) by its first."""
    seen: set[int] = set()
    state = model.state_dict(keep_vars=True)
    return {
        name: tensor.detach()
        for name, tensor in state.items()
        if not (id(tensor) in seen or seen.add(id(tensor)))
    }


def contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether a process has only its part of it; asked without importing DTensor, which takes a second."""
    return hasattr(tensor, "full_tensor")


def saved_in_double(path: Path) -> bool:
    """Whether some of the weights are float64, which a model in float32 would round."""
    if not (path / MODEL).is_file():  # shards, which training writes, in float32
        return False
    try:
        with safe_open(path / MODEL, framework="pt") as stored:
            return any(stored.get_slice(name).get_dtype() == "F64" for name in stored.keys())  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path / MODEL} cannot be read ({reason(error)})") from None


def load_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Fill `tensors` in place, each from what is stored under its name."""
    sharded = (path / SHARDS).is_dir()
    with torch.no_grad():
        if sharded or any(map(is_sharded, tensors.values())):
            _load_shards(path / SHARDS if sharded else path, tensors)
        else:
            _load_whole(path, tensors)


def _load_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    from torch.distributed.checkpoint import state_dict_loader  # a second that few loads need
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    alone = not torch.distributed.is_initialized()
    with warnings.catch_warnings():  # that it loads in a single process, which is meant
        warnings.simplefilter("ignore", UserWarning)
        reader = HuggingFaceStorageReader(str(folder))
        state_dict_loader.load(dict(tensors), storage_reader=reader, no_dist=alone)


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
            raise CheckpointError(f"{path / file} cannot be read ({reason(error)})") from None
    if waiting:
        raise CheckpointError(
            f"{path} lacks {next(iter(waiting))} and {len(waiting) - 1} more tensors of this model"
        )
