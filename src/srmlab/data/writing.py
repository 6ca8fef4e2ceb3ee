"""What preparation writes to disk: shards that grow token by token, the hashes seen so far, and how far the
source is read. All can be cut back to an earlier state and continued from there.
"""

import os
from dataclasses import asdict, dataclass, field
from io import FileIO
from pathlib import Path

import numpy as np

from srmlab.data.corpora import FINGERPRINT_START
from srmlab.data.errors import DataError
from srmlab.data.shards import SPLITS, Shard
from srmlab.files import occupied, sha256


def refuse_existing(out: Path) -> None:
    if occupied(out):
        kind = "already holds prepared data" if (out / "manifest.json").is_file() else "already exists"
        raise DataError(f"{out} {kind} and is never overwritten: choose another folder, or delete it")


@dataclass(frozen=True)
class Position:
    """How far the source is read; every field is what it is after the last document counted."""

    read: int = 0  # documents, duplicates and blanks included
    fingerprint: str = FINGERPRINT_START.hex()
    duplicates: int = 0
    blank: int = 0
    documents: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    text_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))


class Seen:
    """A set of 16-byte hashes: 65,536 buckets picked by the first two bytes, each the other 14 in a row.

    Measured 24 bytes an entry; a Python set takes about 100, most of the memory for a large corpus.
    """

    def __init__(self) -> None:
        self._buckets = [bytearray() for _ in range(1 << 16)]

    @classmethod
    def load(cls, path: Path, count: int) -> "Seen":
        seen = cls()
        with open(path, "rb") as file:
            for _ in range(count):
                digest = file.read(16)
                if len(digest) != 16:
                    raise DataError(f"{path} is too short: delete {path.parent} and start again")
                seen.add(digest)
        return seen

    def add(self, digest: bytes) -> bool:
        """False if it was there."""
        bucket, rest = self._buckets[int.from_bytes(digest[:2], "big")], digest[2:]
        at = bucket.find(rest)
        while at >= 0 and at % 14:  # a match across two entries is none
            at = bucket.find(rest, at + 1)
        if at >= 0:
            return False
        bucket += rest
        return True


class ShardWriter:
    """Appends ids to the shards of one split; `state()` is all it takes to continue later."""

    def __init__(
        self, folder: Path, split: str, dtype: np.dtype, shard_tokens: int, state: dict | None
    ) -> None:
        self._folder, self._split, self.dtype, self._shard_tokens = folder, split, dtype, shard_tokens
        self.tokens = state["tokens"] if state else 0
        self._sealed = [Shard(**shard) for shard in state["sealed"]] if state else []
        for path in sorted(folder.glob(f"{split}-*.bin"))[len(self._sealed) + 1 :]:
            path.unlink()  # begun after the last progress
        self._file = self._open()

    def close(self) -> None:
        self._file.close()

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def write(self, ids: np.ndarray) -> None:
        while len(ids):
            room = self._shard_tokens * (len(self._sealed) + 1) - self.tokens
            part, ids = ids[:room], ids[room:]
            write_all(self._file, part.tobytes())
            self.tokens += len(part)
            if len(part) == room:
                self._seal()
                self._file = self._open()

    def state(self) -> dict:
        return {"tokens": self.tokens, "sealed": [asdict(shard) for shard in self._sealed]}

    def finish(self) -> list[Shard]:
        if self.tokens > self._shard_tokens * len(self._sealed):
            self._seal()
        else:
            self._file.close()
            self._path().unlink()
        return list(self._sealed)

    def _path(self) -> Path:
        return self._folder / f"{self._split}-{len(self._sealed):05d}.bin"

    def _open(self) -> FileIO:
        """The shard to write next, cut back to the tokens that count."""
        size = (self.tokens - self._shard_tokens * len(self._sealed)) * self.dtype.itemsize
        file = FileIO(self._path(), "ab")
        if os.fstat(file.fileno()).st_size < size:
            file.close()
            raise DataError(f"{self._path()} is too short: delete {self._folder} and start again")
        file.truncate(size)
        return file

    def _seal(self) -> None:
        path = self._path()
        self.sync()
        self.close()
        tokens = path.stat().st_size // self.dtype.itemsize
        self._sealed.append(Shard(path.name, tokens, sha256(path)))


def write_all(file: FileIO, content: bytes) -> None:
    """Unbuffered, so that a full disk is an error here and now; such a write may be short."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) or 0 :]
