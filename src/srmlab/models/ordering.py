"""The order in which a layer calls its step functions: a word such as "ABCABC", or random draws.

    >>> StepOrder.parse("ABCCBA", step_functions=3).calls
    (0, 1, 2, 2, 1, 0)
    >>> StepOrder.parse("random:6", step_functions=3).length
    6

A random order is drawn for every layer call. In training the draws come from the model's
`order_generator`, whose state belongs to the training state; in evaluation from a generator with the
config's seed, so that a model in `eval()` is a function of its input.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

LayerOrder = tuple[int, ...]  # the step functions one layer calls, as indices


@dataclass(frozen=True)
class StepOrder:
    length: int  # steps per layer
    step_functions: int
    calls: LayerOrder | None  # None: random

    @classmethod
    def parse(cls, order: str, step_functions: int) -> StepOrder:
        if step_functions > len(LETTERS):
            raise ValueError(
                f"step_functions = {step_functions}: at most {len(LETTERS)}, one for each letter"
            )
        last = LETTERS[step_functions - 1]
        if order.startswith("random:"):
            count = order.removeprefix("random:")
            if not count.isdecimal() or int(count) < 1:
                raise ValueError(f"order = {order!r}: write random:K with K steps a layer, such as random:6")
            return cls(int(count), step_functions, None)
        if not order or any(letter not in LETTERS for letter in order):
            raise ValueError(f"order = {order!r}: write capital letters such as ABC, or random:6")
        for letter in order:
            if letter > last:
                needed = LETTERS.index(max(order)) + 1
                raise ValueError(
                    f"order = {order!r}: there is no step function {letter}; "
                    f"use letters A to {last}, or set step_functions = {needed}"
                )
        for letter in LETTERS[:step_functions]:
            if letter not in order:
                used = sorted(set(order))
                renamed = "".join(LETTERS[used.index(called)] for called in order)
                raise ValueError(
                    f"order = {order!r}: step function {letter} is never called; "
                    f"add it to the order, or set step_functions = {len(used)} and order = {renamed!r}"
                )
        return cls(len(order), step_functions, tuple(LETTERS.index(letter) for letter in order))

    @property
    def random(self) -> bool:
        return self.calls is None

    def draw(self, layers: int, source: torch.Generator | int) -> tuple[LayerOrder, ...]:
        """One order for each of `layers` layers, from a generator or a seed; a fixed order needs neither."""
        if self.calls is not None:
            return (self.calls,) * layers
        generator = torch.Generator("cpu").manual_seed(source) if isinstance(source, int) else source
        drawn = torch.randint(
            self.step_functions, (layers, self.length), generator=generator, device=generator.device
        )
        return tuple(tuple(layer) for layer in drawn.tolist())
