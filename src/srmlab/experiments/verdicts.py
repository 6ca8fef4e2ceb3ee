"""What a folder of results decides, on one page: every claim of every table, with its verdict and the number
behind it. `srmlab sweep --results` writes it anew with each table, so it never lags behind them.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from srmlab.experiments.catalogue import EXPERIMENTS
from srmlab.experiments.evidence import Claim
from srmlab.experiments.experiment import Experiment
from srmlab.experiments.results import SweepResult, markdown_table
from srmlab.files import write_file

NAME = "verdicts.md"


def write_verdicts(folder: Path) -> None:
    """FOLDER/verdicts.md, from the tables in FOLDER."""
    write_file(folder / NAME, verdicts(folder))


def verdicts(folder: Path) -> str:
    counts, sections = Counter[str](), []
    for experiment in EXPERIMENTS.values():
        for file in sorted(folder.glob(f"{experiment.name}-*/result.json")):
            result = SweepResult.load(file.parent)
            if result.experiment != experiment.name:  # another one's, whose name begins like this one's
                continue
            claims = [line for line in experiment.verdict(result) if isinstance(line, Claim)]
            counts.update(verdict(claim) for claim in claims)
            sections += section(file.parent.name, experiment, result, claims)
    total = ", ".join(f"{counts[name]} {says}" for name, says in COUNTED.items() if counts[name])
    return "\n".join(["# Verdicts", "", f"{INTRODUCTION} In all: {total or 'none yet'}.", *sections]) + "\n"


COUNTED = {
    "holds": "hold",
    "does not hold": "do not hold",
    "undecided": "undecided",
    "not run": "not run",
}
INTRODUCTION = (
    "Every claim that an experiment tests, and what the runs in this folder say of it. Written by `srmlab "
    "sweep`, not by hand. Losses are in nats, differences paired by seed; an interval is at 95 % unless "
    "another level is given."
)


def section(name: str, experiment: Experiment, result: SweepResult, claims: list[Claim]) -> list[str]:
    all_cells = experiment.cells(result.scale)
    run = "all" if len(result.cells) == len(all_cells) else f"{len(result.cells)} of"
    seeds = " or ".join(str(count) for count in sorted({len(cell.runs) for cell in result.cells}))
    lines = [
        "",
        f"## {experiment.name}, {result.scale}",
        "",
        f"{experiment.question} {run.capitalize()} {len(all_cells)} cells, {seeds} seeds: "
        f"[table]({name}/table.md).",
    ]
    if claims:
        rows = [[claim.text, f"**{verdict(claim)}**", claim.because] for claim in claims]
        lines += ["", *markdown_table([["claim", "verdict", "because"], *rows])]
    return lines


def verdict(claim: Claim) -> str:
    return "not run" if claim.missing else claim.verdict
