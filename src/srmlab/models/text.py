"""Text in and out of a model that has its tokenizer, with TransformerLens' methods.

    >>> import srmlab, torch
    >>> model = srmlab.load("srm-nano")                 # comes with its tokenizer
    >>> tokens = model.to_tokens("My fellow citizens")
    >>> model.to_str_tokens(tokens[0])[:3]
    ['M', 'y', ' f']
    >>> model.to_string(tokens)
    ['My fellow citizens']
    >>> torch.equal(model("My fellow citizens"), model(tokens))     # logits; `run_with_cache` takes text too
    True
    >>> model.generate("My fellow citizens of the", max_new_tokens=4, temperature=0)
    'My fellow citizens of the United States'

A newly built model has no tokenizer until you set one: `model.tokenizer = srmlab.load_tokenizer(path)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from srmlab.errors import UserError
from srmlab.models.decoding import PaddedTokens, generate, with_mask
from srmlab.models.sites import Instrumented


class TextTokenizer(Protocol):
    """What a tokenizer must provide; `srmlab.data.Tokenizer` is one."""

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
        return self._padded([text] if isinstance(text, str) else text, prepend_bos)[0]

    def to_single_token(self, text: str) -> int:
        """The id of a text that is one token."""
        if len(ids := self._needed().encode(text)) != 1:
            raise UserError(f"{text!r} is {len(ids)} tokens, not 1: {self.to_str_tokens(text)}")
        return ids[0]

    def to_string(self, tokens: Tensor | Sequence[int] | int) -> str | list[str]:
        """The text of ids [T], or the texts of ids [B, T]."""
        ids = torch.as_tensor(tokens)
        if ids.ndim == 2:
            return [self._needed().decode(row) for row in ids.tolist()]
        return self._needed().decode(ids.reshape(-1).tolist())

    def to_str_tokens(
        self, given: str | Tensor | Sequence[str] | Sequence[int], prepend_bos: bool = False
    ) -> list[str] | list[list[str]]:
        """One string per token, of a text or of ids [T]; of several texts, or ids [B, T], a list for each."""
        if is_texts(given):
            return [self.to_str_tokens(text, prepend_bos) for text in given]  # pyright: ignore[reportReturnType]
        if isinstance(given, str):
            given = self.to_tokens(given, prepend_bos)[0]
        ids = torch.as_tensor(given)
        if ids.ndim == 2:
            return [self._needed().token_strings(row) for row in ids.tolist()]
        return self._needed().token_strings(ids.reshape(-1).tolist())

    def generate(
        self, given: Tensor | PaddedTokens | str | Sequence[str], max_new_tokens: int = 64, **how: Any
    ) -> Any:
        """Continue tokens [B, T], a text or several texts: `srmlab.generate`, and its options. Text gives
        text, which ends where the model ends it."""
        if is_texts(given):
            return [self.generate(text, max_new_tokens, **how) for text in given]
        if not isinstance(given, str):
            return generate(self, given, max_new_tokens, **how)  # pyright: ignore[reportArgumentType]
        end = self._needed().end_of_text
        written = generate(self, self.to_tokens(given), max_new_tokens, **{"stop_token": end} | how)  # pyright: ignore[reportArgumentType]
        return self._needed().decode(token for token in written[0].tolist() if token != end)

    def read_text(self, given: Any, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Text, or what a tokenizer made of it, as ids [B, T] with the mask that unequal lengths need;
        anything else as it is."""
        if not isinstance(given, str) and not is_texts(given):
            return with_mask(given, mask, self.device)
        if mask is not None:
            raise UserError("attention_mask goes with ids: that of texts is made from their lengths")
        tokens, real = self._padded([given] if isinstance(given, str) else given)
        return tokens, None if bool(real.all()) else real

    def _padded(self, texts: Sequence[str], prepend_bos: bool = False) -> tuple[Tensor, Tensor]:
        """[B, T] each: ids, and 1 where they are not padding."""
        tokenizer = self._needed()
        first = [tokenizer.end_of_text] if prepend_bos else []
        rows = [torch.tensor(first + tokenizer.encode(text)) for text in texts]
        if not rows or not all(map(len, rows)):
            raise UserError("a text is empty: every text needs at least one token, or prepend_bos=True")
        real = [torch.ones_like(row) for row in rows]
        padded = pad_sequence(rows, True, tokenizer.end_of_text), pad_sequence(real, True)
        return padded[0].to(self.device), padded[1].to(self.device)

    def _needed(self) -> TextTokenizer:
        if (found := self.tokenizer) is None:
            raise UserError("this model has no tokenizer: model.tokenizer = srmlab.load_tokenizer(PATH)")
        return found


def is_texts(given: object) -> TypeGuard[Sequence[str]]:
    """Several texts, not one."""
    return isinstance(given, list | tuple) and any(isinstance(one, str) for one in given)
