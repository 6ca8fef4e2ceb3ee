"""Experiments in a report: for each its question, its figure, its table with the best first, the verdict."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path

from srmlab.errors import UserError
from srmlab.experiments import SweepResult, experiment


def read_results(folder: str | Path) -> list[tuple[SweepResult, Path]]:
    """Every result below a folder of `srmlab sweep`'s, in the order of the experiments' names."""
    found = [file.parent for file in sorted(Path(folder).glob("**/result.json"))]
    if not found:
        raise UserError(f"{folder} holds no results of `srmlab sweep`: give its --results or --out")
    return [(SweepResult.load(path), path) for path in found]


def leaderboards(results: list[tuple[SweepResult, Path]]) -> str:
    if not results:
        return ""
    parts = [leaderboard(result, folder) for result, folder in results]
    return f'<div class="report"><h2>Experiments</h2>{"".join(parts)}</div>'


def leaderboard(result: SweepResult, folder: Path) -> str:
    about = experiment(result.experiment)
    heads, rows = result.table()
    ranked = sorted(rows, key=lambda row: result[row[0]].mean)
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in ranked)
    claim = f"<p>The paper: {escape(about.claim)}</p>" if about.claim else ""
    verdict = "".join(f"<li>{escape(line)}</li>" for line in result.verdict(about))
    return (
        f"<h3>{escape(about.question)}</h3>{claim}{svg_image(folder / 'figure.svg', about.question)}"
        f"<table><caption>{escape(about.name)}, {escape(result.scale)}: {result.finished} of "
        f"{result.planned} runs</caption><tr>{head}</tr>{body}</table><ul>{verdict}</ul>"
    )


def svg_image(file: Path, alternative: str) -> str:
    """An SVG file as an image inside the page; nothing if it is not there."""
    try:
        content = base64.b64encode(file.read_bytes()).decode()
    except OSError:
        return ""
    image = f'<img alt="{escape(alternative)}" src="data:image/svg+xml;base64,{content}">'
    return f'<div class="figure">{image}</div>'
