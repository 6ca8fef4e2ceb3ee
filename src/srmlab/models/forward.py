"""One forward pass, seen from one place in the model.

A model's code asks the pass for everything that is not a state or a weight, so that `forward` takes what the
paper's formulas take plus one argument:

    here("out", h)                       pass a named value through a site; use what it returns from here on
    here.streams("out", z)               the same for a value [S, B, T, D] with the streams first
    here.wants("pattern")                whether a value that costs extra has to be computed
    here.call("steps.1", step, z, y)     call a part, whose names start with "steps.1"
    here.positions(tokens)               each token's position in its text, for learned positions
    here.rotary, here.mask, here.past()  what attention over tokens needs
    here.embed(table, tokens)            the embeddings of the input, whatever is put before the tokens
    with here.gradient(t >= first):      a level that is trained with gradient, or without

A puzzle model also finds its initial state in `here.state` and leaves its last one there.

Padding. With an attention mask no token attends to padding, and positions count from the first real token.
Rotary positions may count columns: attention sees only their differences.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from srmlab.models.cache import DecodingCache, Past
from srmlab.models.exit import Exit
from srmlab.models.sites import SILENT, Tap


class How(TypedDict, total=False):
    """How a forward pass is made, as a caller says it."""

    cache: DecodingCache | None  # what earlier tokens left
    documents: Tensor | None  # [B, T] each token's document: attention stays inside it
    attention_mask: Tensor | None  # [B, T] 0 at padding
    exit: float | Exit | None  # stop where the state has settled
    depth: int | None  # another depth than the config's
    gradient_depth: int | None  # and how much of it has a gradient


class Pass:
    """One forward pass, seen from one place in the model: what `hidden` is given as `here`."""

    def __init__(
        self,
        tap: Tap = SILENT,
        cache: DecodingCache | None = None,
        documents: Tensor | None = None,
        real: Tensor | None = None,
        exit: Exit | None = None,
        causal: bool = True,
    ) -> None:
        self.tap = tap
        self.cache, self.exit = cache, exit
        self.start = 0 if cache is None else cache.length  # the column of the first token
        self.real = real  # [B, start + T] False where there is padding; None if there is none
        self.rotary: tuple[Tensor, Tensor] | None = None  # cos and sin of the tokens' positions
        self.causal = causal  # False: tokens attend to later ones too
        self.before: Tensor | None = None  # [B, N, E] embeddings before those of the tokens
        self.places: Tensor | None = None  # [context, E] embeddings of the positions, if they are learned
        self.state: Tensor | None = None  # [S, B, N + T, D] to begin from; after the pass, its last
        self.fresh: Tensor | None = None  # [B] rows whose puzzle begins with this pass; None: all
        self.mask = None if documents is None else document_mask(documents, causal)
        if real is not None:
            self.mask = padding_mask(real, self.start, self.mask, causal)
        self.slots: Iterator[Past] | None = None if cache is None else cache.calls()
        self.lent: tuple[Tensor, ...] | None = None  # keys and values of an earlier call, to look at instead
        self.folded: int | None = None  # how many streams attention finds in its batch

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return self.tap(name, value)

    def streams(self, name: str, value: Tensor) -> Tensor:
        return self.tap.streams(name, value)

    def heads(self, name: str, value: Tensor) -> Tensor:
        """A value of attention's heads [N, H, T, K], N = streams × batch; shown as [B, T, S, H, K], or
        [B, T, H, K] if streams are not folded into the batch.
        """
        if self.folded is None:
            return self(name, value.transpose(1, 2)).transpose(1, 2)
        shown = value.unflatten(0, (self.folded, -1)).permute(1, 3, 0, 2, 4)
        return self(name, shown).permute(2, 0, 3, 1, 4).flatten(0, 1)

    def pattern(self, name: str, value: Tensor) -> Tensor:
        """How much tokens read of tokens [N, H, T, keys]; shown as [B, S, H, T, keys] or [B, H, T, keys]."""
        if self.folded is None:
            return self(name, value)
        shown = value.unflatten(0, (self.folded, -1)).transpose(0, 1)
        return self(name, shown).transpose(0, 1).flatten(0, 1)

    def wants(self, *names: str) -> bool:
        return self.tap.wants(*names)

    @property
    def silent(self) -> bool:
        """Whether there are no hooks at any site."""
        return self.tap is SILENT

    def past(self) -> Past | None:
        """What this call of attention has cached of earlier tokens; every call has its own, in order."""
        return None if self.slots is None else next(self.slots)

    def at(self, part: str) -> Pass:
        """The same pass inside a part of the model."""
        if self.silent:
            return self
        inside = copy(self)
        inside.tap = self.tap.at(part)
        return inside

    def embed(self, table: nn.Embedding, tokens: Tensor) -> Tensor:
        """[B, N + T, E] The tokens' embeddings, and before them N others, if the pass was given any; those of
        their positions added, if these are learned.
        """
        x = table(tokens)
        if self.before is not None:
            x = torch.cat((self.before.to(x.dtype), x), dim=1)
        return x if self.places is None else x + self.places[: x.shape[1]]

    def positions(self, tokens: Tensor) -> Tensor:
        """Where each of `tokens` [B, T] stands in its text: [T], or [B, T] if rows are padded."""
        T = tokens.shape[1]
        if self.real is None:
            return torch.arange(self.start, self.start + T, device=tokens.device)
        return (self.real.cumsum(-1) - 1).clamp_min(0)[:, -T:]

    def call(self, part: str, module: nn.Module, *inputs: Any) -> Any:
        """Call a module at a part of the model.

        Uncompiled when somebody listens, so that hooks added after compiling take effect, and when tokens
        are cached: a cache that grows would be compiled anew for every token.
        """
        compiled = self.silent and self.slots is None
        return (module if compiled else module._call_impl)(*inputs, self.at(part))

    def gradient(self, on: bool) -> torch.set_grad_enabled:
        """Gradient inside this block only if `on`, or a hook has put in what has one, and if there is any
        outside.
        """
        on = on or _everywhere[0] or self.tap.differentiated
        return torch.set_grad_enabled(on and torch.is_grad_enabled())

    def fold_streams(self, streams: int) -> None:
        """The streams are folded into the batch: the mask [B, 1, T, keys] is the same for all of them."""
        self.folded = streams
        if self.mask is not None:
            self.mask = self.mask.repeat(streams, 1, 1, 1)


def causal_mask(tokens: int, keys: int, device: torch.device) -> Tensor:
    """[tokens, keys], True where a token may look: no later than itself. The last token is the last key."""
    return torch.ones(tokens, keys, dtype=torch.bool, device=device).tril(keys - tokens)


def document_mask(documents: Tensor, causal: bool = True) -> Tensor:
    """[B, T] document ids → [B, 1, T, T], True where a token may look: earlier (unless attention goes in both
    directions), and in the same document.
    """
    same = documents[:, :, None] == documents[:, None, :]
    return (same.tril() if causal else same)[:, None]


def padding_mask(real: Tensor, start: int, within: Tensor | None = None, causal: bool = True) -> Tensor:
    """[B, start + T] real tokens → [B, 1, T, start + T], True where a token may look: at real ones, no later
    than itself (unless attention goes in both directions), and inside `within`.

    Everyone may look at itself: where there is only padding a softmax over nothing would be NaN.
    """
    columns = torch.arange(real.shape[1], device=real.device)
    back = columns[start:, None] - columns  # [T, start + T]
    seen = real[:, None, None]
    if causal:
        seen = (back >= 0) & seen
    return (seen if within is None else seen & within) | (back == 0)


_everywhere = [False]


@contextmanager
def gradient_everywhere() -> Iterator[None]:
    """While open, every level of any model has a gradient, also those that are trained without: for
    attribution and backward hooks.

    >>> import srmlab
    >>> model = srmlab.build(srmlab.preset("hrm-nano"))  # trained through its last calls only
    >>> hook = ("cycles.0.high.out", lambda slope, hook: print(hook.name, tuple(slope.shape)))
    >>> with gradient_everywhere():
    ...     model.run_with_hooks(torch.arange(6)[None], bwd_hooks=[hook], return_type="loss").backward()
    cycles.0.high.out (1, 6, 128)
    """
    was = _everywhere[0]
    _everywhere[0] = True
    try:
        yield
    finally:
        _everywhere[0] = was
