"""`srmlab train PRESET`: from text, tokens or puzzles to a trained model; or on, from the weights of one."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

import srmlab
from srmlab.cli.shared import refuse
from srmlab.data.corpora import open_source
from srmlab.errors import UserError, nearest
from srmlab.models import ModelConfig
from srmlab.models.fields import known_fields
from srmlab.storage.metrics_file import LAST_STEPS
from srmlab.tasks.corpus import PREFIX, TaskCorpus
from srmlab.training.config import TrainConfig
from srmlab.training.recipes import recipe

TOML_TEXTS, TOML_TABLES = ("preset", "init_from", "data", "out"), ("model", "training")
TOML_KEYS = (*TOML_TEXTS, *TOML_TABLES)
LARGEST_LEARNED = 16_384  # token ids of a preset that gets a vocabulary of its own text


@dataclass
class Command:
    """Train a model on text or puzzles. Everything is written to the --out folder; data that is not prepared
    yet is prepared first, in OUT-data.

    Every field of the model config (--model.FIELD) and of the training config is an option; `srmlab train
    PRESET --help` shows them with the preset's values. A TOML file can set them too: the command line
    overrides the file, and the file overrides the preset. By default the vocabulary is the text's.

    With --init-from it starts from the weights of another run, with a fresh optimizer and schedule. The
    model is that run's: no preset is needed.

    Example:
        srmlab train srm-nano --data notes.txt --out runs/notes
        srmlab train srm-nano --data data/sotu --out runs/nano --steps 600
        srmlab train --init-from runs/nano --data data/mine --out runs/mine --steps 100 --lr 1e-3
        srmlab train srm-med --data data/owt --out runs/med --dry-run
        srmlab train --config med.toml --lr 5e-4
        srmlab train srm-sudoku-nano --data data/sudoku4 --out runs/sudoku4

    med.toml:
        preset = "srm-med"
        data = "data/owt"
        out = "runs/med"
        [model]
        order = "ABCCBA"
        [training]
        steps = 1000
    """

    preset: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="PRESET")]
    """A model by name; `srmlab presets` lists them. Not needed with --init-from."""
    data: Path
    """Output folder of `srmlab prepare`, or a source for it: a text file, sotu, sudoku:4x4 …"""
    out: Path
    """The run's folder; must not exist yet."""
    init_from: Path | None = None
    """Start from the weights of this run (its last good checkpoint), checkpoint, export or shipped model."""
    config: Path | None = None
    """A TOML file with preset, init_from, data, out, [model] and [training]."""
    resume: bool = False
    """Continue if --out is already a run; for jobs restarted by torchrun or a batch system."""
    dry_run: bool = False
    """Print parameters, tokens, FLOP, memory and time, and write nothing."""
    json: bool = False
    """With --dry-run: print JSON, for scripts."""
    model: ModelConfig = field(default_factory=lambda: srmlab.preset("srm-med"))
    """The model. The defaults are the preset's, or srm-med's."""
    training: tyro.conf.OmitArgPrefixes[TrainConfig] = field(default_factory=TrainConfig)
    """How it is trained. The defaults are the preset's recipe, or srm-med's."""
    first: tyro.conf.Suppress[str | None] = None  # the preset that `model` and `training` were made from

    def run(self) -> None:
        from srmlab.storage.save_and_load import named
        from srmlab.training.start import train

        self.init_from = self.init_from and named(self.init_from)
        if self.preset != self.first:
            raise UserError(f"give the preset first: srmlab train {self.preset} …")
        if not self.dry_run:
            refuse(self, "json", why="is for --dry-run")
        if not self.data.exists() and not is_source(self.data):
            raise UserError(
                f"--data {self.data} does not exist: give a text file, or a folder that `srmlab prepare` made"
            )
        if is_source(self.data):
            self.prepare()
        if self.dry_run:
            self.show_plan()
            return
        how = {"init_from": self.init_from, "resume": self.resume, "preset": self.started_with()}
        finish(train(self.training, self.model, self.data, self.out, **how))

    def prepare(self) -> None:
        """Make the data of text or puzzles, by the command that a user would type."""
        from srmlab.cli import run
        from srmlab.puzzles import is_puzzle_source
        from srmlab.storage import RunDirectory
        from srmlab.training.objective import open_data

        source, folder = str(self.data), self.out.with_name(f"{self.out.name}-data")
        command, puzzles = [source, "--out", str(folder)], is_puzzle_source(source)
        if not (self.resume and RunDirectory(self.out).exists()):
            self.check(source, puzzles=puzzles)
        if not puzzles:
            command += ["--tokenizer", self.tokenizer()]
        typed = f"srmlab prepare {shlex.join(command)}"
        if self.dry_run or os.environ.get("WORLD_SIZE", "1") != "1":
            why = "--dry-run writes nothing" if self.dry_run else "several processes need it prepared"
            raise UserError(f"--data {source}: {why}; run `{typed}` first, then give --data {folder}")
        if not self.resume:
            RunDirectory(self.out).refuse_occupied()
        if folder.is_dir():
            made = open_data(folder, verify=False).manifest.source
            asked = source if puzzles else text_source(source)
            if made != asked and not (puzzles and made.startswith(f"{asked} ")):  # and how many, which seed
                raise UserError(f"{folder} was prepared from {made}: choose another --out")
            if self.data.is_file() and newer(self.data, folder / "manifest.json"):
                raise UserError(f"{source} has changed since {folder} was prepared: choose another --out")
            print(f"using {folder}, prepared before", flush=True)
        else:
            print(f"$ {typed}", flush=True)
            try:
                run("prepare", command)
            except UserError as error:
                fix = f"(to use other options, run that command yourself, then give --data {folder})"
                raise UserError(f"preparing failed: {error} {fix}") from None
        self.data = folder
        if self.model.causal:
            self.model = _for_data(self.model, str(folder))

    def check(self, source: str, *, puzzles: bool) -> None:
        """Refuse now what would be refused once the data is prepared."""
        from srmlab.training.distributed import device_of
        from srmlab.training.initial import check_source, model_of
        from srmlab.training.plan import check_options

        device_of(self.training.device)
        check_options(self.training, self.model, source, self.started_with(), puzzles=puzzles)
        if self.init_from is not None:
            model = self.model
            if not puzzles:  # it is to have as many ids as its text, which the source's tokenizer will make
                model = model.replace(vocab_size=model_of(self.init_from).vocab_size)
            check_source(self.init_from, model)

    def started_with(self) -> str | None:
        """The preset, or that of --init-from."""
        return self.preset or (self.init_from and _preset_of(self.init_from))

    def tokenizer(self) -> str:
        """GPT-2's, or one of the model's size that is learned from the text; of --init-from, its own."""
        if self.init_from is not None:
            return str(self.init_from / "tokenizer")
        if str(self.data).startswith(PREFIX):
            return "byte"
        size = self.model.vocab_size
        return f"bpe:{size}" if size <= LARGEST_LEARNED else "gpt2"

    def show_plan(self) -> None:
        from srmlab.storage import RunDirectory
        from srmlab.training.distributed import open_world
        from srmlab.training.initial import begin
        from srmlab.training.objective import open_data
        from srmlab.training.plan import check_plan, cost_of, run_of

        out = RunDirectory(self.out)
        if not self.resume:
            out.refuse_occupied()
        data = open_data(self.data)
        run = run_of(self.model, self.training, data, self.preset)
        again = self.resume and out.exists()
        with open_world(self.training.device, self.training.strategy) as world:
            if self.init_from is not None:
                begin(self.init_from, out, self.model, data, world, again=again)
            check_plan(run, data, world, again=again)
            cost = cost_of(run, data, world)
            if world.main:
                print(json.dumps(asdict(cost), indent=2) if self.json else "\n".join(cost.lines()))


def newer(file: Path, other: Path) -> bool:
    return file.stat().st_mtime > other.stat().st_mtime


def is_source(data: Path) -> bool:
    """Whether it is what `srmlab prepare` takes rather than what it writes."""
    name = str(data)
    return not data.is_dir() and (
        data.is_file() or ":" in name or name in ("sotu", "python-stdlib") or any(c in name for c in "*?[")
    )


def text_source(source: str) -> str:
    """How prepared text names it: with the difficulties of a task, the split of a dataset."""
    return TaskCorpus.parse(source).name if source.startswith(PREFIX) else open_source(source).name


def finish(result: Any) -> None:
    """Print the last line of a run, and exit after a signal with the code that a shell expects."""
    if result.signal:
        if os.environ.get("RANK", "0") == "0":  # one of torchrun's processes speaks for all
            print(
                f"stopped after step {result.step} and saved; `srmlab resume {result.run}` continues it",
                flush=True,
            )
        sys.exit(result.exit_code)
    if result.loss is not None:
        validation = f", validation loss {result.val_loss:.4f}" if result.val_loss is not None else ""
        if result.val_solved is not None:
            validation += f", {result.val_solved:.1%} of the test puzzles solved"
        mean = f"mean of the last {min(result.step, LAST_STEPS)} steps"
        print(f"done: training loss {result.loss:.4f} ({mean}){validation}; {result.run}", flush=True)


def defaults(arguments: list[str]) -> Command:
    """The command before its options: the preset's config and recipe, changed by the TOML file.

    With --init-from the config is the source's, and the recipe that of the preset it was started with.
    """
    file = _option(arguments, "--config")
    content = _read_toml(Path(file)) if file else {}
    preset = arguments[0] if arguments and not arguments[0].startswith("-") else content.get("preset")
    missing: Any = tyro.MISSING
    start = _option(arguments, "--init-from") or content.get("init_from")
    if preset is None and start is not None:
        from srmlab.storage.save_and_load import named
        from srmlab.training.initial import model_of

        source = _source(named(start), _option(arguments, "--out") or content.get("out"), arguments)
        model, training = model_of(source), recipe(_preset_of(source) or "srm-med")
    else:
        model, training = srmlab.preset("srm-med" if preset is None else preset), recipe(preset or "srm-med")
        model = _for_data(model, _option(arguments, "--data") or content.get("data"))
    training = training.replace(**content.get("training", {}))
    steps = _option(arguments, "--steps") or ""
    if steps.isdigit() and int(steps) < training.warmup:  # a trial: the recipe's warm-up is for its steps
        training = training.replace(warmup=int(steps) // 10)
    return Command(
        preset=missing if preset is None and start is None else preset,
        first=preset,
        data=Path(content["data"]) if "data" in content else missing,
        out=Path(content["out"]) if "out" in content else missing,
        init_from=Path(start) if start else None,
        config=Path(file) if file else None,
        model=model.replace(**known_fields(type(model), content.get("model", {}))),
        training=training,
    )


def _for_data(model: ModelConfig, data: str | None) -> ModelConfig:
    """The preset's model with as many token ids as the text has, unless options say otherwise."""
    from srmlab.data import DataError
    from srmlab.data.shards import read_manifest

    if data is None or not model.causal:
        return model
    try:
        return model.replace(vocab_size=read_manifest(data).vocab_size)
    except DataError:  # there is none, or it is no text: said once the options are read
        return model


def _source(start: Path, out: str | None, arguments: list[str]) -> Path:
    """Where the model is described: a run that is resumed no longer needs its source."""
    from srmlab.storage import RunDirectory

    if out is not None and "--resume" in arguments and RunDirectory(out).exists():
        return Path(out)
    return start


def _preset_of(path: Path) -> str | None:
    """The preset that the run, or the checkpoint's run, was started with; an export does not say."""
    from srmlab.training.run import run_config

    run = run_config(path)
    return run.preset if run else None


def _option(arguments: list[str], name: str) -> str | None:
    """An option's value before the options are parsed; it may be spelled with underscores."""
    for at, argument in enumerate(arguments):
        option, given, value = argument.partition("=")
        if option.replace("_", "-") == name:
            return value if given else next(iter(arguments[at + 1 :]), None)
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
        if isinstance(value, dict) != (key in TOML_TABLES) or not isinstance(value, dict | str):
            raise UserError(
                f"--config {path}: {key} = {value!r}: must be {'a table' if key in TOML_TABLES else 'text'}"
            )
    return content
