"""`srmlab analyze RUN`: look inside a trained model."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from srmlab.cli.shared import EMPTY, OfText, at_least, readable, refuse
from srmlab.errors import UserError, unknown
from srmlab.files import writing

if TYPE_CHECKING:
    from srmlab.analysis import Result
    from srmlab.analysis.store import Store
    from srmlab.data import EvaluationBatches
    from srmlab.dictionaries import Dictionary
    from srmlab.models import LanguageModel
    from srmlab.progress import Display
    from srmlab.training.distributed import World
    from srmlab.training.run_puzzles import BoardBatches, RunPuzzles
    from srmlab.training.run_text import RunText

TOKENS = 16_384
TRANSLATED = 4096  # tokens on which translations are checked
FORMATS = ("png", "svg", "pdf")
EXTRA = ("dynamics", "edges", "switches", "translations")  # only when asked for: they take long
READ_BY = {  # options that only some analyses read
    "threshold": ("routing", "dynamics"),
    "lens_tokens": ("logit_lens",),
    "max_depth": ("depth", "fixed_points"),
    **dict.fromkeys(("margin", "closed", "exact", "edge_tokens"), ("edges",)),
    "dictionary": ("switches", "translations"),
}
WITHOUT_TWINS = ("dynamics", "switches")  # switches measures twins of its own


@dataclass(kw_only=True)
class Command(OfText):
    """Measure routing, alignment, drift, ablation, logit lens, attribution, interaction and depth on
    held-out text, with untrained twins as the null; write results, figures and a summary. Existing
    results are kept, and a stopped analysis continues.

    Example:
        srmlab analyze runs/nano
        srmlab analyze runs/nano --only routing ablation --tokens 100000
        srmlab analyze runs/nano --only routing --null 10 --threshold 2/S --windows spread
        srmlab analyze runs/nano --only dynamics
        srmlab analyze runs/nano --only edges --margin 0.1
        srmlab analyze runs/nano --only switches
        srmlab analyze exports/nano --text speech.txt --json
        srmlab analyze --pretrained --only routing
        srmlab analyze runs/sudoku --only cells fixed_points cell_probe
    """

    only: Annotated[tuple[str, ...], EMPTY] = ()
    """Which analyses to run; by default all but the slow ones: dynamics, edges, switches, translations."""
    tokens: int = TOKENS
    """How many tokens to read."""
    windows: Literal["first", "spread"] = "first"
    """Windows to read: the first ones of the text, or spread evenly over all of it."""
    text: Path | None = None
    """Read this text file, as one document, instead of the validation tokens."""
    out: Path | None = None
    """Where analysis/ and figures/ go; by default into the run, or next to a checkpoint or export."""
    null: int | None = None
    """Number of untrained twins, measured on the same text; by default 3, or 0 above 5M parameters."""
    threshold: str = "0.10"
    """An edge counts as in use above this weight; 2/S is twice the uniform weight."""
    lens_tokens: int = 4096
    """Positions to decode with the logit lens; each costs 2·S + 1 unembeddings per layer."""
    margin: float = 0.05
    """Edges: how much a circuit may raise the loss, in nats."""
    closed: Literal["zero", "mean"] = "zero"
    """Edges: a closed edge carries nothing, or its mean weight."""
    exact: int = 128
    """Edges: how many edges to close one by one."""
    edge_tokens: int = 4096
    """Edges: how many tokens to read; circuits are chosen on one half and tested on the other."""
    dictionary: Path | None = None
    """Switches, translations: output of `srmlab dictionary --layers every`; by default the run's newest."""
    segments: int | None = None
    """Puzzles: how many segments to analyse; by default as many as in training."""
    max_depth: int | None = None
    """Largest depth to run the model at; by default twice the trained depth."""
    batch_size: int = 8
    """Windows per batch."""
    formats: tuple[str, ...] = ("png", "svg")
    """File formats of the figures: png, svg, pdf."""

    def result(self) -> dict[str, Any] | None:
        with writing(self.out):
            return self.analyze(show=not self.json) or None

    def analyze(self, show: bool = True) -> dict[str, Any]:
        """What was found; nothing in the processes that only help."""
        from srmlab.progress import Display
        from srmlab.training.distributed import open_world

        self.check()
        with open_world(self.device) as world, Display(show=show and world.main) as display:
            answer = self.measure(world, display)
        return answer if world.main else {}

    def lines(self, result: dict[str, Any]) -> Iterator[str]:
        """A line for each analysis, and where everything is."""
        rows = result["results"]
        width = max((len(name) for name in rows), default=0)
        for name, row in rows.items():
            yield f"{name:<{width}}  {row['finding']}"
            yield from (f"{'':<{width}}    {line}" for line in row.get("twins", []))
        counts = {row["tokens"] for row in rows.values()}
        read = f"{max(counts):,} tokens ({result['text']})" if counts else result["text"]
        out = Path(result["out"])
        yield f"\non {read}"
        yield f"{out / 'analysis' / 'summary.txt'}  ·  {out / 'figures'}"

    def check(self) -> None:
        at_least(self, batch_size=1, tokens=2, null=0, exact=2, edge_tokens=4, lens_tokens=1)
        for kind in self.formats:
            if kind not in FORMATS:
                raise UserError(f"--formats {kind}: must be one of {', '.join(FORMATS)}")

    def measure(self, world: World, display: Display) -> dict[str, Any]:
        from srmlab.analysis import ANALYSES
        from srmlab.analysis.null import beside
        from srmlab.analysis.store import Store
        from srmlab.figures import draw_missing, paths, training_figure
        from srmlab.training.run_text import place_for

        path = self.subject()
        text: Any = self.opened(path, str(world.device))
        batches = text.batches(self.batch_size, self.tokens)
        figures = (out := self.out or place_for(path, "analysis", inside="")) / "figures"
        self.weight = weight_of(self.threshold, text.model)
        name, settings = text.name(batches), [self.weight, self.lens_tokens, self.max_depth]
        store = Store(out, text.model, name, settings, self.own_settings(text))

        own = Measuring(self, text, text.model, store, world, display, figures)
        with saying_what_is_kept(store, world.main):
            results = own.results(self.asked(text.model, batches, store, display))
            twins = self.twins(own, [*results])
        with world.only_main() as mine:
            if mine:
                store.finish((*ANALYSES, *EXTRA))
                for kind, result in results.items():
                    draw_missing(result, figures, self.formats, twins.get(kind, ()))
                training_figure(path, figures, self.formats)
        found = {
            kind: store.about(result) | {"figures": [*map(str, paths(kind, figures, self.formats))]}
            for kind, result in results.items()
        }
        for kind, others in twins.items():
            if others:
                found[kind]["twins"] = [str(line) for line in beside(results[kind], others)]
        return {"model": str(path), "text": name, "out": str(out), "results": found}

    def opened(self, path: Path, device: str) -> RunText | RunPuzzles:
        """The model with what it is looked at on: text, or the boards of puzzles."""
        from srmlab.training.run_puzzles import open_boards, reads_puzzles

        self.segment_depth: int | None = None
        if not reads_puzzles(path):
            refuse(self, "segments", why="is for puzzle models")
            spread = self.windows == "spread"
            return self.open_text(text=self.text, longest=self.tokens, spread=spread, device=device)
        why = f"is for text, and {path} reads puzzles"
        refuse(self, "text", "windows", "document_mask", "answers_only", why=why)
        for kind in EXTRA:
            if kind in self.only:
                raise UserError(f"--only {kind} is measured on text, and {path} reads puzzles; leave it out")
        boards = open_boards(path, data=self.data, segments=self.segments, device=device)
        self.segment_depth = boards.trained.depth
        return boards

    def asked(
        self,
        model: LanguageModel,
        batches: EvaluationBatches | BoardBatches,
        store: Store,
        display: Display,
    ) -> list[str]:
        """Which analyses are to be made; what cannot be is refused before any is."""
        from srmlab.analysis import ANALYSES, lens_cost
        from srmlab.analysis.depth import deepened
        from srmlab.analysis.survey import chosen

        for name in self.only:
            if name not in (*ANALYSES, *EXTRA):
                raise unknown("analysis", name, (*ANALYSES, *EXTRA), own=True)
        wanted = [name for name in self.only if name not in EXTRA]
        usual = chosen(model, wanted or None) if wanted or not self.only else ()
        if "depth" in usual:
            deepened(model, self.max_depth)
        if "logit_lens" in usual and not store.has("logit_lens"):
            tokens = min(self.lens_tokens, batches.windows * batches.context)
            display.say(f"logit lens: {lens_cost(model, tokens)}")
        asked = [*usual, *(kind for kind in EXTRA if kind in self.only)]
        self.refuse_unused(asked)
        return asked

    def refuse_unused(self, asked: Sequence[str]) -> None:
        """Refuse options that nothing reads; an analysis of the user's own may read what all are given."""
        from srmlab.analysis import ANALYSES

        kinds = [kind for kind in asked if kind in ANALYSES]
        own = any(not ANALYSES[kind].result.__module__.startswith("srmlab.") for kind in kinds)
        for option, readers in READ_BY.items():
            perhaps = own and option in ("threshold", "lens_tokens", "max_depth")
            if not perhaps and not {*readers} & {*asked}:
                refuse(self, option, why=f"is for {' and '.join(readers)}, not measured here")
        if {*asked} == {"dynamics"}:
            refuse(self, "null", why="is not for dynamics, which compares a run's checkpoints")

    def own_settings(self, text: RunText) -> dict[str, list[Any]]:
        """What only one of the results depends on."""
        own: dict[str, list[Any]] = {"edges": [self.margin, self.closed, self.exact, self.edge_tokens]}
        if {"switches", "translations"} & set(self.only):
            from srmlab.dictionaries.dictionary import WEIGHTS
            from srmlab.files import sha256

            self.dictionary = self.dictionary_of(text)
            mark = sha256(self.dictionary / WEIGHTS)
            own |= {"switches": [mark, self.null_count(text.model)], "translations": [mark]}
        return own

    def dictionary_of(self, text: RunText) -> Path:
        """The folder of a dictionary that knows the states patterns are made from."""
        from srmlab.dictionaries import load
        from srmlab.dictionaries.lexicon import dictionary_folder
        from srmlab.dictionaries.switches import check_readable

        def suits(dictionary: Dictionary) -> None:
            check_readable(text.model, dictionary)

        if self.dictionary is not None:
            suits(load(self.dictionary))
            return self.dictionary
        if (folder := dictionary_folder(text.path, suits)) is None:
            command = f"srmlab dictionary {text.path} --layers every"
            raise UserError(f"{text.path} has no dictionary for all depths: train one with `{command}`")
        return folder

    def null_count(self, model: LanguageModel) -> int:
        from srmlab.analysis.null import usual_count

        return usual_count(model, self.null)

    def twins(self, own: Measuring, kinds: list[str]) -> dict[str, list[Result]]:
        """The same analyses of untrained twins, by name."""
        from srmlab.analysis.null import twins

        asked = [kind for kind in kinds if kind not in WITHOUT_TWINS]
        found: dict[str, list[Result]] = {kind: [] for kind in asked}
        for seed, twin in twins(own.model, self.null_count(own.model) if asked else 0):
            place = own.store.twin(seed, twin)
            own.display.say(f"untrained twin, seed {seed}")
            results = replace(own, model=twin, store=place, figures=None).results(asked)
            with own.world.only_main() as mine:
                if mine:
                    place.finish(asked)
            for kind, result in results.items():
                found[kind].append(result)
        return found

    def dynamics(self, text: RunText, _: LanguageModel, display: Display) -> Result:
        from srmlab.analysis import checkpoints_of, dynamics

        task, done = display.task("dynamics", unit="checkpoints"), count(1)
        batches = text.batches(self.batch_size, self.tokens)
        return dynamics(checkpoints_of(text.path), batches, self.weight, lambda _: task.update(next(done)))

    def edges(self, text: RunText, model: LanguageModel, display: Display) -> Result:
        from srmlab.analysis import edges

        windows = min(self.edge_tokens, self.tokens) // text.context
        size = max(1, min(self.batch_size, windows // 2))  # two batches at least
        return edges(
            model,
            text.batches(size, windows * text.context),
            margin=self.margin,
            by=self.closed,
            exact=self.exact,
            progress=display.tasks(),
        )

    def switches(self, text: RunText, model: LanguageModel, display: Display) -> Result:
        from srmlab.dictionaries import load, switches

        assert self.dictionary is not None, "found before"
        return switches(
            model,
            load(self.dictionary),
            text.batches(self.batch_size, self.tokens),
            twins=self.null_count(model),
            decode=readable(text.tokenizer),
            progress=display.tasks(),
        )

    def translations(self, text: RunText, model: LanguageModel, _: Display) -> Result:
        from srmlab.dictionaries import Lexicon, load, translations

        assert self.dictionary is not None, "found before"
        batches = text.batches(self.batch_size, min(self.tokens, TRANSLATED))
        if model is not text.model:  # a twin has no dictionary
            return translations(model, batches)
        decode = readable(text.tokenizer)

        def describe(stream: int, feature: int) -> str:
            raised = lexicon.features.raised[stream, feature, :3]
            return "raises " + " ".join(repr(decode(int(token))) for token in raised)

        try:
            lexicon = Lexicon.load(self.dictionary, model)
        except UserError:  # its features were not described
            return translations(model, batches, load(self.dictionary))
        return translations(model, batches, lexicon.dictionary, describe=describe)


@dataclass(frozen=True)
class Measuring:
    """The analyses of a model, or of an untrained twin of it, on their way into a folder."""

    command: Command
    text: Any  # a run with its text, or one with its puzzles: they are asked for the same
    model: LanguageModel
    store: Store
    world: World
    display: Display
    figures: Path | None  # twins have none of their own

    def results(self, asked: Sequence[str]) -> dict[str, Result]:
        """Those that are there as they are; the others measured, and kept."""
        command = self.command
        batches = self.text.batches(command.batch_size, command.tokens)
        found = self.store.survey(
            self.model,
            batches,
            [kind for kind in asked if kind not in EXTRA],
            self.keep,
            threshold=command.weight,
            lens_tokens=command.lens_tokens,
            max_depth=command.max_depth,
            segment_depth=command.segment_depth,
            progress=self.display.tasks(len(batches), "batches"),
        )
        for kind in (kind for kind in asked if kind in EXTRA):
            found |= self.store.known([kind])
            if kind not in found:
                found[kind] = getattr(command, kind)(self.text, self.model, self.display)
                self.keep(found[kind])
        return found

    def keep(self, result: Result) -> None:
        """Write a result. Figures of an earlier one go; the new ones are drawn when the twins are known."""
        from srmlab.figures import remove_all

        with self.world.only_main() as mine:
            if mine:
                self.store.save(result)
                if self.figures is not None:
                    remove_all(result.kind, self.figures)


@contextmanager
def saying_what_is_kept(store: Store, aloud: bool) -> Iterator[None]:
    """Ctrl-C loses nothing that is measured, and says so."""
    try:
        yield
    except KeyboardInterrupt:
        if aloud:
            kept = ", ".join(store.known()) or "no complete analysis yet"
            said = f"stopped; kept in {store.results}: {kept}; run the same command to continue"
            print(f"srmlab analyze: {said}", file=sys.stderr)
        raise


def weight_of(threshold: str, model: LanguageModel) -> float:
    """A threshold as a weight: 0.10, or a multiple of 1/S."""
    number, slash, streams = threshold.partition("/")
    try:
        if slash and streams.strip() != "S":
            raise ValueError
        weight = float(number) / (len(model.streams) if slash else 1)
        if not 0 <= weight < 1:
            raise ValueError
        return weight
    except ValueError:
        raise UserError(f"--threshold {threshold}: give a weight such as 0.10, or 2/S") from None
