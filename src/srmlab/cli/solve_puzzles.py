"""`srmlab solve RUN` for a puzzle model: boards solved, by difficulty, by segment and by depth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from srmlab.analysis.student import interval
from srmlab.cli.shared import aligned
from srmlab.errors import UserError
from srmlab.models import LanguageModel
from srmlab.models.loss import IGNORE
from srmlab.puzzles import Kind, Puzzles, evaluation_puzzles, find_kind
from srmlab.puzzles.files import plain_ratings
from srmlab.storage import load
from srmlab.tasks.accuracy import Accuracy, percent
from srmlab.training.config import TrainConfig
from srmlab.training.distributed import device_of
from srmlab.training.plan import check_board
from srmlab.training.run import RunConfig, run_config
from srmlab.training.run_puzzles import puzzles_of, warn_of_trained
from srmlab.training.solving import Solving, solve, vote

if TYPE_CHECKING:
    from srmlab.cli.solve import Command
    from srmlab.progress import Display

SHOWN = 3  # boards that --show prints
LISTED = 12  # changes of a segment that it lists
WIDTH = 80  # of a terminal
MARKS = " .+xX"  # of a cell, on the board beside --show's: see LEGEND; the first does not count
LEGEND = "beside a board: + changed in this segment, x wrong, X both"
PLAINLY = {"sudoku": "empty cells", "maze": "way", "arc": "answer's cells"}  # what `plain_ratings` counts
ATTEMPTS = {"arc": 2}  # answers that count, by family; elsewhere one


# --- counting -----------------------------------------------------------------------------------------------


def measure(path: Path, command: Command) -> dict[str, Any]:
    """The boards of a file, of a folder, or those that the run or the model comes with."""
    run = run_config(path)
    model, training = load(path, device=device_of(command.device)), run.training if run else TrainConfig()
    puzzles = puzzles_of(path, run, command.data, command.file, verify=False)
    check(puzzles, path, model, run)
    check_votes(puzzles, command.votes)
    limit = min(command.problems, len(puzzles.test))
    warn_of_trained(path, run, puzzles, limit)
    depths = sorted({depth for depth in command.depth if depth != model.depth})
    how: dict[str, Any] = {"segments": command.segments or training.segments}
    how["unknown_only"] = training.cells == "unknown"
    with command.display() as display:
        work = display.task("solving", limit * (1 + len(depths)), "boards")
        runs: dict[int, Solving] = {}
        for depth in (model.depth, *depths):
            batches, before = evaluation_puzzles(puzzles, command.batch_size, limit), limit * len(runs)
            runs[depth] = solve(
                model,
                batches,
                puzzles.kind,
                **how,
                depth=None if depth == model.depth else depth,
                progress=lambda done, before=before: work.update(before + done),
            )
        found = runs[model.depth]
        answer = about(path, model, puzzles, training, found)
        answer["by_depth"] = [{"depth": depth, **after(one, -1)} for depth, one in runs.items()]
        if command.votes > 1:
            answer["votes"] = counted_votes(model, puzzles, command, limit, how, display)
    if command.show:
        for board in range(min(SHOWN, len(found))):
            print("\n".join(play(puzzles.kind, found, board)) + "\n")
        print(LEGEND + "\n")
    return answer


def check(puzzles: Puzzles, path: Path, model: LanguageModel, run: RunConfig | None) -> None:
    """Refuse boards of another kind than the model's."""
    known = find_kind(run.puzzles) if run and run.puzzles else None
    if known is not None and puzzles.kind != known:
        raise UserError(
            f"{puzzles.path} holds {puzzles.kind.name}, and {path} was trained on {known.name}: "
            "give puzzles of that kind"
        )
    check_board(model.config, puzzles)
    if not len(puzzles.test):
        raise UserError(
            f"{puzzles.path} has no test puzzles: prepare it with a --val-fraction, or give --file"
        )


def check_votes(puzzles: Puzzles, votes: int) -> None:
    """Any sudoku or maze has symmetries; of an ARC task a model knows only the variants of its training."""
    most = puzzles.manifest.variants
    if puzzles.kind.family == "arc" and votes > most:
        raise UserError(
            f"--votes {votes}: {puzzles.path} was prepared with --variants {most}; "
            f"give --votes {most} or fewer"
        )


def counted_votes(
    model: LanguageModel, puzzles: Puzzles, command: Command, limit: int, how: Any, display: Display
) -> dict[str, Any]:
    voting = display.task("voting", command.votes, "symmetries")
    attempts = ATTEMPTS.get(puzzles.kind.family, 1)
    right = vote(
        model,
        puzzles,
        votes=command.votes,
        attempts=attempts,
        limit=limit,
        batch_size=command.batch_size,
        **how,
        progress=voting.update,
    )
    return {"votes": command.votes, "attempts": attempts, **share(right)}


def about(
    path: Path, model: LanguageModel, puzzles: Puzzles, training: TrainConfig, found: Solving
) -> dict[str, Any]:
    halts = found.halts(training.halting)
    last, hard = after(found, -1), difficulties(puzzles, len(found))
    return {
        "model": str(path),
        "puzzles": f"{'' if puzzles.path.is_file() else 'test puzzles of '}{puzzles.path}",
        "kind": puzzles.kind.name,
        "boards": len(found),
        "available": len(puzzles.test),
        "segments": len(found.right),
        "trained_segments": training.segments,
        "trained_depth": model.depth,
        "counted": training.cells,
        "halting": training.halting,
        "solved": {name: value for name, value in last.items() if name != "cells"},
        "cells": last["cells"],
        "halted": {**share(found.at(halts)), "segments": float(halts.mean())},
        "by_segment": [{"segment": s + 1, **after(found, s)} for s in range(len(found.right))],
        "by_difficulty": {by: grouped(found, ratings, halts) for by, ratings in hard.items()},
    }


def difficulties(puzzles: Puzzles, count: int) -> dict[str, np.ndarray]:
    """How hard the first boards are, by what each number is: their ratings, and what is plain to see."""
    kind, source, test = puzzles.kind, puzzles.manifest.source, puzzles.test
    plain, ratings = plain_ratings(kind, test.inputs, test.labels)[:count], test.ratings[:count]
    # rated by our solver if generated or read from lines; a table's ratings may be anybody's
    ours = kind.family == "sudoku" and (source.startswith(f"{kind.name} ") or source.endswith(".txt"))
    if np.array_equal(ratings, plain) and not ours:
        return {PLAINLY[kind.family]: plain}
    return {"search nodes" if ours else "rating": ratings, PLAINLY[kind.family]: plain}


def grouped(found: Solving, ratings: np.ndarray, halts: np.ndarray) -> list[dict[str, Any]]:
    """In groups of about equal size, from easy to hard."""
    edges = np.unique(np.quantile(ratings, [0, 0.25, 0.5, 0.75, 1], method="nearest"))
    ends = [*(edges[1:-1] - 1), edges[-1]]
    rows = []
    for low, high in zip(edges, ends, strict=False):  # each begins with a rating that there is
        mine = (ratings >= low) & (ratings <= high)
        segments = {"segments": float(halts[mine].mean())}
        rows.append({"from": int(low), "to": int(high), **after(found, -1, mine), **segments})
    return rows


def after(found: Solving, segment: int, boards: np.ndarray | slice = slice(None)) -> dict[str, Any]:
    """What is right after a segment: whole boards, and cells."""
    return {**share(found.right[segment][boards]), "cells": mean_share(found.cells[segment][boards])}


def share(right: np.ndarray) -> dict[str, Any]:
    found = Accuracy(int(right.sum()), len(right))
    low, high = found.interval
    return {"right": found.right, "of": found.problems, "share": found.share, "low": low, "high": high}


def mean_share(shares: np.ndarray) -> dict[str, float | None]:
    """Of cells: those of one board are not independent, so the interval is that of a mean over boards. Boards
    that agree, as one board does, do not say how far others would vary.
    """
    found = interval(shares)
    if np.ptp(shares) == 0:
        return {"share": found.mean, "low": None, "high": None}
    return {"share": found.mean, "low": max(0.0, found.low), "high": min(1.0, found.high)}


# --- showing ------------------------------------------------------------------------------------------------


def lines(answer: dict[str, Any]) -> Iterator[str]:
    """Tables for a terminal."""

    def table(head: str, rows: dict[str, dict[str, Any]]) -> str:
        cells = [[name, shown(row), shown(row["cells"])] for name, row in rows.items()]
        return aligned([[head, "solved", "cells right"], *cells])

    halted, last = answer["halted"], answer["by_segment"][-1]
    for by, groups in answer["by_difficulty"].items():
        rows = [[by, "boards", "solved", "cells right", "segments"]]
        for row in [*groups, last | {"segments": halted["segments"]}]:
            low, high = row.get("from", "all"), row.get("to", "all")
            name = str(low) if low == high else f"{low} – {high}"
            rows.append([name, str(row["of"]), shown(row), shown(row["cells"]), f"{row['segments']:.1f}"])
        yield aligned(rows) + "\n"
    marked = {1, 2, 4, 8, 16, 32, 64, last["segment"]}
    by_segment = [row for row in answer["by_segment"] if row["segment"] in marked]
    yield table("segment", {str(row["segment"]): row for row in by_segment})
    if len(answer["by_depth"]) > 1:
        by_depth = {row["depth"]: row for row in answer["by_depth"]}
        trained = {answer["trained_depth"]: " (trained)"}
        yield "\n" + table("depth", {f"{n}{trained.get(n, '')}": by_depth[n] for n in sorted(by_depth)})
    yield ""
    if answer["halting"] != "fixed":
        yield f"halting by q: {shown(halted)} solved in {halted['segments']:.1f} segments"
    if "votes" in answer:
        votes = answer["votes"]
        attempts = f", {votes['attempts']} attempts" if votes["attempts"] > 1 else ""
        yield f"by a vote of {votes['votes']} symmetries{attempts}: {shown(votes)} solved"
    some = f", first {answer['boards']:,} of {answer['available']:,}"
    yield f"{answer['kind']}, {answer['puzzles']}{some if answer['boards'] < answer['available'] else ''}:"
    givens = "included" if answer["counted"] == "all" else "left out"
    yield f"boards, givens {givens}, and unknown cells, after {answer['segments']} segments [95 % interval]"


def shown(row: dict[str, Any]) -> str:
    if row["low"] is None:
        return f"{100 * row['share']:.1f} % [–]"
    return percent(row["share"], row["low"], row["high"])


def play(kind: Kind, found: Solving, board: int) -> Iterator[str]:
    """A board as given, and after every segment that changed it: what changed, and what is wrong."""
    yield f"board {board + 1}"
    yield kind.drawing(found.inputs[board])
    given, counts, before = ~found.unknown[board], found.labels[board] != IGNORE, found.inputs[board]
    since = 0  # the segment that changed something last
    for s, (guess, wrong) in enumerate(zip(found.answers[:, board], found.wrong[:, board], strict=True), 1):
        after = np.where(given & ~counts, found.inputs[board], guess)
        changed = after != before
        if changed.any():
            spoilt = (given & (after != found.inputs[board])).sum()
            state = f"{count_of(wrong)} wrong" if wrong.any() else "solved"
            state += f", {spoilt} of them given" if spoilt else ""
            yield f"\nsegment {s}: {state}; {moves(kind, before, after)}"
            marks = np.where(counts, 1 + changed + 2 * wrong, 0)
            yield beside(kind.drawing(after), replace(kind, symbols=MARKS).drawing(marks))
            since = s
        before = after
    first, last = since + 1, len(found.answers)
    if first <= last:
        yield f"\nsegment{f's {first} to' if first < last else ''} {last}: no change"


def moves(kind: Kind, before: np.ndarray, after: np.ndarray) -> str:
    """What changed: each cell, if they are few."""
    changed, marks = after != before, kind.symbols
    if changed.sum() > LISTED:
        return f"{count_of(changed)} filled or changed"
    where = np.flatnonzero(changed).tolist()
    return ", ".join(f"{place(kind, cell)} {marks[before[cell]]}→{marks[after[cell]]}" for cell in where)


def beside(left: str, right: str) -> str:
    """Two drawings, one beside the other if both fit, otherwise below it."""
    lines, others = left.split("\n"), right.split("\n")
    width = max(map(len, lines)) + 4
    if width + max(map(len, others)) > WIDTH:
        return f"{left}\n\n{right}"
    pairs = zip_longest(lines, others, fillvalue="")
    return "\n".join(f"{line:<{width}}{other}".rstrip() for line, other in pairs)


def count_of(cells: np.ndarray) -> str:
    return f"{cells.sum()} cell{'' if cells.sum() == 1 else 's'}"


def place(kind: Kind, cell: int) -> str:
    return f"r{cell // kind.columns + 1}c{cell % kind.columns + 1}"
