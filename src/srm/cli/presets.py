"""`srm presets`: the models by name."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import srm
from srm.models import PRESETS, SWEEP_PRESETS, GPT2Config, HRMConfig, ModelConfig, SRMConfig

PAPER_PARAMETERS = {  # as the paper prints them
    "srm-base": "68M",
    "srm-med": "134M",
    "srm-large": "454M",
    "hrm": "109M",
    "gpt2": "124M",
    **{f"srm-sweep-parameter-{s}": "85M" for s in (1, 2, 4, 8, 16, 32, 64)},
    **{f"srm-sweep-width-{s}": f"{m}M" for s, m in zip((1, 2, 4, 8, 16, 32, 64), (839, 463, 261, 161, 110, 85, 72), strict=True)},
    **{f"srm-sweep-stream-{s}": f"{m}M" for s, m in zip((1, 2, 4, 8, 16, 32, 64), (53, 54, 56, 60, 68, 85, 119), strict=True)},
}
NOTES = [
    "* 839M is the tied count of that cell, a slip in the paper; the other cells of the table are untied.",
    "The stream set uses D = 128, which fits the paper's counts; its text says 256 (srm.preset('srm-sweep', set='stream', streams=8, stream_dim=256)).",
]


@dataclass
class Command:
    """List the models by name, with their exact parameters and the paper's figure beside.

    Example:
        srm presets
        srm presets --sweep --json
    """

    sweep: bool = False
    """Also list the 21 cells of the paper's stream-size sweep."""
    json: bool = False
    """Print JSON, for a program to read."""

    def run(self) -> None:
        names = [*PRESETS, *(SWEEP_PRESETS if self.sweep else [])]
        rows = [describe(name) for name in names]
        if self.json:
            print(json.dumps(rows, indent=2))
        else:
            _print_table(rows, self.sweep)


def describe(name: str) -> dict[str, Any]:
    """What `srm presets` tells of one model, as plain data."""
    config = srm.preset(name)
    model = srm.build(config, device="meta")
    flops = model.flops_per_token(config.context)
    return {
        "name": name,
        "architecture": config.architecture,
        "shape": shape(config),
        "parameters": model.num_parameters(),
        "paper": PAPER_PARAMETERS.get(name),
        "forward_flops_per_token": flops.forward,
        "training_flops_per_token": flops.training,
        "context": config.context,
        "config": dataclasses.asdict(config),
    }


def shape(config: ModelConfig) -> str:
    """The sizes in one phrase."""
    match config:
        case SRMConfig():
            extra = "".join(
                f" +{count} {kind}-step" for kind, count in (("pre", config.pre_steps), ("post", config.post_steps)) if count
            )
            return (
                f"{config.streams} streams × {config.stream_dim}, MLP {config.mlp_dim}, {config.order}{extra}, "
                f"{config.depth} layers ({config.gradient_depth} in the gradient)"
            )
        case HRMConfig():
            nets = f"one net of {config.low_blocks}" if config.shared_net else f"L {config.low_blocks} + H {config.high_blocks}"
            return f"{nets} blocks × {config.dim}, {config.high_cycles} × {config.low_cycles} cycles"
        case GPT2Config():
            return f"{config.blocks} blocks × {config.dim}"
    raise AssertionError(config)


def _print_table(rows: list[dict[str, Any]], sweep: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("preset", "shape"):
        table.add_column(heading)
    for heading in ("parameters", "paper", "training GFLOP/token"):
        table.add_column(heading, justify="right")
    for row in rows:
        star = "*" if row["name"] == "srm-sweep-width-1" else ""
        gigaflops = f"{row['training_flops_per_token'] / 1e9:.3g}"
        table.add_row(row["name"], row["shape"], f"{row['parameters']:,}", f"{row['paper'] or '–'}{star}", gigaflops)
    console = Console()
    console.print(table)
    if sweep:
        for note in NOTES:
            console.print(note, style="dim", highlight=False)
    else:
        console.print("and 21 cells of the stream-size sweep: srm presets --sweep", style="dim", highlight=False)
