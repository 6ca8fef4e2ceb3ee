"""One forward pass, seen from one place in the model.

A model's code asks the pass for all that is not a state or a weight, so that `forward` takes what the
paper's formulas take and one more argument:

    here("out", h)                       hand over a named value; what comes back is used from here on
    here.streams("out", z)               the same for a value [S, B, T, D] with the streams first
    here.wants("pattern")                whether a value that costs extra has to be computed
    here.call("steps.1", step, z, y)     call a part, whose names start with "steps.1"
    here.positions(tokens)               where each token stands in its text, for learned positions
    here.rotary, here.mask, here.past()  what attention over tokens needs

Padding. With a mask of real tokens no token looks at padding, and positions count from the first real token.
Rotary positions may count columns: attention sees only their differences.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from srmlab.models.cache import DecodingCache, Past
from srmlab.models.exit import Exit
from srmlab.models.sites import SILENT, Tap


class Pass:
    def __init__(
        self,
        tap: Tap = SILENT,
        cache: DecodingCache | None = None,
        documents: Tensor | None = None,
        real: Tensor | None = None,
        exit: Exit | None = None,
        config: Any = None,
    ) -> None:
        self.tap = tap
        self.cache, self.exit = cache, exit
        self.config = config  # of another depth than the model's, if the pass has one
        self.start = 0 if cache is None else cache.length  # the column of the first token
        self.real = real  # [B, start + T] False where there is padding; None if there is none
        self.rotary: tuple[Tensor, Tensor] | None = None  # cos and sin of the tokens' positions
        self.mask = None if documents is None else document_mask(documents)
        if real is not None:
            self.mask = padding_mask(real, self.start, self.mask)
        self.slots: Iterator[Past] | None = None if cache is None else cache.calls()
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
        """Whether nobody listens at any site."""
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

    def fold_streams(self, streams: int) -> None:
        """The streams are folded into the batch: the mask [B, 1, T, keys] is the same for all of them."""
        self.folded = streams
        if self.mask is not None:
            self.mask = self.mask.repeat(streams, 1, 1, 1)


def document_mask(documents: Tensor) -> Tensor:
    """[B, T] document ids → [B, 1, T, T], True where a token may look: earlier, and in the same document."""
    same = documents[:, :, None] == documents[:, None, :]
    return same.tril()[:, None]


def padding_mask(real: Tensor, start: int, within: Tensor | None = None) -> Tensor:
    """[B, start + T] real tokens → [B, 1, T, start + T], True where a token may look: at real ones, no later
    than itself (and inside `within`).

    Everyone may look at itself: where there is only padding a softmax over nothing would be NaN.
    """
    columns = torch.arange(real.shape[1], device=real.device)
    back = columns[start:, None] - columns  # [T, start + T]
    seen = (back >= 0) & real[:, None, None]
    return (seen if within is None else seen & within) | (back == 0)


def gradient(on: bool) -> torch.set_grad_enabled:
    """Gradient inside this block only if `on`, and if there is any outside."""
    return torch.set_grad_enabled(on and torch.is_grad_enabled())
