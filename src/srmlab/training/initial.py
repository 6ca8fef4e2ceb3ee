"""Starting a run from another run's weights: `srmlab train --init-from runs/nano`.

Only weights and fixed states are taken: the optimizer, its schedule, the data order and the generators of
what the model draws (random step orders, Huginn's first states) start afresh. `run.json` records the path of
the weights and their checksum. A checkpoint is written before the first step; from then on the source may
change or be deleted. A run that was stopped before that starts again from the same weights, or not at all.
"""

from __future__ import annotations

import json
from pathlib import Path

from srmlab.data import TokenData
from srmlab.errors import UserError
from srmlab.files import SUMS, sha256
from srmlab.models import ModelConfig, config_from_dict, outline
from srmlab.puzzles import Puzzles
from srmlab.storage.run_directory import RunDirectory
from srmlab.storage.save_and_load import is_huggingface
from srmlab.storage.weights import CheckpointError, model_tensors, read_json, verify_files, weights_folder
from srmlab.training.distributed import World
from srmlab.training.evaluation import check_tokenizer, check_vocabulary
from srmlab.training.run import InitialWeights, RunConfig


def model_of(path: str | Path) -> ModelConfig:
    """The config of the model in a run, a checkpoint or an export. No weight is read."""
    path = Path(path)
    if (path / "config.json").is_file():
        if is_huggingface(path):
            return config_from_dict(json.loads((path / "config.json").read_text(encoding="utf-8"))["srm"])
        content = read_json(path / "config.json")
        if not isinstance(content.get("model"), dict):
            raise CheckpointError(f"{path / 'config.json'} is damaged: it does not describe a model")
        return config_from_dict(content["model"])
    if RunDirectory(path).exists():
        return RunConfig.read(path).model
    what = "is not a run, checkpoint or export" if path.exists() else "does not exist"
    raise UserError(f"{path} {what}: give the folder of a run, a checkpoint or an export")


def find_weights(path: str | Path, model: ModelConfig, data: TokenData | Puzzles) -> InitialWeights:
    """The checked weights in a run (its last good checkpoint), a checkpoint or an export; they must fit."""
    path = Path(path)
    source = check_source(path, model)
    folder = weights_folder(path)
    if folder == path:  # a run's checkpoint has been checked when it was chosen
        verify_files(path)
    if isinstance(data, TokenData):  # what puzzles need of a model, check_plan knows
        check_vocabulary(source.vocab_size, data.vocab_size, data.path, trained=True)
        check_tokenizer(folder, data)
    return InitialWeights(folder.absolute(), sha256(folder / SUMS))


def check_source(path: Path, model: ModelConfig) -> ModelConfig:
    """The config of the model that is there, if its weights can be loaded into this one."""
    if is_huggingface(path):
        raise UserError(f"{path} is an export for Hugging Face tools: give the run, or an export of srmlab")
    source = model_of(path)
    refuse_misfit(path, source, model)
    return source


def refuse_misfit(path: Path, source: ModelConfig, model: ModelConfig) -> None:
    """Every weight must have its place. What has none may differ, as the depth: its layer is shared."""
    theirs, ours = shapes(source), shapes(model)
    fix = "change only what has no weights, such as --model.depth, and give no preset"
    for name in [*ours, *theirs]:
        if ours.get(name) != theirs.get(name):
            there, here = theirs.get(name, "missing"), ours.get(name, "missing")
            raise UserError(f"{path} does not fit the model ({name} is {there} there, {here} here): {fix}")
    before, after = getattr(source, "z0", None), getattr(model, "z0", None)
    if before != after:  # the state would be loaded, and be another than the config says
        raise UserError(f"{path} does not fit the model (z0 is {before!r} there, {after!r} here): {fix}")


def shapes(config: ModelConfig) -> dict[str, list[int]]:
    tensors = model_tensors(outline(config))
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


def refuse_changed(weights: InitialWeights) -> None:
    """Before a run without a checkpoint begins again."""
    path = weights.path
    fix = "bring it back, or start a new run (this one has no checkpoint yet)"
    if not path.is_dir():
        raise UserError(f"{path}, whose weights the run started from, is gone: {fix}")
    verify_files(path)
    if sha256(path / SUMS) != weights.sha256:
        raise UserError(f"{path}, whose weights the run started from, has changed: {fix}")


def begin(
    path: str | Path,
    run: RunDirectory,
    model: ModelConfig,
    data: TokenData | Puzzles,
    world: World,
    *,
    again: bool,
) -> InitialWeights:
    """What to write into `run.json`; when resuming, what is already there: its source may be gone."""
    if again:
        saved, given = RunConfig.read(run.path).init_from, Path(path).absolute()
        return saved if saved and saved.path.is_relative_to(given) else InitialWeights(given, "")
    found: InitialWeights | None = None
    with world.only_main() as mine:
        if mine:
            found = find_weights(path, model, data)
    return world.share(found)
