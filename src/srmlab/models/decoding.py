"""Generation: tokens are sampled one after the other, with a KV cache (see `cache`).

>>> import torch, srmlab
>>> model = srmlab.build(srmlab.preset("srm-nano")).eval()
>>> srmlab.generate(model, torch.tensor([[1, 2, 3]]), max_new_tokens=5, seed=0).shape
torch.Size([1, 8])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor

from srmlab.errors import UserError, check_choice
from srmlab.models.cache import DecodingCache
from srmlab.models.exit import Exit
from srmlab.models.loss import IGNORE

if TYPE_CHECKING:
    from srmlab.models.model import LanguageModel


COLDEST = 1e-5  # below it only the most likely token has any chance


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
    tokens: Tensor | PaddedTokens,
    max_new_tokens: int = 64,
    *,
    attention_mask: Tensor | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop_token: int | None = None,
    overflow: Literal["refuse", "slide"] = "refuse",
    use_cache: bool = True,
    exit: float | Exit | None = None,
    reuse_cache: bool = False,
    on_token: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Continue each row of `tokens` [B, T] by up to `max_new_tokens`; returns prompt and continuation.

    Rows of unequal length are padded on the left: pass `tokenizer(texts)` as it is, or ids and the
    `attention_mask` [B, T], 0 at padding. Each row is then continued as it is alone.
    A row that has produced `stop_token` is filled with it until all rows have. Past the model's context,
    "refuse" raises before the first token is made; "slide" reads the last half of the context anew and goes
    on from there. `use_cache=False` recomputes the whole pass for every token: slow, the same result.
    `exit` stops the recursion where the state changes by less than this share of it (see `exit`): faster, not
    the same result. An `Exit` also counts the levels used. `reuse_cache` takes less memory (see
    `LanguageModel.new_cache`). `on_token` sees each new column [B].
    """
    sequence, real = with_mask(tokens, attention_mask, model.device)
    check_sampling(sequence, max_new_tokens, temperature, top_k, top_p, model.config.vocab_size)
    if exit is not None and not use_cache:
        raise UserError("exit needs the cache: without it every token would be recomputed at another depth")
    exit, context = Exit.of(exit), model.config.context
    check_prompt(sequence, real, max_new_tokens, context, overflow)
    generator = seeded(sequence.device, seed)
    with model.evaluating():  # not inference_mode: the tokens returned may be used in training
        finished = torch.zeros(sequence.shape[0], dtype=torch.bool, device=sequence.device)
        cache: DecodingCache | None = None
        start = max(0, sequence.shape[1] - context)  # the window the model sees is sequence[:, start:]
        for _ in range(max_new_tokens):
            if sequence.shape[1] - start > context:
                start, cache = sequence.shape[1] - max(1, context // 2), None
            unread = sequence[:, start:]
            if use_cache and cache is None:
                cache = model.new_cache(reuse=reuse_cache)
            elif use_cache:
                unread = sequence[:, -1:]
            mask = None if real is None else real[:, -unread.shape[1] :]
            logits = model.next_token_logits(unread, cache, mask, exit=exit)
            chosen = sample(logits, temperature, top_k, top_p, generator)
            if stop_token is not None:
                chosen = torch.where(finished, stop_token, chosen)
                finished |= chosen == stop_token
            sequence = torch.cat((sequence, chosen[:, None]), dim=1)
            if real is not None:
                real = torch.cat((real, real[:, -1:]), dim=1)
            if on_token is not None:
                on_token(chosen)
            if stop_token is not None and bool(finished.all()):
                break
        return sequence


def seeded(device: torch.device, seed: int | None) -> torch.Generator:
    """Random numbers of a seed; without one they differ every time."""
    generator = torch.Generator(device=device)
    generator.manual_seed(generator.seed() if seed is None else seed)
    return generator


class PaddedTokens(Protocol):
    """What a tokenizer makes of several texts; `srmlab.data.tokenizers.Padded` is it."""

    @property
    def tokens(self) -> Tensor: ...
    @property
    def attention_mask(self) -> Tensor: ...


def with_mask(given: Any, mask: Tensor | None, device: torch.device) -> tuple[Any, Tensor | None]:
    """Ids and their mask, which is None where nothing is padded; anything but `PaddedTokens` as it is."""
    if not hasattr(given, "attention_mask") or not hasattr(given, "tokens"):
        return given, mask
    if mask is not None:
        raise UserError("attention_mask is given twice: the tokenizer's output already has one")
    padded = not bool(given.attention_mask.all())
    return given.tokens.to(device), given.attention_mask.to(device) if padded else None


def check_padding(mask: Tensor | None, tokens: Tensor) -> None:
    """A mask that text can go on from: padding on the left alone, and a token in every row."""
    if mask is None:
        return
    if mask.shape != tokens.shape:
        raise UserError(
            f"attention_mask of shape {tuple(mask.shape)}: need the shape of tokens, {tuple(tokens.shape)}"
        )
    real = mask.bool()
    if not bool(real[:, -1].all() and (real[:, 1:] >= real[:, :-1]).all()):
        raise UserError("attention_mask: text that goes on is padded on the left, as tokenizer(texts) does")


def check_ids(tokens: Tensor) -> None:
    if not isinstance(tokens, Tensor):
        kind = type(tokens).__name__
        raise UserError(
            f"tokens are a tensor [batch, token] of ids, not {kind}: "
            "use tokenizer(texts), model.generate(text), or torch.tensor([[1, 2, 3]])"
        )
    if tokens.dtype not in (torch.int64, torch.int32):
        raise UserError(f"tokens of {tokens.dtype}: ids are whole numbers; use tokens.long()")
    if tokens.ndim != 2 or tokens.numel() == 0:
        raise UserError(f"tokens of shape {tuple(tokens.shape)}: need [batch, token] with at least one token")


def check_range(tokens: Tensor, vocab_size: int) -> None:
    low, high = (int(bound) for bound in tokens.aminmax())
    if low < 0 or high >= vocab_size:
        raise UserError(f"token ids of {low} to {high}: this model's range is 0 to {vocab_size - 1}")


def check_targets(targets: Tensor, vocab_size: int) -> None:
    beyond = targets[(targets != IGNORE) & ((targets < 0) | (targets >= vocab_size))]
    if len(beyond):
        raise UserError(
            f"a target of {int(beyond[0])}: must be 0 to {vocab_size - 1}, or {IGNORE} where none counts"
        )


def check_sampling(
    tokens: Tensor,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    vocab_size: int,
) -> None:
    check_ids(tokens)
    check_range(tokens, vocab_size)
    if max_new_tokens < 0:
        raise UserError(f"max_new_tokens = {max_new_tokens}: must be 0 or more")
    if not temperature >= 0:  # NaN too
        raise UserError(f"temperature = {temperature}: must be 0 (greedy) or more")
    if top_k is not None and top_k < 1:
        raise UserError(f"top_k = {top_k}: must be at least 1; leave it out for all tokens")
    if top_p is not None and not 0 < top_p <= 1:
        raise UserError(f"top_p = {top_p}: must be in (0, 1]; leave it out for all tokens")


def check_prompt(
    tokens: Tensor, mask: Tensor | None, max_new_tokens: int, context: int, overflow: str
) -> None:
    """A prompt with room for what is to come, that text can go on from."""
    check_choice("overflow", overflow, ("refuse", "slide"))
    if tokens.shape[1] + max_new_tokens > context and overflow == "refuse":
        raise UserError(
            f"{tokens.shape[1]} prompt + {max_new_tokens} new tokens exceed the context of {context}; "
            'ask for fewer, or pass overflow="slide"'
        )
    check_padding(mask, tokens)
