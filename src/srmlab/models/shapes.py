"""A faster meta device: every operation is run once, and then the shape of its result is remembered.

A pass on the meta device computes nothing, but torch works out most shapes in Python, a third of a
millisecond each, and imports its compiler for it, which takes as long as importing torch. A recursion
repeats a few operations on the same shapes, so they are remembered here; and small operations are run on
zeros, which is faster than inferring their shapes.

    >>> with without_data():
    ...     print((torch.zeros(2, 3) @ torch.zeros(3, 4)).shape)
    torch.Size([2, 4])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

SMALL = 1 << 23  # elements
PLAIN = frozenset({int, float, bool, str, type(None), torch.Size, torch.dtype})
OPERATORS = frozenset({"__and__", "__invert__", "__or__", "__rpow__", "__rsub__", "__rtruediv__"})

Shape = tuple[torch.Size, tuple[int, ...], torch.dtype]


@contextmanager
def without_data() -> Iterator[None]:
    """While open, new tensors are on the meta device, and nothing is drawn at random."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"), Shapes():
        yield


class Shapes(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.known: dict[Any, Shape | None] = {}  # by operation and operands; None: the result is no tensor

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            tensor = args[0] if args else kwargs["tensor"]
            return tensor if tensor.is_meta else func(*args, **kwargs)  # nothing is there to be filled
        if func.__name__.endswith("_") and func.__name__ not in OPERATORS:  # in place, or an attribute
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            operands: list[Tensor] = []
            described = _describe((*args, *kwargs.items()), operands)
            if described is not None and operands:
                key = func, described
                if key not in self.known:
                    self.known[key] = _shape(func, args, kwargs, sum(x.numel() for x in operands))
                if (shape := self.known[key]) is not None:
                    return torch.empty_strided(shape[0], shape[1], dtype=shape[2], device="meta")
        return func(*args, **kwargs)


def _describe(values: Iterable[Any], operands: list[Tensor]) -> tuple | None:
    """All that the shape of a result depends on, and the tensors among it; None if it may be more than that,
    or some of them have data.
    """
    described: list[Any] = []
    for x in values:
        if type(x) in (Tensor, nn.Parameter) and x.is_meta:
            operands.append(x)
            described.append((x.shape, x.stride(), x.dtype))
        elif type(x) in PLAIN:
            described.append((type(x), x))
        elif type(x) in (tuple, list) and (inside := _describe(x, operands)) is not None:
            described.append(inside)
        else:
            return None
    return tuple(described)


def _shape(func: Callable, args: tuple, kwargs: dict[str, Any], elements: int) -> Shape | None:
    if elements <= SMALL:
        args, kwargs = _zeros(args), {name: _zeros(value) for name, value in kwargs.items()}
    try:
        found = func(*args, **kwargs)
    except RuntimeError:  # to be raised, if at all, by the operation itself
        return None
    return (found.shape, found.stride(), found.dtype) if isinstance(found, Tensor) else None


def _zeros(value: Any) -> Any:
    """The same with zeros on the CPU for the tensors without data."""
    if isinstance(value, Tensor):
        last = sum((n - 1) * stride for n, stride in zip(value.shape, value.stride(), strict=True))
        return torch.zeros(max(0, last) + 1, dtype=value.dtype, device="cpu").as_strided(
            value.shape, value.stride()
        )
    return type(value)(map(_zeros, value)) if type(value) in (tuple, list) else value
