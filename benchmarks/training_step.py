"""A training step (forward and backward, fp32): SRM against Hugging Face's GPT-2, and against the
pseudocode's loop. Each trains in a process of its own, as it would in earnest; ours as `srmlab train` does by
default and, called compiled, with `--compile`.
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

ASKED = {"srm-base": "≤ 3.3", "srm-med": "≤ 3.9"}
WARM_UP = 3  # rounds: compiling, and a heap that has grown to its size


def run(
    rounds: int, context: int = 512, batch: int = 1, presets: tuple[str, ...] = ("srm-base", "srm-med")
) -> Iterator[Row]:
    size = batch, context
    peak = gemm_peak()
    tokens = batch * context
    theirs = flops("gpt2", context)
    for name in presets:
        builders = {"gpt2": (hugging_face_step, "gpt2")} | both_ways(name)
        if name == "srm-base":
            builders["pseudocode"] = (pseudocode_step, name)
        seconds = in_turns(builders, size, rounds)
        ours = flops(name, context)
        for way in both_ways(name):
            yield compare(
                f"training step, {way} ÷ Hugging Face GPT-2",
                seconds,
                way,
                "gpt2",
                asked=ASKED[name],
                limit=ours / theirs,
                limit_seconds=(ours * tokens / peak, theirs * tokens / peak),
                note=f"batch {batch} × {context}, GEMM peak {peak / 1e9:.0f} GFLOP/s",
            )
        if "pseudocode" in seconds:
            yield compare(f"training step, pseudocode ÷ {name}", seconds, "pseudocode", name, asked="≥ 1.5")
    yield from small_sizes(rounds, peak)


def small_sizes(rounds: int, peak: float, context: int = 256, batch: int = 4) -> Iterator[Row]:
    """The models that are trained on a CPU, and Hugging Face's GPT-2 at the size of ours."""
    ways = both_ways("srm-nano") | both_ways("gpt2-nano")
    seconds = in_turns(ways | {"Hugging Face": (hugging_face_step, "gpt2-nano")}, (batch, context), rounds)
    tokens, theirs = batch * context, flops("gpt2-nano", context)
    for way, (_, name) in ways.items():
        ours = flops(name, context)
        yield compare(
            f"training step, {way} ÷ Hugging Face GPT-2 of gpt2-nano's size",
            seconds,
            way,
            "Hugging Face",
            limit=ours / theirs,
            limit_seconds=(ours * tokens / peak, theirs * tokens / peak),
            note=f"batch {batch} × {context}",
        )


Build = Callable[[tuple[int, int], str], Callable[[], None]]


def both_ways(name: str) -> dict[str, tuple[Build, str]]:
    return {name: (srm_step, name), f"{name}, compiled": (compiled_step, name)}


def in_turns(
    builders: dict[str, tuple[Build, str]], size: tuple[int, int], rounds: int
) -> dict[str, list[float]]:
    with ExitStack() as processes:
        candidates = {
            label: processes.enter_context(in_its_own_process(build, size, name))
            for label, (build, name) in builders.items()
        }
        return take_turns(candidates, rounds, WARM_UP)


def flops(name: str, context: int) -> int:
    return srmlab.models.outline(srmlab.preset(name)).flops_per_token(context).training


def hugging_face_step(size: tuple[int, int], name: str) -> Callable[[], None]:
    """In training mode, with its default dropout and attention, at the size of a preset."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = srmlab.preset(name)
    assert isinstance(config, srmlab.models.GPT2Config)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config.vocab_size,
            n_positions=config.context,
            n_embd=config.dim,
            n_layer=config.blocks,
            n_head=config.heads,
            n_inner=config.mlp_dim,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    model.loss_type = "ForCausalLM"  # its default, which it would warn of taking
    inputs, _ = some_text(size, config.vocab_size)
    return step_of(model, lambda: model(input_ids=inputs, labels=inputs).loss)


def srm_step(size: tuple[int, int], name: str, *, compiled: bool = False) -> Callable[[], None]:
    model = srmlab.build(srmlab.preset(name))
    if compiled:
        model.compile()
    inputs, targets = some_text(size, model.config.vocab_size)
    return step_of(model, lambda: model(inputs, targets))


def compiled_step(size: tuple[int, int], name: str) -> Callable[[], None]:
    return srm_step(size, name, compiled=True)


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


def some_text(size: tuple[int, int], vocab_size: int = 50257) -> tuple[Tensor, Tensor]:
    batch, context = size
    tokens = torch.randint(vocab_size, (batch, context + 1), generator=torch.Generator().manual_seed(0))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
