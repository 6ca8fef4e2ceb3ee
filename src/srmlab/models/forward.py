"""One forward pass, seen from one place in the model.

A model's code asks the pass for all that is not a state or a weight, so that `forward` takes what the
paper's formulas take and one more argument:

    here("out", h)                       hand over a named value; what comes back is used from here on
    here.streams("out", z)               the same for a value [S, B, T, D] with the streams first
    here.wants("pattern")                whether a value that costs extra has to be computed
    here.call("steps.1", step, z, y)     call a part, whose names start with "steps.1"
    here.rotary, here.mask, here.past()  what attention over tokens needs
"""

from __future__ import annotations

from collections.abc import Iterator
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
        exit: Exit | None = None,
        config: Any = None,
    ) -> None:
        self.tap = tap
        self.cache, self.exit = cache, exit
        self.config = config  # of another depth than the model's, if the pass has one
        self.start = 0 if cache is None else cache.length  # the position of the first token
        self.rotary: tuple[Tensor, Tensor] | None = None  # cos and sin of the tokens' positions
        self.mask = None if documents is None else document_mask(documents)
        self.slots: Iterator[Past] | None = None if cache is None else cache.calls()

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return self.tap(name, value)

    def streams(self, name: str, value: Tensor) -> Tensor:
        return self.tap.streams(name, value)

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
        inside = Pass(self.tap.at(part))
        inside.start, inside.rotary, inside.mask, inside.slots = (
            self.start, self.rotary, self.mask, self.slots,
        )  # fmt: skip
        return inside

    def call(self, part: str, module: nn.Module, *inputs: Any) -> Any:
        """Call a module at a part of the model.

        Uncompiled when somebody listens, so that hooks added after compiling take effect, and when tokens
        are cached: a cache that grows would be compiled anew for every token.
        """
        compiled = self.silent and self.slots is None
        return (module if compiled else module._call_impl)(*inputs, self.at(part))

    def fold_streams(self, streams: int) -> None:
        """The streams are folded into the batch: the mask [B, 1, T, T] is the same for all of them."""
        if self.mask is not None:
            self.mask = self.mask.repeat(streams, 1, 1, 1)


def document_mask(documents: Tensor) -> Tensor:
    """[B, T] document ids → [B, 1, T, T], True where a token may look: earlier, and in the same document."""
    same = documents[:, :, None] == documents[:, None, :]
    return same.tril()[:, None]


def gradient(on: bool) -> torch.set_grad_enabled:
    """Gradient inside this block only if `on`, and if there is any outside."""
    return torch.set_grad_enabled(on and torch.is_grad_enabled())
