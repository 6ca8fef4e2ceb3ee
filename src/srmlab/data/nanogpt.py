"""A data folder of nanoGPT: `train.bin` and `val.bin`, each one stream of uint16 ids.

Both are taken over id by id, and so is their split: a loss on `val` is one on nanoGPT's own validation
tokens. What the ids stand for is not in those files. They are GPT-2's unless a tokenizer is named; the
`meta.pkl` of a folder of characters is a pickle, which runs code when it is opened, and is never opened.

    prepare(PrepareConfig(source="nanoGPT/data/openwebtext", out=Path("data/openwebtext")))
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from srmlab.data.corpora import FINGERPRINT_START, Document, Source, extend_fingerprint, text_digest
from srmlab.data.errors import DataError
from srmlab.data.shards import SPLITS
from srmlab.data.tokenizers import Tokenizer
from srmlab.data.writing import Position, ShardWriter

CHUNK = 1 << 22  # ids read at a time


@dataclass(frozen=True)
class NanoGPT(Source):
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.as_posix()

    @classmethod
    def at(cls, spec: str) -> "NanoGPT | None":
        """The folder, if it is one of nanoGPT's."""
        folder = Path(spec)
        return cls(folder) if (folder / "train.bin").is_file() else None

    def documents(self) -> Iterator[Document]:
        raise DataError(f"{self.folder} holds tokens, not text: prepare it on its own")

    def check(self, tokenizer: str, val_fraction: float, usual: float) -> None:
        """Refuse, before anything is written, what cannot come out right."""
        for split in SPLITS:
            file = self.folder / f"{split}.bin"
            if not file.is_file() or file.stat().st_size < 2 or file.stat().st_size % 2:
                raise DataError(f"{file} is not a file of uint16 ids: let nanoGPT's prepare.py make it again")
        if tokenizer.startswith("bpe:"):
            raise DataError(f"{self.folder} holds tokens: {tokenizer} cannot be learned from them; use gpt2")
        if (self.folder / "meta.pkl").exists() and tokenizer in ("gpt2", "byte"):
            text = self.folder / "input.txt"
            instead = text if text.is_file() else "the text it was made from"
            raise DataError(
                f"{self.folder} has ids of its own, named in meta.pkl, a pickle, which is never opened: "
                f"prepare {instead} with --tokenizer byte, or give the folder of a tokenizer"
            )
        if val_fraction != usual:
            raise DataError(f"{self.folder} is split into train.bin and val.bin: leave out val_fraction")

    def copy(
        self, tokenizer: Tokenizer, writers: dict[str, ShardWriter], show: Callable[[int, int, int], None]
    ) -> Position:
        """Take over all ids; `show` gets documents, bytes of text and tokens so far."""
        documents: dict[str, int] = dict.fromkeys(SPLITS, 0)
        text_bytes: dict[str, int] = dict.fromkeys(SPLITS, 0)
        fingerprint, tokens = FINGERPRINT_START, 0
        for split in SPLITS:
            ids = np.memmap(self.folder / f"{split}.bin", "<u2", mode="r")
            for start in range(0, len(ids), CHUNK):
                chunk = np.array(ids[start : start + CHUNK])
                if chunk.max() >= tokenizer.vocab_size:
                    raise DataError(
                        f"{self.folder / split}.bin has id {chunk.max()}, and {tokenizer.name} has "
                        f"{tokenizer.vocab_size}: give the folder of its tokenizer"
                    )
                fingerprint = extend_fingerprint(fingerprint, text_digest(chunk.tobytes()))
                documents[split] += int((chunk == tokenizer.end_of_text).sum())
                text_bytes[split] += tokenizer.num_bytes(chunk)
                writers[split].write(chunk.astype(writers[split].dtype))
                tokens += len(chunk)
                show(sum(documents.values()), sum(text_bytes.values()), tokens)
            documents[split] += int(ids[-1] != tokenizer.end_of_text)  # the last need not be ended
        return Position(sum(documents.values()), fingerprint.hex(), 0, 0, documents, text_bytes)
