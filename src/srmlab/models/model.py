"""What SRM, HRM and GPT-2 have in common on the outside.

    model(tokens)                 logits [B, T, V]
    model(tokens, targets)        mean cross-entropy in nats, without ever holding all logits
    model(tokens, cache=cache)    logits of further tokens, after those the cache has read
    model.num_parameters()        unique parameters; tied ones count once
    model.flops_per_token(512)    arithmetic of a forward pass and of a training step

and the verbs of `Instrumented`: sites, hooks and caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
import torch._dynamo
from torch import Tensor

from srmlab.errors import UserError
from srmlab.models.config import ModelConfig
from srmlab.models.decoding import DecodingCache
from srmlab.models.loss import chunked_cross_entropy, cross_entropy
from srmlab.models.sites import SILENT, Instrumented, Tap, uncompiled

Config = TypeVar("Config", bound=ModelConfig)


@dataclass(frozen=True)
class Flops:
    """Floating-point operations per token (a multiply-add is two), averaged over a context of causal
    attention.
    """

    forward: int
    training: int  # forward, and backward through what is differentiated


class LanguageModel(Instrumented, Generic[Config]):
    config: Config

    def hidden(
        self,
        tokens: Tensor,
        *,
        cache: DecodingCache | None = None,
        documents: Tensor | None = None,
        tap: Tap | None = None,
    ) -> Tensor:
        """The embedding [B, T, E] that the unembedding turns into logits."""
        raise NotImplementedError

    @property
    def unembedding(self) -> Tensor:
        """The matrix [V, E] behind the logits."""
        raise NotImplementedError

    @property
    def attention_calls(self) -> int:
        """How often a forward pass attends over tokens: the slots of a decoding cache."""
        raise NotImplementedError

    def flops_per_token(self, context: int) -> Flops:
        raise NotImplementedError

    def initialize(self) -> None:
        """Fill weights and buffers from the config's seed (after `to_empty`, for a model built on the meta
        device).
        """
        raise NotImplementedError

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        *,
        cache: DecodingCache | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Logits [B, T, V], or with `targets` [B, T] their mean cross-entropy (−100 does not count).

        `documents` [B, T] gives each token's document; attention then stays inside documents.
        """
        if torch.compiler.is_compiling() and self.listening:
            return uncompiled(self.forward, tokens, targets, cache=cache, documents=documents)
        self.check_tokens(tokens, cache, documents, targets)
        tap = self.tap()
        hidden = self.hidden(tokens, cache=cache, documents=documents, tap=tap)
        if targets is None:
            return tap("logits", hidden @ self.unembedding.T)
        if tap.wants("logits"):
            return cross_entropy(tap("logits", hidden @ self.unembedding.T), targets)
        return chunked_cross_entropy(hidden, self.unembedding, targets)

    def next_token_logits(self, tokens: Tensor, cache: DecodingCache | None = None) -> Tensor:
        """The logits [B, V] after the last token only."""
        self.check_tokens(tokens, cache)
        tap = self.tap()
        if tap is not SILENT:  # a listener at "logits" expects every position
            return self(tokens, cache=cache)[:, -1]
        return self.hidden(tokens, cache=cache, tap=tap)[:, -1] @ self.unembedding.T

    def new_cache(self, capacity: int | None = None) -> DecodingCache:
        """An empty cache for decoding, by default as long as the context."""
        context = self.config.context
        if capacity is not None and not 1 <= capacity <= context:
            raise UserError(f"capacity = {capacity}: must be between 1 and the context of {context}")
        return DecodingCache(self.attention_calls, context if capacity is None else capacity)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """eval() and no gradient, and afterwards as it was."""
        was = self.training
        self.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.train(was)

    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def device(self) -> torch.device:
        return self.unembedding.device

    def check_tokens(
        self,
        tokens: Tensor,
        cache: DecodingCache | None = None,
        documents: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> None:
        """Shapes only: nothing here reads a value, so nothing waits for a GPU or breaks a graph."""
        if not isinstance(tokens, Tensor):
            raise UserError(f"tokens are a tensor [batch, token] of ids, not {type(tokens).__name__}")
        if tokens.ndim != 2 or tokens.numel() == 0:
            raise UserError(
                f"tokens of shape {tuple(tokens.shape)}: need [batch, token] with at least one token"
            )
        for name, like in (("targets", targets), ("documents", documents)):
            if like is not None and like.shape != tokens.shape:
                raise UserError(
                    f"{name} of shape {tuple(like.shape)}: need the shape of tokens, {tuple(tokens.shape)}"
                )
        if cache is not None:
            if documents is not None:
                raise UserError("documents and cache do not go together; decode one document at a time")
            cache.room_for(tokens.shape[1])
        elif tokens.shape[1] > self.config.context:
            raise UserError(
                f"{tokens.shape[1]} tokens exceed the context of {self.config.context}; cut the input"
            )


def expect_recompiles(limit: int = 64) -> None:
    """Let one function be compiled often enough: with and without gradient, for the first layer, for every
    batch shape and for every model of the process. Past torch's own limit of 8 it would run uncompiled.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, limit)


def document_mask(documents: Tensor) -> Tensor:
    """[B, T] document ids → [B, 1, T, T], True where a token may look: earlier, and in the same document."""
    same = documents[:, :, None] == documents[:, None, :]
    return same.tril()[:, None]
