"""What looking inside costs: analyses against a plain forward pass over the same tokens, and their memory.

The memory of a process is measured from outside, in one that does nothing else:

    python benchmarks/analyses.py srm-nano 8192        prints its peak in MB
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator

import torch
from timing import Row, compare, take_turns
from torch import Tensor

import srmlab
from srmlab import analysis
from srmlab.analysis.alignment import AlignmentSums
from srmlab.analysis.drift import Contributions, DriftSums
from srmlab.analysis.routing import RoutingSums
from srmlab.models import SRM

CONTEXT, BATCH = 256, 4


def run(rounds: int, tokens: int = 8192, base_tokens: int = 1024) -> Iterator[Row]:
    for name, count in (("srm-nano", tokens), ("srm-base", base_tokens)):
        yield from cost(name, count, rounds)
        yield memory(name, 8 * count, count)


def cost(name: str, tokens: int, rounds: int) -> Iterator[Row]:
    model, batches = subject(name, tokens)
    S = model.config.streams
    states = [torch.randn(S, *batch.shape, model.config.stream_dim) for batch in batches]

    @torch.inference_mode()
    def forward() -> None:
        for batch in batches:
            model(batch)

    @torch.inference_mode()
    def output_function() -> None:
        for z in states:
            model.output_function(z) @ model.unembedding.T

    seconds = take_turns(
        {
            "forward": forward,
            "first pass": lambda: first_pass(model, batches),
            "ablation": lambda: analysis.ablation(model, batches),
            "output function": output_function,
        },
        rounds,
    )
    both = zip(seconds["forward"], seconds["output function"], strict=True)
    seconds["allowed"] = [one + 1.2 * S * other for one, other in both]
    note = f"{tokens:,} tokens, batches of {BATCH} × {CONTEXT}"
    yield compare(
        f"routing, alignments and drift ÷ forward, {name}",
        seconds,
        "first pass",
        "forward",
        asked="≤ 1.6",
        note=note,
    )
    yield compare(
        f"ablation of {S} streams ÷ (forward + 1.2 × {S} output functions), {name}",
        seconds,
        "ablation",
        "allowed",
        asked="≤ 1",
        note=note,
    )


def memory(name: str, many: int, few: int) -> Row:
    peaks = []
    for tokens in (many, few):
        command = [sys.executable, __file__, name, str(tokens)]
        peaks.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return Row(
        f"peak memory of these analyses, {many:,} ÷ {few:,} tokens, {name}",
        f"{many:,} tokens",
        f"{few:,} tokens",
        (peaks[0], peaks[1]),
        peaks[0] / peaks[1],
        asked="≤ 1.05",
        unit="MB",
        note="each in a process of its own, all of it counted",
    )


def subject(name: str, tokens: int) -> tuple[SRM, list[Tensor]]:
    """An untrained model, and text for it: whole batches, the last one as long as it comes out."""
    model = srmlab.build(srmlab.preset(name)).eval()
    assert isinstance(model, SRM)
    generator = torch.Generator().manual_seed(0)
    windows = torch.randint(
        model.config.vocab_size, (max(1, tokens // CONTEXT), CONTEXT), generator=generator
    )
    return model, list(windows.split(BATCH))


def first_pass(model: SRM, batches: list[Tensor]) -> None:
    sums = RoutingSums(model), AlignmentSums(model), DriftSums(Contributions(model))
    analysis.capture(model, batches, *sums)


if __name__ == "__main__":
    model, batches = subject(sys.argv[1], int(sys.argv[2]))
    first_pass(model, batches)
    analysis.ablation(model, batches)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
