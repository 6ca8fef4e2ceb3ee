"""`srmlab dictionary RUN`: learn a dictionary of each stream's states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from srmlab.cli.shared import OfText, at_least, readable
from srmlab.errors import UserError
from srmlab.files import refuse_unwritable, sealed_folder, writing

if TYPE_CHECKING:
    from srmlab.analysis.replacement import Layers
    from srmlab.dictionaries import Dictionary, Features, Quality
    from srmlab.progress import Task
    from srmlab.training.run_text import RunText

Activation = Literal["topk", "batchtopk", "jumprelu"]


@dataclass(kw_only=True)
class Learning(OfText):
    """A command that learns features from a run's text."""

    features: int | None = None
    """Features per stream; by default 8 per dimension."""
    dead: Literal["replace", "auxiliary"] = "replace"
    """Dead features: re-initialise them on poorly explained states, or train them on the residual."""
    tokens: int = 500_000
    """Tokens to train on."""
    lr: float = 2e-3
    """Learning rate of Adam; it falls to 0 over the last fifth."""
    seed: int = 0
    """Seed of the initial directions and of the data order."""
    eval_tokens: int = 16_384
    """Validation tokens to measure on, in windows spread evenly over the text."""
    batch_size: int = 8
    """Windows per batch; bounds memory."""
    out: Path | None = None
    """Folder to write; must not exist."""

    def result(self) -> dict[str, Any]:
        with writing(self.out or self.path):
            return self.learn()

    def learn(self) -> dict[str, Any]:
        """Learn, measure and write; what came out."""
        raise NotImplementedError

    def lines(self, result: dict[str, Any]) -> list[str]:
        return [result["summary"], "", f"{result['out']}/summary.txt"]

    def text(self) -> RunText:
        at_least(self, batch_size=1, seed=0)
        return self.open_text(spread=True)

    def steps(self, text: RunText) -> int:
        """How often a batch is read."""
        text.training_data()
        steps = self.tokens // (text.context * self.batch_size)
        if steps < 1:
            raise UserError(
                f"--tokens {self.tokens}: give at least a batch, {text.context * self.batch_size}"
            )
        return steps

    def folder(self, text: RunText, usual: str) -> Path:
        """Where to write; refused now rather than after learning."""
        from srmlab.training.run_text import place_for

        out = self.out or place_for(text.path, "dictionaries") / usual
        refuse_unwritable(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        return out

    def options(self, task: Task, steps: int, before: int = 0, note: str = "") -> dict[str, Any]:
        """What SAEs and transcoders alike are learned with; `before` steps of the task are done."""
        return {
            "steps": steps,
            "features": self.features,
            "lr": self.lr,
            "dead": self.dead,
            "progress": lambda done, left: task.update(before + done, f"{note}{left:.1%} unexplained"),
        }


@dataclass(kw_only=True)
class LearningOne(Learning):
    """A command that learns one set of features."""

    k: int | None = None
    """Active features (L0); by default an eighth of the dimensions."""
    activation: Activation = "topk"
    """The k largest of a state, or those above a threshold: k on average."""
    saelens: bool = False
    """Also write SAELens' files."""

    def options(self, task: Task, steps: int, before: int = 0, note: str = "") -> dict[str, Any]:
        own = {"k": self.k, "activation": self.activation, "seed": self.seed}
        return super().options(task, steps, before, note) | own

    def sizes(self, config: Any) -> str:
        """FEATURES-K, and the activation if it is not the usual one: for the folder's name."""
        from srmlab.dictionaries.dictionary import usual_features, usual_k

        features = usual_features(config.stream_dim) if self.features is None else self.features
        k = usual_k(config.stream_dim) if self.k is None else self.k
        return f"{features}-{k}" + ("" if self.activation == "topk" else f"-{self.activation}")


@dataclass(kw_only=True)
class Command(LearningOne):
    """Train a sparse autoencoder for each stream of an SRM on its training text; measure variance
    explained and loss recovered on validation text; and write a page of features: where each fires, and
    which tokens it promotes.

    Example:
        srmlab dictionary runs/nano
        srmlab dictionary runs/nano --layers every --features 512 --k 8
        srmlab dictionary runs/nano --activation batchtopk --saelens
        srmlab dictionary --pretrained --data data/sotu
        srmlab dictionary runs/nano --layers 2 3 --tokens 1000000 --out dictionaries/middle
    """

    layers: tuple[str, ...] = ("last",)
    """Layers to train on: last (the final state), every (one dictionary for all of them), or 0, 1 …"""
    examples: int = 8
    """Examples per feature."""
    out: Path | None = None
    """Folder to write; by default dictionaries/LAYERS-FEATURES-K in the run, or next to an export."""

    def learn(self) -> dict[str, Any]:
        from srmlab import dictionaries

        at_least(self, examples=1)
        text = self.text()
        model, batches = text.model, text.training_batches(self.batch_size, self.seed)
        steps = self.steps(text)
        held_out = text.batches(self.batch_size, self.eval_tokens)
        layers = chosen_layers(self.layers)
        out = self.folder(text, f"{'-'.join(self.layers)}-{self.sizes(model.config)}")
        with self.display() as display:
            options = self.options(display.task("learning", steps, "steps"), steps)
            dictionary = dictionaries.learn(model, batches.batch, layers=layers, **options)
            progress = display.tasks(len(held_out), "batches")
            quality = dictionaries.quality(model, dictionary, held_out, partial(progress, "quality"))
            features = dictionaries.features(
                model, dictionary, held_out, self.examples, partial(progress, "features")
            )
        self.write(out, text.path, dictionary, quality, features, readable(text.tokenizer))
        tokens = steps * text.context * self.batch_size
        return {"model": str(text.path), "tokens": tokens, "out": str(out), **found(dictionary, quality)}

    def write(
        self,
        out: Path,
        path: Path,
        dictionary: Dictionary,
        quality: Quality,
        features: Features,
        decode: Callable[[int], str],
    ) -> None:
        """All of the folder, or nothing."""
        from srmlab import dictionaries
        from srmlab.figures import save_all
        from srmlab.interop import saelens

        with sealed_folder(out) as folder:
            dictionaries.save(dictionary, folder)
            quality.save(folder / "quality")
            features.save(folder / "features")
            save_all(quality, folder / "figures")
            dictionaries.write_page(features, folder / "features.html", decode, f"Features of {path}")
            summary = f"{quality.summary()}\n\n{features.summary(decode)}\n"
            (folder / "summary.txt").write_text(summary, encoding="utf-8")
            if self.saelens:
                saelens.save(dictionary, folder / "saelens")

    def lines(self, result: dict[str, Any]) -> list[str]:
        return [result["summary"], "", f"{result['out']}/features.html  ·  {result['out']}/summary.txt"]


def chosen_layers(given: tuple[str, ...]) -> Layers:
    if given == ("last",):
        return "last"
    if given == ("every",):
        return "every"
    if not given or not all(layer.isdecimal() for layer in given):
        raise UserError(f"--layers {' '.join(given)}: give last, every, or layer numbers from 0")
    return [int(layer) for layer in given]


def found(dictionary: Dictionary, quality: Quality) -> dict[str, Any]:
    """What was learned, and what it is worth."""
    config = dictionary.config
    return {
        "points": list(config.points),
        "features": config.features,
        "k": config.k,
        "activation": config.activation,
        "active": quality.mean_active,
        "explained": quality.mean_explained,
        "recovered": quality.all_recovered,
        "loss": float(quality.loss),
        "loss_replaced": float(quality.all_spliced),
        "summary": quality.summary(),
    }
