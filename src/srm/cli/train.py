"""`srm train PRESET`: from prepared tokens to a trained model."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

import srm
from srm.errors import UserError, nearest
from srm.models import ModelConfig
from srm.training.config import TrainConfig, known_fields
from srm.training.recipes import recipe

TOML_KEYS = ("preset", "data", "out", "model", "training")


@dataclass
class Command:
    """Train a model on prepared tokens. All about it ends up in the folder --out.

    Every field of the model (--model.FIELD) and of the training is an option; `srm train PRESET --help`
    shows them with the preset's values. A TOML file can set them too: the command line goes before the
    file, and the file before the preset.

    Example:
        srm train srm-nano --data data/sotu --out runs/nano --steps 600
        srm train srm-med --data data/owt --out runs/med --dry-run
        srm train --config med.toml --lr 5e-4

    med.toml:
        preset = "srm-med"
        data = "data/owt"
        out = "runs/med"
        [model]
        order = "ABCCBA"
        [training]
        steps = 1000
    """

    preset: tyro.conf.Positional[str]
    """A model by name; `srm presets` lists them."""
    data: Path
    """Folder of `srm prepare`."""
    out: Path
    """The run's folder; must not exist."""
    config: Path | None = None
    """A TOML file with preset, data, out, [model] and [training]."""
    resume: bool = False
    """Go on if --out is a run already; for jobs that are restarted by torchrun or a batch system."""
    dry_run: bool = False
    """Print parameters, tokens, arithmetic, memory and time, and touch nothing."""
    json: bool = False
    """With --dry-run: print JSON, for a program to read."""
    model: ModelConfig = field(default_factory=lambda: srm.preset("srm-med"))
    training: tyro.conf.OmitArgPrefixes[TrainConfig] = field(default_factory=TrainConfig)

    def run(self) -> None:
        from srm.training.loop import train

        if self.dry_run:
            self.show_plan()
            return
        how = {"resume": self.resume, "preset": self.preset}
        finish(train(self.training, self.model, self.data, self.out, **how))

    def show_plan(self) -> None:
        from srm.data import open_tokens
        from srm.training.distributed import open_world
        from srm.training.loop import check_plan
        from srm.training.plan import make_plan
        from srm.training.run import RunConfig, RunDirectory

        if not self.resume:
            RunDirectory(self.out).refuse_occupied()
        data = open_tokens(self.data)
        run = RunConfig(self.model, self.training, data.path, data.fingerprint, self.preset)
        with open_world(self.training) as world:
            check_plan(run, data, world)
            plan = make_plan(run, data, world)
            if world.main:
                print(json.dumps(plan.to_dict(), indent=2) if self.json else "\n".join(plan.lines()))


def finish(result: Any) -> None:
    """The last line of a run, and the exit code that a shell expects after a signal."""
    if result.signal:
        if os.environ.get("RANK", "0") == "0":  # one of torchrun's processes speaks for all
            print(
                f"stopped after step {result.step} and saved; `srm resume {result.run}` goes on", flush=True
            )
        sys.exit(result.exit_code)
    if result.loss is not None:
        validation = f", validation loss {result.val_loss:.4f}" if result.val_loss is not None else ""
        print(
            f"done: training loss {result.loss:.4f} (mean of the last steps){validation}; {result.run}",
            flush=True,
        )


def defaults(arguments: list[str]) -> Command:
    """The command before its options: the preset's config and recipe, changed by the TOML file."""
    file = _option(arguments, "--config")
    content = _read_toml(Path(file)) if file else {}
    named = arguments[0] if arguments and not arguments[0].startswith("-") else content.get("preset")
    missing: Any = tyro.MISSING
    model = srm.preset("srm-med" if named is None else named)
    training = recipe(named or "srm-med")
    return Command(
        preset=missing if named is None else named,
        data=Path(content["data"]) if "data" in content else missing,
        out=Path(content["out"]) if "out" in content else missing,
        config=Path(file) if file else None,
        model=model.replace(**known_fields(type(model), content.get("model", {}))),
        training=training.replace(**content.get("training", {})),
    )


def _option(arguments: list[str], name: str) -> str | None:
    for at, argument in enumerate(arguments):
        if argument == name and at + 1 < len(arguments):
            return arguments[at + 1]
        if argument.startswith(f"{name}="):
            return argument.removeprefix(f"{name}=")
    return None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--config {path} cannot be read ({error.strerror}): give a TOML file") from None
    except ValueError as error:
        raise UserError(f"--config {path} is not TOML ({error})") from None
    for key, value in content.items():
        if key not in TOML_KEYS:
            raise UserError(
                f"--config {path}: {key} is not one of {', '.join(TOML_KEYS)}{nearest(key, list(TOML_KEYS))}"
            )
        if isinstance(value, dict) != (key in ("model", "training")) or not isinstance(value, dict | str):
            raise UserError(
                f"--config {path}: {key} = {value!r}: must be {'a table' if key in TOML_KEYS[3:] else 'text'}"
            )
    return content
