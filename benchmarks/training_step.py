"""A training step (forward and backward, fp32): SRM against Hugging Face's GPT-2, and against the
pseudocode's loop. Each trains in a process of its own, as it would in earnest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import torch
from paper_loop import PaperLoop
from timing import Row, compare, gemm_peak, in_its_own_process, take_turns
from torch import Tensor, nn

import srmlab
from srmlab.models import SRM

ASKED = {"srm-base": "≤ 4.0", "srm-med": "≤ 5.0"}
WARM_UP = 3  # rounds: compiling, and a heap that has grown to its size


def run(
    rounds: int, context: int = 512, batch: int = 1, presets: tuple[str, ...] = ("srm-base", "srm-med")
) -> Iterator[Row]:
    size = batch, context
    peak = gemm_peak()
    tokens = batch * context
    theirs = flops("gpt2", context)
    for name in presets:
        builders = {"gpt2": (hugging_face_step,), name: (srm_step, name)}
        if name == "srm-base":
            builders["pseudocode"] = (pseudocode_step, name)
        with ExitStack() as processes:
            candidates = {
                label: processes.enter_context(in_its_own_process(build, size, *args))
                for label, (build, *args) in builders.items()
            }
            seconds = take_turns(candidates, rounds, WARM_UP)
        ours = flops(name, context)
        yield compare(
            f"training step, {name} ÷ Hugging Face GPT-2",
            seconds,
            name,
            "gpt2",
            asked=ASKED[name],
            limit=ours / theirs,
            limit_seconds=(ours * tokens / peak, theirs * tokens / peak),
            note=f"batch {batch} × {context}, GEMM peak {peak / 1e9:.0f} GFLOP/s",
        )
        if "pseudocode" in seconds:
            yield compare(f"training step, pseudocode ÷ {name}", seconds, "pseudocode", name, asked="≥ 2.2")


def flops(name: str, context: int) -> int:
    return srmlab.build(srmlab.preset(name), device="meta").flops_per_token(context).training


def hugging_face_step(size: tuple[int, int]) -> Callable[[], None]:
    """In training mode, with its default dropout and attention."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config())
    model.loss_type = "ForCausalLM"  # its default, which it would warn of taking
    inputs, _ = some_text(size)
    return step_of(model, lambda: model(input_ids=inputs, labels=inputs).loss)


def srm_step(size: tuple[int, int], name: str) -> Callable[[], None]:
    model = srmlab.build(srmlab.preset(name))
    model.compile()
    inputs, targets = some_text(size)
    return step_of(model, lambda: model(inputs, targets))


def pseudocode_step(size: tuple[int, int], name: str) -> Callable[[], None]:
    model = srmlab.build(srmlab.preset(name))
    assert isinstance(model, SRM)
    loop = PaperLoop.like(model)
    inputs, targets = some_text(size)
    return step_of(loop, lambda: loop(inputs, targets))


def step_of(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad(set_to_none=True)
        loss().backward()

    return step


def some_text(size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    batch, context = size
    tokens = torch.randint(50257, (batch, context + 1), generator=torch.Generator().manual_seed(0))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
