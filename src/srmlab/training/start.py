"""`train` starts a run, `resume` continues one: everything is checked, then the loop takes over."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from srmlab.errors import UserError
from srmlab.models import ModelConfig
from srmlab.storage.run_directory import RunDirectory
from srmlab.storage.save_and_load import named
from srmlab.training.config import TrainConfig
from srmlab.training.distributed import open_world
from srmlab.training.initial import begin, model_of
from srmlab.training.loop import Trainer, TrainResult
from srmlab.training.memory import keep_buffers
from srmlab.training.objective import open_data
from srmlab.training.plan import check_plan, run_of
from srmlab.training.run import RunConfig


def train(
    config: TrainConfig,
    model_config: ModelConfig | None,
    data_dir: str | Path,
    out: str | Path,
    *,
    init_from: str | Path | None = None,
    resume: bool = False,
    preset: str | None = None,
    show: bool = True,
) -> TrainResult:
    """Train a model; all about it is then in the folder `out`. With `resume`, continue the run that is there.

    train(TrainConfig(steps=100, batch_size=8), srmlab.preset("srm-nano"), "data/sotu", "runs/nano")

    With `init_from` it begins with the weights of a run, a checkpoint or an export; the model is that one's,
    or one whose weights have the same shapes.

    train(TrainConfig(steps=50, batch_size=8), None, "data/mine", "runs/mine", init_from="runs/nano")
    """
    keep_buffers()
    run = RunDirectory(out)
    with open_world(config.device, config.strategy) as world:
        data = open_data(data_dir, verify=world.main)
        again = resume and world.share(run.exists())
        start = None
        if init_from is not None:
            init_from = named(init_from)
            model_config = model_config or (RunConfig.read(out).model if again else model_of(init_from))
            start = begin(init_from, run, model_config, data, world, again=again)
        if model_config is None:
            raise UserError("train needs a model config, or init_from")
        this = run_of(model_config, config, data, preset, start)
        check_plan(this, data, world, again=again)
        with contextlib.ExitStack() as held:
            with world.only_main() as mine:
                if mine and again:
                    held.enter_context(run.lock())
                    fix = f"resume with what {run.path / 'run.json'} says, or start a new run"
                    RunConfig.read(out).refuse_other(this, fix)
                elif mine:
                    run.refuse_occupied()
                    this.create(run)
                    held.enter_context(run.lock())
            trainer = held.enter_context(Trainer.open(this, data, run, world, show=show))
            return trainer.run_to_the_end()


def resume(
    run: str | Path, *, data_dir: str | Path | None = None, show: bool = True, **changes: Any
) -> TrainResult:
    """Continue a run from its last good checkpoint. Fields of `Execution` may change, the data may move."""
    saved = RunConfig.read(run)
    config = saved.training.replace(**changes)
    return train(
        config,
        saved.model,
        data_dir or saved.data,
        run,
        init_from=saved.init_from and saved.init_from.path,
        resume=True,
        preset=saved.preset,
        show=show,
    )
