"""`srmlab fit RUNS…`: how the loss falls with tokens and FLOP, and where it would go."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from srmlab.cli.shared import REQUIRED, Answers, filled
from srmlab.errors import UserError
from srmlab.files import writing

if TYPE_CHECKING:
    from srmlab.experiments.fit import Curve, Fit


@dataclass
class Command(Answers):
    """Fit a power law with an offset to the training loss of each run, against tokens and against FLOP,
    with bootstrap intervals, and extrapolate it, noting how far that can be trusted.

    Example:
        srmlab fit runs/nano
        srmlab fit runs/srm-med runs/gpt2 --tokens 300e9 --out figures/fit
    """

    runs: tyro.conf.Positional[
        Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN…", help_behavior_hint=REQUIRED)]
    ]
    """Runs of `srmlab train` or `srmlab sweep`."""
    tokens: Annotated[float, tyro.conf.arg(help_behavior_hint="(default: 300e9)")] = 300e9
    """Extrapolate to this many tokens; the paper's figure is 300B."""
    out: Path | None = None
    """Also plot it, to OUT.png and OUT.svg."""

    def result(self) -> list[dict[str, Any]]:
        from srmlab.experiments.fit import fit_curve, read_curves

        if not self.runs:
            raise UserError("give at least one run: srmlab fit runs/nano")
        if not 0 < self.tokens < math.inf:
            raise UserError(f"--tokens {self.tokens:g}: must be a positive number")
        found = [(curve, fit_curve(curve.tokens, curve.loss)) for curve in read_curves(self.runs)]
        if self.out is not None:
            from srmlab.figures import save
            from srmlab.figures.fit import fit_figure

            with writing(self.out):
                save(fit_figure(found, self.tokens), self.out, ("png", "svg"))
        return [answer(curve, fit, self.tokens) for curve, fit in found]

    def lines(self, result: list[dict[str, Any]]) -> list[str]:
        return [words(one) for one in result]


def answer(curve: Curve, fit: Fit, tokens: float) -> dict[str, Any]:
    """Against FLOP the law has the same offset and exponent, for FLOP are tokens times a constant (with a
    depth schedule, times their mean over the run).
    """
    law, cost = fit.law, curve.flops_per_token
    return {
        "run": curve.name,
        "law": asdict(law),
        "intervals": {name: fit.range_of(name) for name in ("offset", "scale", "exponent")},
        "scale_by_flop": law.scale * cost**law.exponent,
        "tokens": [fit.first, fit.last],
        "flops_per_token": cost,
        "residual": fit.residual,
        "at": {"tokens": tokens, "flop": tokens * cost, "loss": float(law(tokens))},
        "interval": fit.interval(tokens),
        "trust": "; ".join((fit.trust(tokens), *curve.bends)),
    }


def words(found: dict[str, Any]) -> str:
    law, far, (low, high) = found["law"], found["at"], found["interval"]
    ranges = {name: f"{a:.3g} to {b:.3g}" for name, (a, b) in found["intervals"].items()}
    first, last = found["tokens"]
    return "\n".join(
        [
            f"{found['run']}: loss",
            f"  = {law['offset']:.3f} + {law['scale']:.4g} · tokens^−{law['exponent']:.3f}",
            f"  = {law['offset']:.3f} + {found['scale_by_flop']:.4g} · FLOP^−{law['exponent']:.3f}",
            f"  95 %: offset {ranges['offset']}, exponent {ranges['exponent']}",
            f"  fitted on {first:.3g} to {last:.3g} tokens, residual {found['residual']:.3f} nats",
            f"  at {far['tokens']:.3g} tokens ({far['flop']:.3g} FLOP): {far['loss']:.3f} "
            f"[{low:.3f}, {high:.3f}] nats",
            filled(found["trust"], "    ", "    "),
        ]
    )
