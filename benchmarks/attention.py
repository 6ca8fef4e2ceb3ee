"""The arithmetic written by hand against torch's own, on this machine: each part alone, and a training step;
and the step's matmuls alone, which are what is left when all else is free.

One thread, both versions in turns in one process, and the time of the processor rather than of the
clock: what is compared is the arithmetic, whatever else the machine does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from timing import Row, compare, take_turns
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import srmlab
from srmlab.models import Pass, SRMConfig
from srmlab.models.attention import Rotary, causal_attention
from srmlab.models.connection import StreamAttention
from srmlab.models.kernels import torchs_own
from srmlab.models.streams import RMSNorm
from srmlab.training.memory import keep_buffers

SIZES = {"srm-nano": (4, 256), "srm-base": (1, 512), "srm-med": (1, 512)}  # batch, tokens
STEPS = {"srm-nano": (4, 256), "hrm-nano": (4, 256), "gpt2-nano": (4, 256)}


def run(
    rounds: int, sizes: dict[str, tuple[int, int]] = SIZES, steps: dict[str, tuple[int, int]] = STEPS
) -> Iterator[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    keep_buffers()
    try:
        for name, (batch, length) in sizes.items():
            config = srmlab.preset(name)
            assert isinstance(config, SRMConfig)
            for part, call, inputs in parts(config, batch, length):
                yield in_turns(f"{part}, {name}", differentiated(call, inputs), 10 * rounds)
        for name, (batch, length) in steps.items():
            step = training_step(name, batch, length)
            yield in_turns(f"training step, {name}", step, 4 * rounds)
            yield in_turns(f"training step, {name}", step, 4 * rounds, ("its matmuls", matmuls(step)))
    finally:
        torch.set_num_threads(threads)


def in_turns(
    name: str, call: Callable[[], None], rounds: int, other: tuple[str, Callable[[], None]] | None = None
) -> Row:
    def with_torch() -> None:
        with torchs_own():
            call()

    label, candidate = other or ("by hand", call)
    seconds = take_turns({"torch's own": with_torch, label: candidate}, rounds, 2, time.process_time)
    return compare(
        f"{name}, torch's own ÷ {label}", seconds, "torch's own", label, note="processor time, one thread"
    )


def parts(
    c: SRMConfig, batch: int, length: int
) -> Iterator[tuple[str, Callable[[Tensor], Tensor], tuple[int, ...]]]:
    """A part's name, the part without its matrices, and the shape of what it is given."""
    here = Pass()
    here.rotary = Rotary(c.head_dim, length, c.rope_theta)(0, length, torch.zeros(1))
    tokens = (c.streams * batch, length, 3 * c.token_heads * c.head_dim)
    yield "attention over tokens", lambda qkv: causal_attention(qkv, c.token_heads, here), tokens
    connection = StreamAttention(c)
    connection.add_module("qkv", nn.Identity())
    connection.add_module("out", nn.Identity())
    streams = (c.streams, batch, length, 3 * c.stream_heads * c.head_dim)
    yield "attention over streams", lambda qkv: connection(qkv, Pass()), streams
    yield "norm", RMSNorm(c.norm_eps), (c.streams, batch, length, c.stream_dim)


def differentiated(call: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Callable[[], None]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).requires_grad_()
    with torch.no_grad():
        weight = torch.randn(call(x).shape, generator=generator)

    def run() -> None:
        x.grad = None
        call(x).backward(weight)

    return run


def training_step(name: str, batch: int, length: int) -> Callable[[], None]:
    model = srmlab.build(srmlab.preset(name))
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, (batch, length + 1), generator=generator)

    def run() -> None:
        model.zero_grad(set_to_none=True)
        model(tokens[:, :-1], tokens[:, 1:]).backward()

    return run


class Recorder(TorchDispatchMode):
    """Keeps every matmul of what runs inside, with other numbers in tensors of the same strides."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], Tensor]] = []
        self.stand_ins: dict[tuple[object, ...], Tensor] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.baddbmm):
            inputs = [self.stand_in(i, x) for i, x in enumerate(args)]
            self.calls.append(lambda: func.overloadpacket(*inputs))
        return result

    def stand_in(self, i: int, x: Tensor) -> Tensor:
        key = i, x.shape, x.stride()
        if key not in self.stand_ins:
            self.stand_ins[key] = torch.empty_strided(x.shape, x.stride()).normal_()
        return self.stand_ins[key]


def matmuls(call: Callable[[], None]) -> Callable[[], None]:
    """The matmuls of a call, one after the other, and nothing else."""
    with Recorder() as recorder:
        call()

    def run() -> None:
        for matmul in recorder.calls:
            matmul()

    return torch.no_grad()(run)
