"""`srmlab solve RUN` for a puzzle model: boards solved, by difficulty, by segment and by depth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from srmlab.errors import UserError
from srmlab.models import LanguageModel
from srmlab.models.loss import IGNORE
from srmlab.puzzles import Kind, PuzzleBatch, Puzzles, evaluation_puzzles, find_kind
from srmlab.tasks.accuracy import Z95, Accuracy
from srmlab.training.config import TrainConfig
from srmlab.training.plan import check_board
from srmlab.training.run import RunConfig
from srmlab.training.run_puzzles import puzzles_of
from srmlab.training.solving import Solving, solve, vote

if TYPE_CHECKING:
    from srmlab.cli.solve import Command

SHOWN = 3  # boards that --show prints
RATED_BY = {"sudoku": "search nodes", "maze": "way", "arc": "answer's cells"}
ATTEMPTS = {"arc": 2}  # answers that count, by family; elsewhere one


@dataclass(frozen=True)
class Subject:
    """A puzzle model with the boards it is tried on."""

    path: Path
    model: LanguageModel
    training: TrainConfig
    puzzles: Puzzles

    @property
    def kind(self) -> Kind:
        return self.puzzles.kind

    @property
    def from_file(self) -> bool:
        return self.puzzles.path.is_file()

    def batches(self, batch_size: int, limit: int) -> Iterator[PuzzleBatch]:
        return evaluation_puzzles(self.puzzles, batch_size, limit)


def open_subject(path: Path, model: LanguageModel, run: RunConfig | None, command: Command) -> Subject:
    """The boards: a file's, those of a folder, or those that the run or the model comes with."""
    puzzles = puzzles_of(path, run, command.data, command.file, verify=False)
    known = find_kind(run.puzzles) if run and run.puzzles else None
    if known is not None and puzzles.kind != known:
        raise UserError(
            f"{puzzles.path} holds {puzzles.kind.name}, and {path} was trained on {known.name}: give its own"
        )
    check_board(model.config, puzzles)
    if not len(puzzles.test):
        raise UserError(
            f"{puzzles.path} has no test puzzles: prepare it with a --val-fraction, or give --file"
        )
    return Subject(path, model, run.training if run else TrainConfig(), puzzles)


# --- counting -----------------------------------------------------------------------------------------------


def measure(subject: Subject, command: Command) -> tuple[dict[str, Any], Solving]:
    from srmlab.progress import Display

    model, training = subject.model, subject.training
    segments = command.segments or training.segments
    limit = min(command.problems, len(subject.puzzles.test))
    depths = sorted({depth for depth in command.depth if depth != model.depth})
    how = {"segments": segments, "unknown_only": training.cells == "unknown"}
    with Display(show=not command.json) as display:
        work = display.task("solving", limit * (1 + len(depths)), "boards")
        batches = subject.batches(command.batch_size, limit)
        found = solve(model, batches, subject.kind, **how, progress=work.update)
        depths_found = [summed(found, model.depth)]
        for done, depth in enumerate(depths, 1):
            batches = subject.batches(command.batch_size, limit)
            deeper = solve(model, batches, subject.kind, **how, depth=depth)
            depths_found.append(summed(deeper, depth))
            work.update(limit * (1 + done))
        answer = about(subject, found, limit) | {"by_depth": depths_found}
        if command.votes > 1:
            answer["votes"] = counted_votes(subject, command, limit, how, display)
    return answer, found


def counted_votes(subject: Subject, command: Command, limit: int, how: dict[str, Any], display: Any) -> dict:
    if subject.from_file:
        raise UserError("--votes: needs the symmetries of a folder; give --data, without --file")
    voting = display.task("voting", command.votes, "symmetries")
    attempts = ATTEMPTS.get(subject.kind.family, 1)
    right = vote(
        subject.model,
        subject.puzzles,
        votes=command.votes,
        attempts=attempts,
        limit=limit,
        batch_size=command.batch_size,
        **how,
        progress=voting.update,
    )
    return {"votes": command.votes, "attempts": attempts, **share(int(right.sum()), limit)}


def about(subject: Subject, found: Solving, limit: int) -> dict[str, Any]:
    halting = subject.training.halting
    halts = found.halts(halting)
    return {
        "model": str(subject.path),
        "puzzles": f"{'' if subject.from_file else 'test puzzles of '}{subject.puzzles.path}",
        "kind": subject.kind.name,
        "boards": limit,
        "segments": len(found.right),
        "trained_segments": subject.training.segments,
        "trained_depth": subject.model.depth,
        "halting": halting,
        "solved": share(int(found.right[-1].sum()), limit),
        "cells": mean_share(found.cells[-1]),
        "halted": {**share(int(found.at(halts).sum()), limit), "segments": float(halts.mean())},
        "by_segment": [
            {"segment": s + 1, **share(int(right.sum()), limit), "cells": mean_share(cells)}
            for s, (right, cells) in enumerate(zip(found.right, found.cells, strict=True))
        ],
        "by_difficulty": by_difficulty(found, subject.puzzles.test.ratings[:limit], halts),
    }


def by_difficulty(found: Solving, ratings: np.ndarray, halts: np.ndarray) -> list[dict[str, Any]]:
    """By what puzzles of the kind are rated by, in groups of about equal size."""
    edges = np.unique(np.quantile(ratings, [0, 0.25, 0.5, 0.75, 1], method="nearest"))
    groups = [(low, high) for low, high in zip(edges, [*(edges[1:] - 1)[:-1], edges[-1]], strict=False)]
    rows = []
    for low, high in groups or [(int(edges[0]), int(edges[0]))]:
        mine = (ratings >= low) & (ratings <= high)
        if not mine.any():
            continue
        right = int(found.right[-1][mine].sum())
        rows.append(
            {"from": int(low), "to": int(high), **share(right, int(mine.sum()))}
            | {"cells": mean_share(found.cells[-1][mine]), "segments": float(halts[mine].mean())}
        )
    return rows


def summed(found: Solving, depth: int) -> dict[str, Any]:
    return {
        "depth": depth,
        **share(int(found.right[-1].sum()), len(found)),
        "cells": mean_share(found.cells[-1]),
    }


def share(right: int, boards: int) -> dict[str, Any]:
    low, high = Accuracy(right, boards).interval
    return {"right": right, "of": boards, "share": right / boards, "low": low, "high": high}


def mean_share(shares: np.ndarray) -> dict[str, float]:
    """Of cells: those of one board are not independent, so the interval is that of a mean over boards."""
    mean = float(shares.mean())
    error = Z95 * float(shares.std(ddof=1)) / len(shares) ** 0.5 if len(shares) > 1 else float("nan")
    return {"share": mean, "low": max(0.0, mean - error), "high": min(1.0, mean + error)}


# --- showing ------------------------------------------------------------------------------------------------


def lines(answer: dict[str, Any]) -> list[str]:
    """Tables for a terminal."""
    difficulty = RATED_BY[answer["kind"].partition(":")[0]]
    table = [f"{difficulty:<18}{'boards':>8}{'solved':>24}{'cells right':>24}{'segments used':>16}"]
    for row in answer["by_difficulty"]:
        name = f"{row['from']} – {row['to']}" if row["to"] > row["from"] else str(row["from"])
        table.append(
            f"{name:<18}{row['of']:>8}{shown(row):>24}{shown(row['cells']):>24}{row['segments']:>16.1f}"
        )
    halted = answer["halted"]
    table.append(
        f"{'all':<18}{answer['boards']:>8}{shown(answer['solved']):>24}{shown(answer['cells']):>24}"
        f"{halted['segments']:>16.1f}"
    )
    table += ["", f"{'segment':<18}{'':>8}{'solved':>24}{'cells right':>24}"]
    rows = answer["by_segment"]
    table += [
        f"{row['segment']:<18}{'':>8}{shown(row):>24}{shown(row['cells']):>24}"
        for row in rows
        if row["segment"] in {1, 2, 4, 8, 16, 32, 64, len(rows)}
    ]
    if len(answer["by_depth"]) > 1:
        table += ["", f"{'depth':<18}{'':>8}{'solved':>24}{'cells right':>24}"]
        for row in sorted(answer["by_depth"], key=lambda row: row["depth"]):
            trained = " (trained)" if row["depth"] == answer["trained_depth"] else ""
            name = f"{row['depth']}{trained}"
            table.append(f"{name:<18}{'':>8}{shown(row):>24}{shown(row['cells']):>24}")
    table.append("")
    if answer["halting"] != "fixed":
        table.append(f"halting where q says so: {shown(halted)} solved in {halted['segments']:.1f} segments")
    if "votes" in answer:
        votes = answer["votes"]
        attempts = f", {votes['attempts']} attempts" if votes["attempts"] > 1 else ""
        table.append(f"by a vote of {votes['votes']} symmetries{attempts}: {shown(votes)} solved")
    what = (
        f"{answer['kind']}, {answer['puzzles']}: whole boards, and unknown cells, after {answer['segments']}"
    )
    return [*table, f"{what} segments [95 % interval]"]


def shown(row: dict[str, float]) -> str:
    return f"{100 * row['share']:.1f} % [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"


def play(kind: Kind, found: Solving, board: int) -> Iterator[str]:
    """A board as it is given, and after every segment that changed it: what changed, and what is wrong."""
    yield f"board {board + 1}"
    yield kind.drawing(found.inputs[board])
    given, label, before = ~found.unknown[board], found.labels[board], found.inputs[board]
    since = 0  # the segment that changed something last
    for s, guess in enumerate(found.answers[:, board], 1):
        after = np.where(given, found.inputs[board], guess)
        changed = np.flatnonzero(after != before).tolist()
        wrong = int(((after != label) & (label != IGNORE)).sum())
        moves = [
            f"{place(kind, cell)} {kind.symbols[before[cell]]}→{kind.symbols[after[cell]]}"
            for cell in changed
        ]
        if changed:
            some = ", ".join(moves) if s > 1 and len(moves) <= 12 else f"{len(moves)} cells filled or changed"
            yield f"\nsegment {s}: {f'{wrong} cells wrong' if wrong else 'solved'}; {some}"
            yield kind.drawing(after)
            since = s
        before = after
    if since < len(found.answers):
        yield f"\nsegments {since + 1} to {len(found.answers)}: as it is"


def place(kind: Kind, cell: int) -> str:
    return f"r{cell // kind.columns + 1}c{cell % kind.columns + 1}"
