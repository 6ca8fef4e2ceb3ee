"""Writing text: a key-value cache for every attention call of a forward pass, and sampling from the logits.

In a recurrent model one set of weights attends many times in a pass (SRM-base: 8 layers × 6 steps, and the
post-step). Each call has its own keys and values, so the cache is a list with one `KeyValues` per call, in
the order of the calls, holding all streams; the first pass makes it as long as it needs. Nothing else needs
remembering: the states z are rebuilt for the new tokens only.

    >>> import torch, srmlab
    >>> model = srmlab.build(srmlab.preset("srm-nano")).eval()
    >>> srmlab.generate(model, torch.tensor([[1, 2, 3]]), max_new_tokens=5, seed=0).shape
    torch.Size([1, 8])
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from srmlab.errors import UserError

if TYPE_CHECKING:
    from srmlab.models.model import LanguageModel


COLDEST = 1e-5  # below it only the most likely token has any chance


class KeyValues:
    """The keys and values of one attention call, [N, H, capacity, K], filled from the front."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values [N, H, T, K] of new tokens; all keys and values so far."""
        if self.keys is None or self.values is None:
            N, H, _, K = k.shape
            self.keys = k.new_empty(N, H, self.capacity, K)
            self.values = v.new_empty(N, H, self.capacity, K)
        end = self.length + k.shape[2]
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


class DecodingCache:
    """What a model remembers of the tokens it has read: one `KeyValues` per attention call of a pass."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.slots: list[KeyValues] = []
        self.real: Tensor | None = None  # [B, length] which tokens are not padding; None if all are

    @property
    def length(self) -> int:
        """How many tokens have been read."""
        return self.slots[0].length if self.slots else 0

    def __iter__(self) -> Iterator[KeyValues]:
        return iter(self.slots)

    def calls(self) -> Iterator[KeyValues]:
        """A slot for every attention call of one pass, in their order."""
        for i in itertools.count():
            if i == len(self.slots):
                self.slots.append(KeyValues(self.capacity))
            yield self.slots[i]

    def with_padding(self, tokens: Tensor, real: Tensor | None) -> Tensor | None:
        """Remember which of these `tokens` [B, T] are real; which of all are, [B, length + T]."""
        if real is None and self.real is None:
            return None
        before = (
            tokens.new_ones(len(tokens), self.length, dtype=torch.bool) if self.real is None else self.real
        )
        now = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
        self.real = torch.cat((before, now), dim=1)
        return self.real

    def room_for(self, tokens: int) -> None:
        if self.length + tokens > self.capacity:
            raise UserError(
                f"{self.length} cached + {tokens} new tokens exceed the context of {self.capacity}; "
                'shorten the prompt, or generate with overflow="slide"'
            )


def sample(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: torch.Generator
) -> Tensor:
    """One token id per row of logits [B, V]. Temperature 0 takes the most likely, and so does one so low that
    the logits would overflow."""
    if temperature < COLDEST:
        return logits.argmax(-1)
    logits = logits.float() / temperature
    if top_k is not None:
        kth = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if top_p is not None:
        ranked, ids = logits.sort(dim=-1, descending=True)
        before = ranked.softmax(-1).cumsum(-1) - ranked.softmax(-1)  # the mass of all likelier tokens
        ranked = ranked.masked_fill(before >= top_p, -torch.inf)
        logits = logits.scatter(-1, ids, ranked)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)


def generate(
    model: LanguageModel,
    tokens: Tensor,
    max_new_tokens: int = 64,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop_token: int | None = None,
    overflow: Literal["refuse", "slide"] = "refuse",
    use_cache: bool = True,
    on_token: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Continue each row of `tokens` [B, T] by up to `max_new_tokens`; returns prompt and continuation.

    A row that has produced `stop_token` is filled with it until all rows have. Past the model's context,
    "refuse" raises before the first token is made; "slide" reads the last half of the context anew and goes
    on from there. `use_cache=False` recomputes the whole pass for every token: slow, the same result.
    `on_token` sees each new column [B].
    """
    check_sampling(tokens, max_new_tokens, temperature, top_k, top_p, model.config.vocab_size)
    context = model.config.context
    check_length(tokens, max_new_tokens, context, overflow)
    generator = torch.Generator(device=tokens.device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    with model.evaluating():  # not inference_mode: the tokens returned may be used in training
        sequence = tokens
        finished = torch.zeros(tokens.shape[0], dtype=torch.bool, device=tokens.device)
        cache: DecodingCache | None = None
        start = max(0, tokens.shape[1] - context)  # the window the model sees is sequence[:, start:]
        for _ in range(max_new_tokens):
            if sequence.shape[1] - start > context:
                start, cache = sequence.shape[1] - max(1, context // 2), None
            if not use_cache:
                unread = sequence[:, start:]
            elif cache is None:
                cache, unread = model.new_cache(), sequence[:, start:]
            else:
                unread = sequence[:, -1:]
            logits = model.next_token_logits(unread, cache)
            chosen = sample(logits, temperature, top_k, top_p, generator)
            if stop_token is not None:
                chosen = torch.where(finished, stop_token, chosen)
                finished |= chosen == stop_token
            sequence = torch.cat((sequence, chosen[:, None]), dim=1)
            if on_token is not None:
                on_token(chosen)
            if stop_token is not None and bool(finished.all()):
                break
        return sequence


def check_sampling(
    tokens: Tensor,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    vocab_size: int,
) -> None:
    if not isinstance(tokens, Tensor):
        kind = type(tokens).__name__
        raise UserError(f"tokens are a tensor [batch, token] of ids, not {kind}: use tokenizer(text).tokens")
    if tokens.ndim != 2 or tokens.numel() == 0:
        raise UserError(f"tokens of shape {tuple(tokens.shape)}: need [batch, token] with at least one token")
    low, high = (int(bound) for bound in tokens.aminmax())
    if low < 0 or high >= vocab_size:
        raise UserError(f"token ids of {low} to {high}: this model knows those of 0 to {vocab_size - 1}")
    if max_new_tokens < 0:
        raise UserError(f"max_new_tokens = {max_new_tokens}: must be 0 or more")
    if not temperature >= 0:  # NaN too
        raise UserError(f"temperature = {temperature}: must be 0 (greedy) or more")
    if top_k is not None and top_k < 1:
        raise UserError(f"top_k = {top_k}: must be at least 1, or None for all tokens")
    if top_p is not None and not 0 < top_p <= 1:
        raise UserError(f"top_p = {top_p}: must be in (0, 1], or None for all tokens")


def check_length(tokens: Tensor, max_new_tokens: int, context: int, overflow: str) -> None:
    if overflow not in ("refuse", "slide"):
        raise UserError(f'overflow = {overflow!r}: must be "refuse" or "slide"')
    if tokens.shape[1] + max_new_tokens > context and overflow == "refuse":
        raise UserError(
            f"{tokens.shape[1]} prompt + {max_new_tokens} new tokens exceed the context of {context}; "
            'ask for fewer, or pass overflow="slide"'
        )
