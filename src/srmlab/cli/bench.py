"""`srmlab bench`: side-by-side ratios, from the `benchmarks/` folder of a checkout."""

from __future__ import annotations

import dataclasses
import importlib
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

import srmlab
from srmlab.cli.shared import Answers, at_least, folded, refuse
from srmlab.errors import UserError, unknown

FOLDER = Path(__file__).parents[3] / "benchmarks"
BENCHES = ("training_step", "attention", "decoding", "sites", "analyses", "explorer", "exit", "scaling")


@dataclass
class Command(Answers):
    """Time SRM against Hugging Face GPT-2 and the paper's pseudocode, as ratios within one run.

    Example:
        srmlab bench
        srmlab bench decoding --rounds 5 --json > bench.json
    """

    benches: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[BENCH …]", help_behavior_hint="")
    ] = BENCHES
    """training_step, attention, decoding, sites, analyses, explorer, exit or scaling; by default all."""
    rounds: int = 3
    """Rounds, with the candidates taking turns; medians are reported."""
    threads: int = 2
    """CPU threads to use."""
    base_tokens: int = 1024
    """How many tokens the analyses of srm-base read; 8192 takes an hour on two cores."""

    def result(self) -> dict[str, Any]:
        import torch

        from srmlab.training.memory import keep_buffers

        if not FOLDER.is_dir():
            raise UserError("the benchmarks are not part of the installed package: run this from a clone")
        for bench in self.benches:
            if bench not in BENCHES:
                raise unknown("bench", bench, BENCHES)
        if "analyses" not in self.benches:
            refuse(self, "base_tokens", why="is for the bench analyses")
        at_least(self, rounds=1, threads=1, base_tokens=2)
        torch.set_num_threads(self.threads)
        keep_buffers()
        sys.path.insert(0, str(FOLDER))
        rows: list[Any] = []
        for bench in self.benches:
            print(f"{bench} …", file=sys.stderr, flush=True)
            options = {"base_tokens": self.base_tokens} if bench == "analyses" else {}
            for row in importlib.import_module(bench).run(self.rounds, **options):
                note = f" ({row.note})" if row.note else ""
                print(f"  {row.name}: {row.ratio:.2f}{note}", file=sys.stderr, flush=True)
                rows.append(row)
        self.rows = rows
        return {
            "srmlab": srmlab.__version__,
            "torch": torch.__version__,
            "machine": platform.machine(),
            "threads": self.threads,
            "rounds": self.rounds,
            "rows": [dataclasses.asdict(row) | {"met": row.met} for row in rows],
        }

    def lines(self, result: dict[str, Any]) -> list[str]:  # noqa: ARG002
        table = [["what", "measured", "arithmetic alone", "ratio", "asked", ""]]
        for row in self.rows:
            measured = " ÷ ".join(_figure(s) for s in row.seconds) + f" {row.unit}"
            limit = ""
            if row.limit is not None:
                limit = f"{' ÷ '.join(map(_figure, row.limit_seconds))} = {row.limit:.2f}"
            mark = {True: "met", False: "missed", None: ""}[row.met]
            table.append([row.name, measured, limit, f"{row.ratio:.2f}", row.asked, mark])
        return [folded(table)]


def _figure(number: float) -> str:
    """Three digits, and never 1e+03."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
