"""The arithmetic written by hand against torch's own, on this machine: each part alone, and a training step.

One thread, both versions in turns in one process, and the time of the processor rather than of the
clock: what is compared is the arithmetic, whatever else the machine does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from timing import Row, compare, take_turns
from torch import Tensor, nn

import srmlab
from srmlab.models import SRMConfig
from srmlab.models.attention import Rotary, causal_attention
from srmlab.models.connection import Connection
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
            yield in_turns(f"training step, {name}", training_step(name, batch, length), 4 * rounds)
    finally:
        torch.set_num_threads(threads)


def in_turns(name: str, call: Callable[[], None], rounds: int) -> Row:
    def with_torch() -> None:
        with torchs_own():
            call()

    seconds = take_turns({"torch's own": with_torch, "by hand": call}, rounds, 2, time.process_time)
    return compare(
        f"{name}, torch's own ÷ by hand", seconds, "torch's own", "by hand", note="processor time, one thread"
    )


def parts(
    c: SRMConfig, batch: int, length: int
) -> Iterator[tuple[str, Callable[[Tensor], Tensor], tuple[int, ...]]]:
    """A part's name, the part without its matrices, and the shape of what it is given."""
    turn = Rotary(c.head_dim, length, c.rope_theta)(0, length, torch.zeros(1))
    tokens = (c.streams * batch, length, 3 * c.token_heads * c.head_dim)
    yield "attention over tokens", lambda qkv: causal_attention(qkv, c.token_heads, turn), tokens
    connection = Connection(c.streams, c.stream_dim, c.stream_heads, c.head_dim)
    connection.add_module("qkv", nn.Identity())
    connection.add_module("out", nn.Identity())
    yield "attention over streams", connection, (c.streams, batch, length, 3 * c.stream_heads * c.head_dim)
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
