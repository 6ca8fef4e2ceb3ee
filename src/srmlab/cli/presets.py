"""`srmlab presets`: the models by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import srmlab
from srmlab.cli.shared import Answers, aligned
from srmlab.models import PRESETS, SWEEP_PRESETS
from srmlab.models.srm_config import SWEEP_STREAMS

PAPER_PARAMETERS = {  # as the paper prints them, and those of other models theirs
    "srm-base": "68M",
    "srm-med": "134M",
    "srm-large": "454M",
    "hrm": "109M",
    "gpt2": "124M",
    "huginn": "3.5B",
    "hyper": "1.2B",
    "hyper-static": "1.2B",
    "ouro": "1.4B",
    "ouro-2.6b": "2.6B",
    **{f"srm-sweep-parameter-{s}": "85M" for s in SWEEP_STREAMS},
    **{
        f"srm-sweep-width-{s}": f"{millions}M"
        for s, millions in zip(SWEEP_STREAMS, (839, 463, 261, 161, 110, 85, 72), strict=True)
    },
    **{
        f"srm-sweep-stream-{s}": f"{millions}M"
        for s, millions in zip(SWEEP_STREAMS, (53, 54, 56, 60, 68, 85, 119), strict=True)
    },
}
SLIP = "srm-sweep-width-1"  # the one cell of the paper's table that is counted in another way
LEGEND = [
    "S       streams; dim, that of one stream",
    "order   the steps of one layer; +1: a post-step. HRM: blocks of its nets",
    "depth   applied / in the gradient. HRM: high × low cycles; else blocks, loops",
    "GFLOP   training arithmetic per token at the model's context",
]
SWEEP_NOTES = [
    "* 839M is the tied count of that cell, a slip in the paper; the other cells are untied.",
    "The stream set uses dim 128, which fits the paper's counts; its text says 256:",
    "  srmlab.preset('srm-sweep', set='stream', streams=8, stream_dim=256)",
]


@dataclass
class Command(Answers):
    """List the models by name, with exact parameter counts next to the paper's.

    Example:
        srmlab presets
        srmlab presets --sweep --json
    """

    sweep: bool = False
    """Also list the 21 cells of the paper's stream-size sweep."""

    def result(self) -> list[dict[str, Any]]:
        return [describe(name) for name in [*PRESETS, *(SWEEP_PRESETS if self.sweep else [])]]

    def lines(self, result: list[dict[str, Any]]) -> Iterator[str]:
        more = "`srmlab presets --sweep` adds the 21 cells of the stream-size sweep."
        yield table(result)
        yield ""
        yield from LEGEND
        yield from SWEEP_NOTES if self.sweep else [more]


def describe(name: str) -> dict[str, Any]:
    """One row of `srmlab presets`, as plain data."""
    config = srmlab.preset(name)
    model = srmlab.models.outline(config)
    flops = model.flops_per_token(config.context)
    return {
        "name": name,
        "architecture": config.architecture,
        "shape": config.shape,
        "parameters": model.num_parameters(),
        "paper": PAPER_PARAMETERS.get(name),
        "forward_flops_per_token": flops.forward,
        "training_flops_per_token": flops.training,
        "context": config.context,
        "config": dataclasses.asdict(config),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text: 80 columns for the named models, 100 with the sweep."""
    lines: list[tuple[str, ...]] = [
        ("preset", "S", "dim", "MLP", "order", "depth", "parameters", "paper", "GFLOP")
    ]
    for row in rows:
        paper = f"{row['paper'] or '–'}{'*' if row['name'] == SLIP else ''}"
        flops = row["training_flops_per_token"] / 1e9
        gigaflops = f"{flops:.3g}" if flops >= 0.01 else f"{flops:.4f}"
        sizes = srmlab.config_from_dict({"architecture": row["architecture"], **row["config"]}).sizes
        width = sizes.stream_width or sizes.width
        shape = (str(sizes.streams), str(width), str(sizes.mlp), sizes.order, sizes.depth)
        lines.append((row["name"], *shape, f"{row['parameters']:,}", paper, gigaflops))
    return aligned(lines, left=(0, 4))
