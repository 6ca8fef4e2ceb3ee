"""`srmlab analyze RUN`: look inside a trained model."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from srmlab.data import DataError
from srmlab.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from srmlab.analysis import Result
    from srmlab.data import Tokenizer, Tokens
    from srmlab.models import LanguageModel

TOKENS = 16_384
FORMATS = ("png", "svg", "pdf")
EXTRA = ("dynamics",)  # only when asked for: it reads every checkpoint


@dataclass
class Command:
    """Measure routing, alignment, drift, ablation, logit lens, attribution, interaction and depth on text the
    model has not seen; write the results, their figures and a summary. What is there already is not measured
    again, and a stopped analysis is picked up.

    Example:
        srmlab analyze runs/nano
        srmlab analyze runs/nano --only routing ablation --tokens 100000
        srmlab analyze runs/nano --only dynamics
        srmlab analyze exports/nano --text speech.txt --json
    """

    path: tyro.conf.Positional[Path]
    """A run (its last good checkpoint), a checkpoint or an export."""
    only: tuple[str, ...] = ()
    """Which analyses; by default all but dynamics (the curves over a run's checkpoints)."""
    tokens: int = TOKENS
    """How many tokens to read."""
    text: Path | None = None
    """Read this text file, as one document, instead of the validation tokens."""
    data: Path | None = None
    """Folder of `srmlab prepare`; by default the run's."""
    out: Path | None = None
    """Where analysis/ and figures/ go; by default into the run, or beside a checkpoint or export."""
    threshold: float = 0.10
    """An edge is in use above this weight."""
    lens_tokens: int = 4096
    """How many positions the logit lens reads: it costs 2·S + 1 unembeddings for each, at every layer."""
    max_depth: int | None = None
    """How deep to run the model; by default twice as deep as trained."""
    batch_size: int = 8
    """Windows at a time."""
    document_mask: bool = False
    """Attention does not cross documents (always so if the run was trained so)."""
    answers_only: bool = False
    """Count only what follows "=" in a document (always so if the run was trained so)."""
    formats: tuple[str, ...] = FORMATS
    """How figures are written."""
    device: str = "auto"
    json: bool = False
    """Print JSON, for a program to read."""

    def run(self) -> None:
        try:
            with world() as main:
                answer = self.analyze(show=main and not self.json)
        except DataError as error:
            raise UserError(str(error)) from None
        except OSError as error:
            raise UserError(
                f"cannot write {error.filename or self.folder()} ({error.strerror}): choose another --out"
            ) from None
        if main:
            print(json.dumps(answer, indent=2) if self.json else table(answer))

    def check(self) -> None:
        if self.batch_size < 1:
            raise UserError(f"--batch-size {self.batch_size}: must be at least 1")
        for kind in self.formats:
            if kind not in FORMATS:
                raise UserError(f"--formats {kind}: there are {', '.join(FORMATS)}")

    def analyze(self, show: bool = True) -> dict[str, Any]:
        from srmlab.analysis import lens_cost, survey
        from srmlab.analysis.depth import deepened
        from srmlab.analysis.survey import chosen, passes
        from srmlab.models import SRM
        from srmlab.storage import load
        from srmlab.training.distributed import device_of
        from srmlab.training.memory import keep_buffers

        keep_buffers()
        self.check()
        wanted = [name for name in self.only if name not in EXTRA]
        model = load(self.path, device=device_of(self.device))
        asked = chosen(model, wanted or None) if wanted or not self.only else ()
        if "depth" in asked:
            deepened(model, self.max_depth)  # refused now rather than after the other analyses
        text = open_text(self, model)
        store = Store(self.folder(), model, self, text.name)
        known = {name: store.load(name) for name in asked if store.has(name)}
        missing = [name for name in asked if name not in known]
        if show and "logit_lens" in missing:
            print(f"logit lens: {lens_cost(model, min(self.lens_tokens, text.tokens))}", file=sys.stderr)
        with bars(text.batch_count, show) as tell:
            results: dict[str, Result] = {}
            if asked:
                options = {
                    "threshold": self.threshold,
                    "lens_tokens": self.lens_tokens,
                    "max_depth": self.max_depth,
                }
                for _, part in passes(missing):  # a pass's figures are there before the next begins
                    found = survey(
                        model,
                        text.batches,
                        part,
                        **options,
                        known=known,
                        checkpoint=store.partial,
                        progress=tell,
                    )
                    for name in found.keys() - known.keys():
                        store.save(found[name])
                    known |= found
                results = {name: known[name] for name in asked}
            if "dynamics" in self.only:
                if not isinstance(model, SRM):
                    raise UserError(
                        f"dynamics is defined on streams; {self.path} is a {type(model).__name__}"
                    )
                results["dynamics"] = self.dynamics(store, text, tell)
        store.finish(self.path, results)
        return {
            "model": str(self.path),
            "text": text.name,
            "out": str(store.folder),
            "results": store.answers(results),
        }

    def dynamics(self, store: Store, text: Text, tell: Callable[[str, int], None]) -> Result:
        from srmlab.analysis import checkpoints_of, dynamics

        if store.has("dynamics"):
            return store.load("dynamics")
        done = iter(range(1, 10**9))
        result = dynamics(
            checkpoints_of(self.path),
            text.batches,
            self.threshold,
            lambda _: tell("checkpoints", next(done)),
        )
        store.save(result)
        return result

    def folder(self) -> Path:
        from srmlab.training.files import sealed

        if self.out is not None:
            return self.out
        if (self.path / "run.json").is_file() and not sealed(self.path):
            return self.path
        return self.path.parent / f"{self.path.name}-analysis"


@dataclass
class Text:
    """The evaluation text as batches that can be read again and again."""

    name: str
    batches: Callable[[], Iterator[Any]]
    tokens: int
    batch_count: int


def open_text(options: Command, model: LanguageModel) -> Text:
    from srmlab.data import num_windows, open_tokens
    from srmlab.training.evaluation import check_vocabulary
    from srmlab.training.run import run_config

    run = run_config(options.path)
    context = (run.training.context if run else None) or model.config.context
    reading = Reading()
    if options.tokens < 2:
        raise UserError(f"--tokens {options.tokens}: give 2 or more")
    if options.text is not None:
        if options.answers_only:
            raise UserError(
                "--answers-only: no document ends in a text file; give --data DIR instead of --text"
            )
        tokens = _read_text(options, run)
        digest = hashlib.sha256(tokens.read(0, len(tokens)).tobytes()).hexdigest()
        name = f"{options.text.name} {digest[:12]}"
        context = min(context, max(1, len(tokens) - 1))
    else:
        folder = options.data or (run.data if run else None)
        if folder is None:
            raise UserError(
                f"{options.path} does not say what it was trained on: give --text FILE or --data DIR"
            )
        data = open_tokens(folder)
        tokens, name = data.val, f"validation tokens {data.fingerprint[:12]}"
        reading = Reading.of(options, run, data.tokenizer)
    check_vocabulary(model.config.vocab_size, tokens.vocab_size, options.text or options.data or options.path)
    context = min(context, options.tokens)
    windows = min(num_windows(tokens, context), options.tokens // context)
    size = min(options.batch_size, max(1, windows))
    return Text(
        f"{name}, {windows} windows of {context}{reading}",
        lambda: reading.evaluation_batches(tokens, context, size, options.tokens),
        windows * context,
        -(-windows // size),
    )


@dataclass(frozen=True)
class Reading:
    """How a text is read: as the run was in training, or as the options say."""

    document_mask: bool = False
    marks: tuple[int, ...] | None = None  # only answers are targets: what follows one of these

    @classmethod
    def of(cls, options: Any, run: Any, tokenizer: Tokenizer) -> Reading:
        chosen = [options, *([run.training] if run else [])]
        answers = any(one.answers_only for one in chosen)
        return cls(any(one.document_mask for one in chosen), tokenizer.answer_marks if answers else None)

    def __str__(self) -> str:
        """What a text's name says of it: nothing, if all is read."""
        within = ", attention within documents" if self.document_mask else ""
        return within + (", answers only" if self.marks is not None else "")

    def evaluation_batches(
        self, tokens: Tokens, context: int, batch_size: int, limit_tokens: int
    ) -> Iterator[tuple[Tensor, ...]]:
        from srmlab.data import evaluation_batches

        batches = evaluation_batches(tokens, context, batch_size, limit_tokens, self.marks)
        return (self.with_documents(batch, tokens.end_of_text) for batch in batches)

    def with_documents(self, batch: tuple[Tensor, Tensor], end_of_text: int) -> tuple[Tensor, ...]:
        """Tokens and targets; and documents, if attention stays within them."""
        from srmlab.data import document_ids

        return (*batch, document_ids(batch[0], end_of_text)) if self.document_mask else batch


def _read_text(options: Command, run: Any):
    import numpy as np

    from srmlab.data import Tokens, open_tokens
    from srmlab.storage import load_tokenizer

    assert options.text is not None
    tokenizer = load_tokenizer(options.path)
    if tokenizer is None and (options.data or run):
        tokenizer = open_tokens(options.data or run.data).tokenizer
    if tokenizer is None:
        raise UserError(
            f"{options.path} has no tokenizer for {options.text}: give the --data DIR of its training"
        )
    try:
        content = options.text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {options.text} as UTF-8 text ({error}): give a text file") from None
    ids = np.asarray(tokenizer.encode(content), dtype=np.uint32)
    if len(ids) < 3:
        raise UserError(f"{options.text} has {len(ids)} tokens: give a longer text")
    return Tokens([ids], vocab_size=len(tokenizer.tokens) + 1, end_of_text=len(tokenizer.tokens))


class Store:
    """analysis/ and figures/ of a run. A result is known by the model, text and options it came from."""

    def __init__(self, folder: Path, model: LanguageModel, options: Command, text: str) -> None:
        from srmlab.analysis.capture import model_fingerprint

        self.folder, self.results, self.figures = folder, folder / "analysis", folder / "figures"
        self.formats = options.formats
        settings = [model_fingerprint(model), text, options.threshold, options.lens_tokens, options.max_depth]
        self.identity = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
        self.partial = self.results / "partial" / self.identity
        self.index = self.results / "index.json"

    def has(self, name: str) -> bool:
        """Whether it is there, whole, and of this model and text; else it is measured (again)."""
        from srmlab.analysis.result import ResultError

        if self._index().get(name) != self.identity:
            return False
        try:
            self.load(name)
        except ResultError:
            return False
        return True

    def load(self, name: str) -> Result:
        from srmlab.analysis import load

        return load(self.results / name)

    def save(self, result: Result) -> None:
        from srmlab.analysis.result import write_text
        from srmlab.figures import figures_of, save_all

        if not is_main():
            return
        result.save(self.results / result.kind)
        for name in figures_of(result.kind):
            for kind in FORMATS:  # of an earlier text or model
                (self.figures / f"{name}.{kind}").unlink(missing_ok=True)
        save_all(result, self.figures, self.formats)
        write_text(self.index, json.dumps(self._index() | {result.kind: self.identity}, indent=2) + "\n")

    def draw(self, result: Result) -> None:
        """The figures of a known result that have not been written in these formats."""
        from srmlab.figures import figures_of, save_all

        names = figures_of(result.kind)
        missing = [
            kind
            for kind in self.formats
            if any(not (self.figures / f"{name}.{kind}").is_file() for name in names)
        ]
        if missing:
            save_all(result, self.figures, missing)

    def finish(self, run: Path, results: dict[str, Result]) -> None:
        from srmlab.analysis.registry import ANALYSES
        from srmlab.analysis.result import write_text
        from srmlab.figures import read_losses, save, training_curves

        if not is_main():
            return
        shutil.rmtree(self.partial.parent, ignore_errors=True)
        self.results.mkdir(parents=True, exist_ok=True)
        for result in results.values():
            self.draw(result)
        known = {name: self.load(name) for name in self._index() if self.has(name)} | results
        ordered = [known[name] for name in (*ANALYSES, "dynamics") if name in known]
        write_text(self.results / "summary.txt", "\n\n".join(r.summary() for r in ordered) + "\n")
        if (run / "metrics.jsonl").is_file():
            curve = read_losses(run / "metrics.jsonl")
            if len(curve[0]):
                save(training_curves({run.name: curve}), self.figures / "training", self.formats)

    def answers(self, results: dict[str, Result]) -> dict[str, Any]:
        from srmlab.figures import figures_of

        return {
            name: {
                "finding": result.headline(),
                "tokens": result.evidence.tokens,
                "sequences": result.evidence.sequences,
                "text": result.evidence.fingerprint,
                "file": str(self.results / f"{name}.npz"),
                "figures": [
                    str(self.figures / f"{figure}.{kind}")
                    for figure in figures_of(name)
                    for kind in self.formats
                ],
            }
            for name, result in results.items()
        }

    def _index(self) -> dict[str, str]:
        try:
            return json.loads(self.index.read_text())
        except (OSError, ValueError):
            return {}


def table(answer: dict[str, Any]) -> str:
    """What `srmlab analyze` prints: a line for each analysis, and where everything is."""
    rows = answer["results"]
    width = max((len(name) for name in rows), default=0)
    lines = [f"{name:<{width}}  {row['finding']}" for name, row in rows.items()]
    counts = {row["tokens"] for row in rows.values()}
    read = f"{max(counts):,} tokens ({answer['text']})" if counts else answer["text"]
    out = Path(answer["out"])
    return "\n".join([*lines, "", f"on {read}", f"{out / 'analysis' / 'summary.txt'}  ·  {out / 'figures'}"])


@contextmanager
def bars(batches: int, show: bool) -> Iterator[Callable[[str, int], None]]:
    """A bar for each pass on a terminal, a line for each pass elsewhere."""
    if show and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True)) as progress:
            tasks: dict[str, Any] = {}

            def draw(name: str, done: int) -> None:
                if name not in tasks:
                    tasks[name] = progress.add_task(name, total=None if name == "checkpoints" else batches)
                progress.update(tasks[name], completed=done)

            yield draw
        return
    started = time.perf_counter()

    def tell(name: str, done: int) -> None:
        if show and (name == "checkpoints" or done == batches):
            unit = "checkpoints" if name == "checkpoints" else "batches"
            print(f"{name}: {done} {unit}, {time.perf_counter() - started:.0f} s", file=sys.stderr)

    yield tell


@contextmanager
def world() -> Iterator[bool]:
    """Under torchrun, the processes share the batches; whether this is the one that writes."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield True
        return
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        yield dist.get_rank() == 0
        dist.barrier()
    finally:
        dist.destroy_process_group()


def is_main() -> bool:
    import torch.distributed as dist

    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
