"""`srmlab dictionary RUN`: learn a dictionary of each stream's states."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from srmlab.data import DataError
from srmlab.errors import UserError

if TYPE_CHECKING:
    from srmlab.analysis.replacement import Layers
    from srmlab.data import Tokenizer
    from srmlab.dictionaries import Dictionary, Features, Quality


@dataclass
class Command:
    """Learn sparse dictionaries of the streams of a trained SRM on its training text, one for each stream;
    measure on validation text what they explain and what the model loses by them; and write a page of their
    features: where each fires, and which tokens it speaks for.

    Example:
        srmlab dictionary runs/nano
        srmlab dictionary runs/nano --layers every --features 512 --k 8
        srmlab dictionary runs/nano --layers 2 3 --tokens 1000000 --out dictionaries/middle
    """

    path: tyro.conf.Positional[Path]
    """A run (its last good checkpoint), a checkpoint or an export."""
    layers: tuple[str, ...] = ("last",)
    """The states after which layers: last (what the output reads, post-steps included), every (one dictionary
    for all depths), or numbers from 0."""
    features: int | None = None
    """Features of each stream; by default 8 for each dimension."""
    k: int | None = None
    """Features in use at once; by default an eighth of the dimensions."""
    tokens: int = 500_000
    """Tokens to learn from."""
    lr: float = 2e-3
    seed: int = 0
    """Of the first directions and of the order of the text."""
    eval_tokens: int = 16_384
    """Validation tokens to measure on, and to find examples in."""
    examples: int = 8
    """Examples of each feature."""
    batch_size: int = 8
    """Windows at a time; bounds the memory."""
    document_mask: bool = False
    """Attention does not cross documents (always so if the run was trained so)."""
    answers_only: bool = False
    """Losses are of what follows "=" in a document (always so if the run was trained so)."""
    data: Path | None = None
    """Folder of `srmlab prepare`; by default the run's."""
    out: Path | None = None
    """Folder to write; by default dictionaries/LAYERS-FEATURES-K in the run, or beside an export."""
    device: str = "auto"
    json: bool = False
    """Print JSON, for a program to read."""

    def run(self) -> None:
        try:
            answer = self.learn()
        except DataError as error:
            raise UserError(str(error)) from None
        except OSError as error:
            where = error.filename or self.out or self.path
            raise UserError(f"cannot write {where} ({error.strerror}): choose another --out") from None
        print(json.dumps(answer, indent=2) if self.json else "\n".join(lines(answer)))

    def learn(self) -> dict[str, Any]:
        from srmlab import dictionaries
        from srmlab.cli.analyze import Reading, bars
        from srmlab.data import Batches, open_tokens
        from srmlab.storage import load
        from srmlab.training.distributed import device_of
        from srmlab.training.evaluation import check_vocabulary
        from srmlab.training.memory import keep_buffers
        from srmlab.training.run import run_config

        keep_buffers()
        self.check()
        model = load(self.path, device=device_of(self.device))
        run = run_config(self.path)
        folder = self.data or (run and run.data)
        if folder is None:
            raise UserError(f"{self.path} does not say what it was trained on: give --data DIR")
        data = open_tokens(folder)
        check_vocabulary(model.config.vocab_size, data.vocab_size, data.path)
        context = (run.training.context if run else None) or model.config.context
        reading = Reading.of(self, run, data.tokenizer)
        batches = Batches(data.train, context, self.batch_size, self.seed)
        steps = self.tokens // (context * self.batch_size)
        if steps < 1:
            raise UserError(f"--tokens {self.tokens}: one batch alone is {context * self.batch_size}")

        def held_out():
            return reading.evaluation_batches(data.val, context, self.batch_size, self.eval_tokens)

        held_out()  # refused now rather than after learning
        layers = chosen_layers(self.layers)
        out = self.out or self.folder(model.config)
        if out.exists():
            raise UserError(f"{out} exists and is not overwritten: choose another --out, or delete it")
        out.parent.mkdir(parents=True, exist_ok=True)  # refused now rather than after learning
        with learning(steps, show=not self.json) as tell:
            dictionary = dictionaries.learn(
                model,
                lambda step: reading.with_documents(batches.batch(step), data.train.end_of_text),
                steps=steps,
                features=self.features,
                k=self.k,
                layers=layers,
                lr=self.lr,
                seed=self.seed,
                progress=tell,
            )
        count = sum(1 for _ in held_out())
        with bars(count, show=not self.json) as tell:
            quality = dictionaries.quality(model, dictionary, held_out, partial(tell, "quality"))
            features = dictionaries.features(
                model, dictionary, held_out, self.examples, partial(tell, "features")
            )
        self.write(out, dictionary, quality, features, readable(data.tokenizer))
        tokens = steps * context * self.batch_size
        return {"model": str(self.path), "tokens": tokens, "out": str(out), **told(dictionary, quality)}

    def write(
        self,
        out: Path,
        dictionary: Dictionary,
        quality: Quality,
        features: Features,
        decode: Callable[[int], str],
    ) -> None:
        """All of the folder, or nothing."""
        from srmlab import dictionaries
        from srmlab.figures import save_all
        from srmlab.training.files import sealed_folder

        with sealed_folder(out) as folder:
            dictionaries.save(dictionary, folder)
            quality.save(folder / "quality")
            features.save(folder / "features")
            save_all(quality, folder / "figures")
            dictionaries.write_page(features, folder / "features.html", decode, f"Features of {self.path}")
            summary = f"{quality.summary()}\n\n{features.summary(decode)}\n"
            (folder / "summary.txt").write_text(summary, encoding="utf-8")

    def check(self) -> None:
        for name, least in (("examples", 1), ("batch_size", 1), ("seed", 0)):
            if getattr(self, name) < least:
                option = name.replace("_", "-")
                raise UserError(f"--{option} {getattr(self, name)}: must be at least {least}")

    def folder(self, config: Any) -> Path:
        from srmlab.dictionaries.learning import usual_features, usual_k
        from srmlab.training.files import sealed

        features = usual_features(config.stream_dim) if self.features is None else self.features
        k = usual_k(config.stream_dim) if self.k is None else self.k
        name = f"{'-'.join(self.layers)}-{features}-{k}"
        if (self.path / "run.json").is_file() and not sealed(self.path):
            return self.path / "dictionaries" / name
        return self.path.parent / f"{self.path.name}-dictionaries" / name


@contextmanager
def learning(steps: int, show: bool) -> Iterator[Callable[[int, float], None]]:
    """A bar on a terminal, ten lines elsewhere."""
    if show and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("learning"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]:.1%} unexplained"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task("", total=steps, left=1.0)
            yield lambda done, left: progress.update(task, completed=done, left=left)
        return
    started = time.perf_counter()

    def tell(done: int, left: float) -> None:
        if show and (done == steps or done % max(1, steps // 10) == 0):
            seconds = f"{time.perf_counter() - started:.0f} s"
            print(f"learning: {done} of {steps} steps, {left:.1%} unexplained, {seconds}", file=sys.stderr)

    yield tell


def chosen_layers(given: tuple[str, ...]) -> Layers:
    if given == ("last",):
        return "last"
    if given == ("every",):
        return "every"
    if not given or not all(layer.isdecimal() for layer in given):
        raise UserError(f"--layers {' '.join(given)}: give last, every, or numbers of layers from 0")
    return [int(layer) for layer in given]


def told(dictionary: Dictionary, quality: Quality) -> dict[str, Any]:
    """What was learned, and what it is worth."""
    config = dictionary.config
    return {
        "points": list(config.points),
        "features": config.features,
        "k": config.k,
        "explained": quality.mean_explained,
        "recovered": None if math.isnan(quality.all_recovered) else quality.all_recovered,
        "loss": float(quality.loss),
        "loss_replaced": float(quality.all_spliced),
        "summary": quality.summary(),
    }


def readable(tokenizer: Tokenizer) -> Callable[[int], str]:
    """A token as text; bytes that are no text by themselves as \\xNN."""

    def decode(token: int) -> str:
        if token >= len(tokenizer.tokens):
            return "<end>"
        return tokenizer.tokens[token].decode("utf-8", "backslashreplace")

    return decode


def lines(answer: dict[str, Any]) -> list[str]:
    return [answer["summary"], "", f"{answer['out']}/features.html  ·  {answer['out']}/summary.txt"]
