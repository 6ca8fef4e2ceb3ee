"""Token shards: a corpus as files of token ids, prepared once and checked at every opening.

    OUT/train-00000.bin …   raw little-endian uint16 (uint32 beyond 65,536 ids), all but the last equally long
    OUT/val-00000.bin …     one stream a split: every document, then end-of-text, in the order of the source
    OUT/tokenizer/          the tokenizer, complete
    OUT/manifest.json       counts, source, fingerprints, and the sha256 of every file, itself included

A directory is opened only when every file in it is whole: present, of the right length, and with the sha256
that the manifest gives. `srmlab.data.preparation` makes such directories.

    data = open_tokens("data/sotu")
    data.train.read(0, 10)
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from srmlab.data.errors import DataError
from srmlab.data.tokenizers import Tokenizer, load_tokenizer
from srmlab.files import sha256

FORMAT = 1
SPLITS = ("train", "val")


@dataclass(frozen=True)
class Shard:
    file: str
    tokens: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a prepared directory holds; equal inputs give equal manifests, byte for byte."""

    format: int
    dtype: str  # "uint16" or "uint32", little-endian on disk
    vocab_size: int
    end_of_text: int
    tokenizer: str
    tokenizer_fingerprint: str
    tokenizer_sha256: dict[str, str]  # by file name
    source: str
    source_fingerprint: str  # of the texts and their order, before duplicates are dropped
    val_fraction: float
    duplicates: int  # documents dropped because their exact text came before
    blank: int  # documents dropped because they hold nothing but blanks
    documents: dict[str, int]  # by split, as are the next two
    text_bytes: dict[str, int]
    tokens: dict[str, int]
    shards: dict[str, list[Shard]]

    @property
    def fingerprint(self) -> str:
        """sha256 of the manifest and, through the hashes in it, of all the data."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


class Tokens:
    """One stream of token ids over any number of arrays (memory-mapped shards, or one array in memory).

    >>> Tokens([np.array([5, 6, 7]), np.array([8, 9])], vocab_size=10, end_of_text=9).read(1, 4)
    array([6, 7, 8])
    """

    def __init__(self, arrays: Sequence[np.ndarray], *, vocab_size: int, end_of_text: int) -> None:
        self._arrays = list(arrays)
        self._ends = np.cumsum([len(array) for array in arrays]).tolist()
        self.vocab_size = vocab_size
        self.end_of_text = end_of_text

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, stop: int) -> np.ndarray:
        """Ids start … stop-1, as int64; fewer at the end of the stream."""
        start, stop = max(0, start), min(stop, len(self))
        parts = []
        while start < stop:
            shard = bisect_right(self._ends, start)
            begin = self._ends[shard] - len(self._arrays[shard])
            end = min(stop, self._ends[shard])
            parts.append(self._arrays[shard][start - begin : end - begin])
            start = end
        return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)


@dataclass(frozen=True)
class TokenData:
    """A prepared directory, opened."""

    path: Path
    manifest: Manifest
    tokenizer: Tokenizer
    train: Tokens
    val: Tokens

    @property
    def vocab_size(self) -> int:
        return self.manifest.vocab_size

    @property
    def fingerprint(self) -> str:
        return self.manifest.fingerprint


def open_tokens(directory: str | Path, *, verify: bool = True) -> TokenData:
    """Open a prepared directory, refusing it if any file is missing, short, damaged or from elsewhere.

    `verify=False` skips the sha256 of the shards (a second or so a gigabyte) and checks all else: enough for
    the other processes of a run whose first one has verified.
    """
    directory = Path(directory)
    manifest = read_manifest(directory)
    dtype = np.dtype(manifest.dtype).newbyteorder("<")
    for name, expected in manifest.tokenizer_sha256.items():
        _check(directory / "tokenizer" / name, expected)
    listed = {shard.file for shards in manifest.shards.values() for shard in shards}
    for path in sorted(directory.glob("*.bin")):
        if path.name not in listed:
            raise DataError(f"{path} does not belong to this data (it is not in manifest.json): move it away")

    streams = {}
    for split, shards in manifest.shards.items():
        for shard in shards:
            expected = shard.sha256 if verify else None
            _check(directory / shard.file, expected, shard.tokens * dtype.itemsize)
        arrays = [np.memmap(directory / shard.file, dtype, mode="r") for shard in shards]
        streams[split] = Tokens(arrays, vocab_size=manifest.vocab_size, end_of_text=manifest.end_of_text)
    tokenizer = load_tokenizer(directory / "tokenizer")
    return TokenData(directory, manifest, tokenizer, streams["train"], streams["val"])


def _check(path: Path, expected: str | None, size: int | None = None) -> None:
    """Refuse a file that is not there, not of this size, or without the expected sha256."""
    fix = "prepare the data again, or restore the file"
    if not path.is_file():
        raise DataError(f"{path} is missing: {fix}")
    if size is not None and path.stat().st_size != size:
        raise DataError(f"{path} has {path.stat().st_size} bytes instead of {size}: {fix}")
    if expected is not None and sha256(path) != expected:
        raise DataError(f"{path} is damaged or from elsewhere (its sha256 differs): {fix}")


def read_manifest(directory: str | Path) -> Manifest:
    """What a folder of prepared data says of itself, in its manifest.json."""
    path = Path(directory) / "manifest.json"
    try:
        content = json.loads(path.read_bytes())
        expected = content.pop("sha256")
        if content["format"] != FORMAT:
            raise DataError(
                f"{path} has format {content['format']}, this version reads {FORMAT}: prepare again"
            )
        shards = {split: [Shard(**shard) for shard in content["shards"][split]] for split in SPLITS}
        manifest = Manifest(**content | {"shards": shards})
    except FileNotFoundError:
        why, fix = "no manifest.json", "run srmlab prepare first"
        if not Path(directory).exists():
            why, fix = "it does not exist", "prepare it, or if it has moved give its folder with --data"
        raise DataError(f"{directory} is not prepared data ({why}): {fix}") from None
    except NotADirectoryError:
        raise DataError(
            f"{directory} is a file: give the folder that `srmlab prepare {directory} --out FOLDER` writes"
        ) from None
    except DataError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} cannot be read ({error!r}): prepare the data again") from None
    if manifest.fingerprint != expected or path.read_bytes() != manifest_bytes(manifest):
        raise DataError(
            f"{path} is damaged (its sha256 differs): prepare the data again, or restore the file"
        )
    return manifest


def manifest_bytes(manifest: Manifest) -> bytes:
    return (json.dumps(asdict(manifest) | {"sha256": manifest.fingerprint}, indent=2) + "\n").encode()
