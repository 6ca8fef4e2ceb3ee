"""`srmlab patch`: which part of the state carries what makes two prompts differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from srmlab.cli.shared import RunsModel, refuse
from srmlab.errors import UserError, reason
from srmlab.files import refuse_unwritable, write_file, writing

if TYPE_CHECKING:
    from torch import Tensor

    from srmlab.analysis import PatchGrid, PathGrid
    from srmlab.data import Tokenizer
    from srmlab.progress import Display

FIELDS = ("clean", "corrupt", "answer", "other")


@dataclass(kw_only=True)
class Command(RunsModel):
    """Patch the states of a clean prompt into a corrupt one, part by part, and measure how much of the
    difference in the prediction is restored; alongside, attribution patching (the gradient
    approximation) and a null: the states of another corrupt prompt.

    For many pairs, give a file with one JSON object per line: {"clean": …, "corrupt": …, "answer": …,
    "other": …}.

    Example:
        srmlab patch --pretrained --clean "of the United" --corrupt "of the wanted" --out patched
        srmlab patch runs/nano --pairs pairs.jsonl --over layer stream --json
        srmlab patch runs/nano --pairs pairs.jsonl --paths
    """

    clean: str | None = None
    """The prompt whose states are patched in."""
    corrupt: str | None = None
    """The prompt to patch; must have as many tokens as the clean one."""
    answer: str | None = None
    """Continuation of the clean prompt (its first token counts); by default the most likely token."""
    other: str | None = None
    """Continuation of the corrupt prompt; by default the most likely token."""
    pairs: Path | None = None
    """A file of pairs, instead of --clean and --corrupt; standard errors are over pairs."""
    metric: Literal["logit-difference", "log-probability", "kl"] = "logit-difference"
    """Logit of the answer minus that of the other, its log-probability, or KL from the clean prediction."""
    over: tuple[Literal["layer", "stream", "position"], ...] = ("layer", "stream", "position")
    """The axes to patch one by one; the others are patched all at once."""
    into: Literal["corrupt", "clean"] = "corrupt"
    """clean: the reverse, patching corrupt states into the clean prompt."""
    paths: bool = False
    """Path patching: patch messages between streams, one pair and layer at a time, the rest frozen."""
    out: Path | None = None
    """A new folder for the result and its figures; without it nothing is written."""

    def result(self) -> dict[str, Any]:
        if self.out is not None:
            refuse_unwritable(self.out)
        with self.display() as display:
            found, answer = self.measure(display)
        files = {} if self.out is None else {"files": self.write(found, self.out)}
        return answer | files | {"summary": found.summary()}

    def measure(self, display: Display) -> tuple[PatchGrid | PathGrid, dict[str, Any]]:
        import torch

        from srmlab.analysis import patch_grid, path_grid

        self.refuse_unused()
        rows = self.rows()
        path, model, tokenizer = self.load()
        clean, corrupt = (tokenizer([row[side] for row in rows]) for side in ("clean", "corrupt"))
        check_lengths(rows, clean.attention_mask, corrupt.attention_mask)
        with model.evaluating():
            logits = [
                model(given.tokens.to(model.device), attention_mask=given.attention_mask)
                for given in (clean, corrupt)
            ]
        answers = {
            name: torch.tensor(followers(name, rows, tokenizer, after[:, -1].argmax(-1).tolist()))
            for name, after in zip(("answer", "other"), logits, strict=True)
        }
        metric = self.metric_of(answers["answer"], answers["other"], logits[0])
        task = display.task("patching", unit="patches")
        options: dict[str, Any] = {
            "into": self.into,
            "progress": lambda done, total: task.update(done, total=total),
        }
        if self.paths:
            found = path_grid(model, clean, corrupt, metric, **options)
        else:
            labels = position_labels(tokenizer, clean.tokens, corrupt.tokens)
            found = patch_grid(model, clean, corrupt, metric, self.over, labels=labels, **options)
        shown = {name: tokenizer.token_strings(ids.tolist()) for name, ids in answers.items()}
        return found, {"model": str(path), "metric": self.metric, "pairs": len(rows)} | shown | cells(found)

    def refuse_unused(self) -> None:
        if self.paths:
            refuse(self, "over", why="is not for --paths, which patches every pair of streams in every layer")
        if self.metric == "kl":
            refuse(self, "answer", "other", why="is for the other metrics, not for --metric kl")
        if self.metric == "log-probability":
            refuse(self, "other", why="is for --metric logit-difference")

    def rows(self) -> list[dict[str, str]]:
        """The pairs, each with its prompts and, where given, its answers."""
        given = {name: value for name in FIELDS if (value := getattr(self, name)) is not None}
        if self.pairs is None:
            if "clean" not in given or "corrupt" not in given:
                raise UserError("give --clean TEXT and --corrupt TEXT, or --pairs FILE")
            return [given]
        if given:
            raise UserError(f"--pairs and --{next(iter(given))} cannot be combined: give one of them")
        return read_pairs(self.pairs)

    def metric_of(self, right: Tensor, wrong: Tensor, clean: Tensor) -> Callable[[Tensor], Tensor]:
        from srmlab.analysis import kl_from, log_probability, logit_difference

        if self.metric == "kl":
            return kl_from(clean)
        if self.metric == "log-probability":
            return log_probability(right)
        same = (right == wrong).nonzero().flatten().tolist()
        if same:
            raise UserError(
                f"pair {same[0] + 1}: both answers begin with the same token; give --answer and "
                "--other, or --metric kl"
            )
        return logit_difference(right, wrong)

    def write(self, found: PatchGrid | PathGrid, out: Path) -> list[str]:
        from srmlab.figures import save_all

        with writing(out):
            stem = found.save(out / found.kind)
            write_file(out / "summary.txt", found.summary() + "\n")
            drawn = save_all(found, out)
        return [f"{stem}.npz", f"{stem}.json", str(out / "summary.txt"), *map(str, drawn)]

    def lines(self, result: dict[str, Any]) -> Iterator[str]:
        yield result["summary"]
        if self.metric != "kl":
            against = f" against {result['other'][0]!r}" if self.metric == "logit-difference" else ""
            more = f" (the first of {result['pairs']} pairs)" if result["pairs"] > 1 else ""
            yield f"  {self.metric} of {result['answer'][0]!r}{against}{more}"
        if self.out is not None:
            yield f"{self.out}"


def read_pairs(file: Path) -> list[dict[str, str]]:
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read {file} ({reason(error)}): give a file with one JSON object per line"
        ) from None
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not {"clean", "corrupt"} <= set(row) <= set(FIELDS):
            raise UserError(
                f'{file}, line {number}: give {{"clean": …, "corrupt": …, "answer": …, "other": …}}'
            )
        if not all(isinstance(value, str) for value in row.values()):
            raise UserError(f"{file}, line {number}: every value must be a string")
        rows.append(row)
    if not rows:
        raise UserError(f"{file} has no pairs: give one JSON object per line")
    return rows


def check_lengths(rows: Sequence[dict[str, str]], clean: Tensor, corrupt: Tensor) -> None:
    counts = zip(clean.sum(1).tolist(), corrupt.sum(1).tolist(), rows, strict=True)
    for first, second, row in counts:
        if first != second:
            raise UserError(
                f"{row['clean']!r} has {first} tokens and {row['corrupt']!r} {second}: the two prompts of a "
                "pair must have the same number"
            )


def followers(name: str, rows: list[dict[str, str]], tokenizer: Tokenizer, likely: list[int]) -> list[int]:
    """The token that follows each prompt: the first of what was given, or the most likely one."""
    found = []
    for row, otherwise in zip(rows, likely, strict=True):
        given = tokenizer.encode(row[name]) if name in row else [otherwise]
        if not given:
            raise UserError(f"an empty {name}: give the text that follows, including any leading space")
        found.append(given[0])
    return found


def position_labels(tokenizer: Tokenizer, clean: Tensor, corrupt: Tensor) -> list[str] | None:
    """The tokens at each position, both where they differ; of several pairs only where they all agree."""
    if len(clean) > 1:
        return None
    names = [tokenizer.token_strings(ids[0].tolist()) for ids in (clean, corrupt)]
    both = enumerate(zip(*names, strict=True))
    return [f"{t} {a}" if a == b else f"{t} {a}|{b}" for t, (a, b) in both]


def cells(found: PatchGrid | PathGrid) -> dict[str, Any]:
    """Every cell with its numbers, for JSON."""
    axes = list(found.derived()["share"])
    columns = {"share": found.share, "share_error": found.standard_error("share"), "null": found.null}
    columns |= {name: getattr(found, name) for name in ("change", "approximate") if hasattr(found, name)}
    rows = [
        dict(zip(axes, at, strict=True)) | {name: float(values[at]) for name, values in columns.items()}
        for at in np.ndindex(found.share.shape)
    ]
    single = {
        name: float(getattr(found, name))
        for name in ("before", "goal", "correlation")
        if hasattr(found, name)
    }
    labels = {
        name: list(getattr(found, name))
        for name in ("layers", "streams", "positions")
        if hasattr(found, name)
    }
    return {"into": found.into} | single | labels | {"cells": rows}
