"""The family: SRM next to the other recursive models, under the same conditions.

All have the parameters of SRM-med (what is left goes into the MLPs) and see the same tokens; each searches
its own best rate. Their arithmetic differs, and is shown beside every loss; a transformer with SRM's FLOP
stands among them. After training each is measured at other depths and with its own ways of spending less.

    >>> [cell.name for cell in cells("mini")][:4]
    ['srm-med', 'transformer', "transformer, SRM's FLOP", 'hrm, x in both']
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from srmlab.experiments import miniatures
from srmlab.experiments.evidence import MARGIN, Claim, below
from srmlab.experiments.experiment import Cell, Experiment, Scale
from srmlab.experiments.miniatures import Small, count, sized
from srmlab.experiments.results import SweepResult
from srmlab.models import HuginnConfig, HyperConfig, ModelConfig, MoRConfig, OuroConfig, preset
from srmlab.training.recipes import recipe

SRM = "srm-med"
FLOP = "transformer, SRM's FLOP"
AT_PAPER = ("srm-med", "transformer", "hrm", "trm", "hrm-single", "sr2", "ouro", "hyper", "mor", "huginn")


def miniature(scale: Small) -> dict[str, ModelConfig]:
    """Models of one size, by name."""
    srm = miniatures.srm_med(scale)
    dim = miniatures.DIM[scale]
    sizes: dict[str, Any] = {
        **miniatures.TEXT[scale], "dim": dim, "heads": dim // 16, "head_dim": 16, "mlp_dim": 8, "tied": True,
    }  # fmt: skip
    hrm, trm = miniatures.hrm(scale), miniatures.trm(scale)
    single = miniatures.single_hrm(scale)
    known: dict[str, ModelConfig] = {
        SRM: srm,
        "transformer": miniatures.transformer(scale),
        FLOP: miniatures.large_transformer(scale),
        "hrm, x in both": hrm.replace(x_enters="both"),
        "trm, x in both": trm.replace(x_enters="both"),
        "hrm without H": single,
    }
    models: dict[str, ModelConfig] = {
        "sr2": single.replace(low_blocks=1, low_cycles=1, high_cycles=8, gradient="all"),
        "ouro": OuroConfig(**sizes, blocks=3, loops=4),
        # with its own β the gate soon stops after the first loop, and the others learn little
        "ouro, β = 1": OuroConfig(**sizes, blocks=3, loops=4, beta=1.0, beta_end=1.0),
        "hyper-connections": HyperConfig(**sizes, blocks=4),
        "hyper-connections, looped": HyperConfig(**sizes, blocks=2, loops=6),
        "mor, expert-choice": MoRConfig(**sizes, kv_heads=0, core=2, recursions=6),
        "mor, token-choice": MoRConfig(**sizes, kv_heads=0, core=2, recursions=6, choice="token"),
        "huginn": HuginnConfig(**sizes, prelude=1, core=2, coda=1, steps=16, gradient_depth=8),
    }
    return known | {name: sized(model, count(srm)) for name, model in models.items()}


def cells(scale: Scale) -> list[Cell]:
    if scale == "paper":
        return [  # windows of the paper's length, so that all see the same tokens
            Cell(name=name, model=preset(name), training=recipe(name).replace(context=1024))
            for name in AT_PAPER
        ]
    training = miniatures.training(scale)
    found = [
        Cell(name=name, model=model, training=training, tuned=True)
        for name, model in miniature(scale).items()
    ]
    drawn = training.replace(depth_schedule="poisson")
    return [replace(cell, training=drawn) if cell.name == "huginn" else cell for cell in found]


def judge(result: SweepResult) -> list[Claim | str]:
    """SRM against each of the others, at equal parameters and tokens; FLOP are in every line."""
    planned = AT_PAPER if result.scale == "paper" else miniature(result.scale)
    others = [name for name in planned if name != SRM]
    lines: list[Claim | str] = [
        result.claim(f"SRM is better than {other}", below, SRM, other, of=len(others)) for other in others
    ]
    lines.append(result.ranking())
    lines += [line for cell in result.cells if (line := result.depth_line(cell.name))]
    return lines + [line for cell in result.cells if (line := cheapest(result, cell.name))]


def cheapest(result: SweepResult, name: str) -> str:
    """How much of a forward pass the model's own rule saves at a loss within the margin of the full pass."""
    runs = [run.exits for run in result[name].runs if run.exits]
    if not runs:
        return ""
    saved: dict[str, list[float]] = {}
    for exits in runs:
        full = next(one for one in exits if one["rule"] == "full")
        for rule in dict.fromkeys(one["rule"] for one in exits):
            within = [e["flops"] for e in exits if e["rule"] == rule and e["loss"] <= full["loss"] + MARGIN]
            saved.setdefault(rule, []).append(1 - min([*within, full["flops"]]) / full["flops"])
    del saved["full"]
    if not saved:
        return ""
    said = ", ".join(f"{rule} {span(share)}" for rule, share in saved.items())
    return f"{name}: FLOP saved within {MARGIN:g} nats of its full pass, from seed to seed: {said}."


def span(shares: list[float]) -> str:
    """
    >>> span([0.239, 0.49, 0.3]), span([0.72, 0.72])
    ('24 to 49 %', '72 %')
    """
    low, high = f"{100 * min(shares):.0f}", f"{100 * max(shares):.0f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


FAMILY = Experiment(
    name="family",
    question="How does SRM compare with other models that reuse their weights, and at what cost?",
    cells=cells,
    verdict=judge,
    measures=("depths", "exits"),
)
