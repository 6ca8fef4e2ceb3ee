"""`srmlab paper baseline=RUN 161m=RUN 479m=RUN --out DIR`: the data files that the paper's LaTeX reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import tyro

from srmlab.cli.analyze import TOKENS
from srmlab.cli.analyze import Command as Analyze
from srmlab.cli.shared import OR_PRETRAINED, Answers, refuse
from srmlab.errors import UserError
from srmlab.files import writing
from srmlab.pretrained import folder as shipped

if TYPE_CHECKING:
    from srmlab.storage.metrics_file import Losses

LOSS_COLUMNS = {  # label → the column of loss_smoothed.csv, in the paper's words
    "hrm": "HRM - loss",
    "gpt2": "gpt2-test - loss",
    "161m": "161M parameters - loss",
    "479m": "479M parameters - loss",
    "baseline": "4-Bl_3-Pg_6-Ls_1-Ps - loss",
}
ANALYSED = ("baseline", "161m", "479m")
NEEDED = ("alignment", "ablation", "routing", "drift", "logit_lens")
SWEEP = re.compile(r"(param|width|stream):(\d+)")


@dataclass
class Command(Answers):
    """Write the paper's data files from your runs, with the paper's names and columns, so that its figures
    compile.

    Runs are labelled baseline (SRM-base), 161m (SRM-med), 479m (SRM-large), gpt2 or hrm, and the cells of
    the stream-size sweep param:8, width:8 or stream:8. Missing ones are listed. Analyses that a run lacks
    are computed first.

    Example:
        srmlab paper baseline=runs/base 161m=runs/med 479m=runs/large gpt2=runs/gpt2 hrm=runs/hrm --out paper
        srmlab paper 161m=runs/nano param:8=runs/sweep-8 --out paper
        srmlab paper --pretrained 161m --out paper
    """

    out: Path
    """Output folder: data/ for the files, figs/ for figures that are images in the paper."""
    runs: tyro.conf.Positional[
        Annotated[tuple[str, ...], tyro.conf.arg(metavar="LABEL=RUN …", help_behavior_hint=OR_PRETRAINED)]
    ] = ()
    """Labels and runs."""
    pretrained: str | None = None
    """Label for the model that ships with the package."""
    tokens: int = TOKENS
    """How many tokens the analyses read."""

    def result(self) -> dict[str, list[str]]:
        from srmlab.storage.metrics_file import Losses

        runs = parse(self.runs if self.pretrained is None else (*self.runs, f"{self.pretrained}={shipped()}"))
        if self.out.is_file():
            raise UserError(f"--out {self.out} is a file: give a folder")
        if not runs.keys() & {*ANALYSED}:
            refuse(self, "tokens", why=f"is for the analyses of {', '.join(ANALYSED)}")
        data = self.out / "data"
        written: list[Path] = []
        with writing(self.out):
            for label in ANALYSED:
                if label in runs:
                    written += self.analysed(label, runs[label], data)
            curves = {label: Losses.read(path / "metrics.jsonl") for label, path in runs.items()}
            if any(label in LOSS_COLUMNS for label in runs):
                written.append(write_losses(data / "loss_smoothed.csv", curves))
            written += write_sweep(data / "stream_size", curves)
        return {"written": [str(path) for path in written], "missing": missing(set(runs))}

    def lines(self, result: dict[str, list[str]]) -> list[str]:
        return [*result["written"], *(f"not given: {line}" for line in result["missing"])]

    def analysed(self, label: str, path: Path, data: Path) -> list[Path]:
        from srmlab.analysis import load
        from srmlab.figures import save

        out = self.out / f"{label}-analysis" if path == shipped() else None
        command = Analyze(path=path, only=NEEDED, tokens=self.tokens, formats=(), out=out)
        folder = Path(command.analyze()["out"]) / "analysis"
        written = []
        for name in NEEDED:
            result = load(folder / name)
            written += result.to_pgfplots(data, label)
            if name in ("routing", "drift", "logit_lens"):
                written += save(result.figure(), self.out / "figs" / f"{label}_{name}", ("pdf",))
        return written


def parse(given: tuple[str, ...]) -> dict[str, Path]:
    from srmlab.training.run import run_config

    runs: dict[str, Path] = {}
    for item in given:
        label, found, path = item.partition("=")
        if not found or not (label in LOSS_COLUMNS or SWEEP.fullmatch(label)):
            raise UserError(
                f"{item!r}: write LABEL=RUN with {', '.join(LOSS_COLUMNS)}, or param:S, width:S, stream:S"
            )
        if run_config(Path(path)) is None and label not in ANALYSED:
            raise UserError(f"{path} is not a run with losses: give the --out of an `srmlab train`")
        if label in runs:
            raise UserError(f"{label} is given twice: give one run for each label")
        runs[label] = Path(path)
    if not runs:
        raise UserError("give at least one LABEL=RUN, such as 161m=runs/med")
    return runs


def write_losses(path: Path, curves: dict[str, Losses]) -> Path:
    """loss_smoothed.csv: Step and a column for each of the paper's runs, a rolling mean of 200 steps; nan
    where there is none."""
    from srmlab.figures import rolling_mean
    from srmlab.files import write_file
    from srmlab.storage.metrics_file import LAST_STEPS, Losses

    smooth: dict[str, dict[int, float]] = {}
    for label in LOSS_COLUMNS:
        found = curves.get(label, Losses())
        means = rolling_mean(np.array(found.training), LAST_STEPS).tolist()
        smooth[label] = dict(zip(found.steps, means, strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(["Step", *LOSS_COLUMNS.values()])]
    for step in sorted(set().union(*smooth.values())):
        cells = [f"{smooth[label][step]:.5f}" if step in smooth[label] else "nan" for label in LOSS_COLUMNS]
        lines.append(",".join([str(step), *cells]))
    write_file(path, "\n".join(lines) + "\n")
    return path


def write_sweep(folder: Path, curves: dict[str, Losses]) -> list[Path]:
    """stream_size/{param,width,stream}.dat: streams and training loss, the mean of a run's last 200 steps."""
    from srmlab.analysis.result import write_table

    rows: dict[str, list[tuple[int, float]]] = {}
    for label, found in curves.items():
        match = SWEEP.fullmatch(label)
        if match and found.mean is not None:
            rows.setdefault(match[1], []).append((int(match[2]), found.mean))
    return [
        write_table(folder / f"{name}.dat", ["streams", "loss"], sorted(cells))
        for name, cells in rows.items()
    ]


def missing(labels: set[str]) -> list[str]:
    """What the paper's figures need that was not given."""
    lines: list[str] = []
    for label in ANALYSED:
        if label not in labels:
            lines.append(
                f"{label} (data/{label}_ablation_ranked.dat, _attn_token_cos.dat, _update_state_cos.dat)"
            )
    columns = [label for label in LOSS_COLUMNS if label not in labels]
    if columns:
        named = ", ".join(columns)
        lines.append(f"{named} in data/loss_smoothed.csv: nan, and LaTeX's legend skips an empty plot")
    for name in ("param", "width", "stream"):
        cells = [s for s in (1, 2, 4, 8, 16, 32, 64) if f"{name}:{s}" not in labels]
        if cells:
            lines.append(f"{name}:S for S = {', '.join(map(str, cells))} (data/stream_size/{name}.dat)")
    return lines
