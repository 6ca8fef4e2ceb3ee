"""Text in and out of a model that knows its tokenizer, by TransformerLens' verbs.

    >>> import srmlab
    >>> model = srmlab.load("srm-nano")                 # comes with its tokenizer
    >>> tokens = model.to_tokens("My fellow citizens")
    >>> model.to_str_tokens(tokens[0])[:3]
    ['M', 'y', ' f']
    >>> model.to_string(tokens)
    ['My fellow citizens']

A model that was built has none until it is given one: `model.tokenizer = srmlab.load_tokenizer(path)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from srmlab.errors import UserError
from srmlab.models.sites import Instrumented


class TextTokenizer(Protocol):
    """What is asked of a tokenizer here; `srmlab.data.Tokenizer` is one."""

    @property
    def end_of_text(self) -> int: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Iterable[int]) -> str: ...
    def token_strings(self, ids: Iterable[int]) -> list[str]: ...


class WithText(Instrumented):
    """A model that can be given a tokenizer."""

    find_tokenizer: Callable[[], TextTokenizer | None] | None = None  # asked once, when first needed
    _tokenizer: TextTokenizer | None = None

    @property
    def device(self) -> torch.device:
        raise NotImplementedError

    @property
    def tokenizer(self) -> TextTokenizer | None:
        if self._tokenizer is None and self.find_tokenizer is not None:
            self._tokenizer, self.find_tokenizer = self.find_tokenizer(), None
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: TextTokenizer | None) -> None:
        self._tokenizer, self.find_tokenizer = tokenizer, None

    def to_tokens(self, text: str | Sequence[str], prepend_bos: bool = False) -> Tensor:
        """[B, T] The ids of one text or several; shorter ones are padded on the right, where no token before
        it looks. `prepend_bos` begins each with the end of the text before it."""
        tokenizer = self._needed()
        texts = [text] if isinstance(text, str) else list(text)
        first = [tokenizer.end_of_text] if prepend_bos else []
        rows = [torch.tensor(first + tokenizer.encode(one)) for one in texts]
        if not rows or not all(map(len, rows)):
            raise UserError(
                "there is an empty text: every text needs at least one token, or prepend_bos=True"
            )
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=tokenizer.end_of_text)
        return padded.to(self.device)

    def to_string(self, tokens: Tensor | Sequence[int] | int) -> str | list[str]:
        """The text of ids [T], or the texts of ids [B, T]."""
        ids = torch.as_tensor(tokens)
        if ids.ndim == 2:
            return [self._needed().decode(row) for row in ids.tolist()]
        return self._needed().decode(ids.reshape(-1).tolist())

    def to_str_tokens(
        self, given: str | Tensor | Sequence[str] | Sequence[int], prepend_bos: bool = False
    ) -> list[str] | list[list[str]]:
        """One string a token, of a text or of ids [T]; of several texts, or ids [B, T], a list for each."""
        if isinstance(given, str):
            return self._needed().token_strings(self.to_tokens(given, prepend_bos)[0].tolist())
        if isinstance(given, Sequence) and any(isinstance(one, str) for one in given):
            return [
                self._needed().token_strings(self.to_tokens(str(one), prepend_bos)[0].tolist())
                for one in given
            ]
        ids = torch.as_tensor(given)
        if ids.ndim == 2:
            return [self._needed().token_strings(row) for row in ids.tolist()]
        return self._needed().token_strings(ids.reshape(-1).tolist())

    def _needed(self) -> TextTokenizer:
        if (found := self.tokenizer) is None:
            raise UserError("this model has no tokenizer: model.tokenizer = srmlab.load_tokenizer(PATH)")
        return found
