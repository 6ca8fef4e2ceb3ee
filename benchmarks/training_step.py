"""A training step (forward and backward, fp32): SRM against Hugging Face's GPT-2, and against the
pseudocode's loop.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from paper_loop import PaperLoop
from timing import Row, compare, gemm_peak, take_turns
from torch import nn

import srm
from srm.models import SRM

ASKED = {"srm-base": "≤ 4.0", "srm-med": "≤ 5.0"}


def run(
    rounds: int, context: int = 512, batch: int = 1, presets: tuple[str, ...] = ("srm-base", "srm-med")
) -> Iterator[Row]:
    from transformers import GPT2Config, GPT2LMHeadModel

    tokens = torch.randint(50257, (batch, context + 1), generator=torch.Generator().manual_seed(0))
    inputs, targets = tokens[:, :-1], tokens[:, 1:].contiguous()
    theirs = GPT2LMHeadModel(GPT2Config())  # in training mode, with its default dropout and attention
    labels = inputs.clone()
    their_flops = srm.build(srm.preset("gpt2"), device="meta").flops_per_token(context).training

    def step(model: nn.Module, **kwargs) -> None:
        model.zero_grad(set_to_none=True)
        out = model(**kwargs)
        (out if isinstance(out, torch.Tensor) else out.loss).backward()

    peak = gemm_peak()
    for name in presets:
        model = srm.build(srm.preset(name))
        assert isinstance(model, SRM)
        flops = model.flops_per_token(context).training
        model.compile()
        candidates = {
            "gpt2": lambda: step(theirs, input_ids=inputs, labels=labels),
            name: lambda model=model: step(model, tokens=inputs, targets=targets),
        }
        if name == "srm-base":
            loop = PaperLoop.like(model)
            candidates["pseudocode"] = lambda loop=loop: step(loop, tokens=inputs, targets=targets)
        seconds = take_turns(candidates, rounds)
        tokens_per_step = batch * context
        limits = (flops * tokens_per_step / peak, their_flops * tokens_per_step / peak)
        yield compare(
            f"training step, {name} ÷ Hugging Face GPT-2",
            seconds,
            name,
            "gpt2",
            asked=ASKED[name],
            limit=flops / their_flops,
            limit_seconds=limits,
            note=f"batch {batch} × {context}, GEMM peak {peak / 1e9:.0f} GFLOP/s",
        )
        if "pseudocode" in seconds:
            yield compare(f"training step, pseudocode ÷ {name}", seconds, "pseudocode", name, asked="≥ 2.2")
