"""`srmlab solve` for a puzzle model: what it counts, what it shows, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import srmlab
from srmlab.cli import main
from srmlab.errors import UserError
from srmlab.models import HRMConfig
from srmlab.models.loss import IGNORE
from srmlab.puzzles import PuzzleConfig, evaluation_puzzles, open_puzzles, prepare_puzzles
from srmlab.training import TrainConfig, train
from srmlab.training.solving import Solving, solve, vote

MODEL = HRMConfig(
    vocab_size=11, context=82, causal=False, puzzle_positions=1, dim=16, heads=2, head_dim=8, mlp_dim=16,
    low_blocks=1, high_blocks=1, low_cycles=1, high_cycles=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("solve")
    prepare_puzzles(PuzzleConfig("sudoku:4x4", home / "data", count=60, held_out=0.3))
    config = TrainConfig(
        steps=3,
        batch_size=4,
        warmup=0,
        segments=3,
        halting="trm",
        eval_tokens=100,
        peak_flops=1e11,
        device="cpu",
    )
    train(config, MODEL, home / "data", home / "run", show=False)
    return home


def run(*arguments: object, capsys) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["solve", *map(str, arguments)])
    out = capsys.readouterr()
    assert ended.value.code == 0, out.err
    return out.out


def answers(home: Path) -> Solving:
    puzzles = open_puzzles(home / "data")
    return solve(srmlab.load(home / "run"), evaluation_puzzles(puzzles, 5), puzzles.kind, segments=3)


def test_arc_tasks_are_trained_on_and_solved_in_two_attempts(tmp_path, capsys):
    grid = [[[c, 1, 2], [3, c, 4]] for c in range(4)]
    for number, side in enumerate(("training", "evaluation")):
        pairs = [{"input": g, "output": g[::-1]} for g in grid[2 * number : 2 * number + 2]]
        (tmp_path / "arc" / side).mkdir(parents=True)
        (tmp_path / "arc" / side / f"{number}a.json").write_text(
            json.dumps({"train": pairs[:1], "test": pairs[1:]})
        )
    puzzles = prepare_puzzles(PuzzleConfig(f"arc:{tmp_path}/arc", tmp_path / "data", variants=2))
    model = MODEL.replace(vocab_size=12, context=901, puzzle_ids=puzzles.num_identifiers)
    config = TrainConfig(steps=1, batch_size=2, warmup=0, segments=1, peak_flops=1e11, device="cpu")
    with pytest.raises(
        UserError, match=r"set --model.vocab-size 12 --model.context 901 --model.puzzle-ids 5$"
    ):
        train(config, MODEL, tmp_path / "data", tmp_path / "run", show=False)
    train(config, model, tmp_path / "data", tmp_path / "run", show=False)
    answer = json.loads(run(tmp_path / "run", "--votes", 2, "--json", capsys=capsys))
    assert (answer["kind"], answer["boards"], answer["votes"]["attempts"]) == ("arc", 1, 2)
    with pytest.raises(SystemExit) as ended:
        main(["solve", str(tmp_path / "run"), "--votes", "3"])
    assert ended.value.code == 2
    assert "--variants 2; give --votes 2 or fewer" in capsys.readouterr().err
    shown = run(tmp_path / "run", "--show", capsys=capsys)
    assert "answer's cells" in shown
    assert "3 1 2 |\n3 3 4 |" in shown


def test_what_is_counted_is_what_the_last_segment_answers(home, capsys):
    found = answers(home)
    answer = json.loads(run(home / "run", "--json", "--batch-size", 7, capsys=capsys))
    assert answer["boards"] == len(found)
    assert answer["solved"]["right"] == int(found.right[-1].sum())
    assert [row["segment"] for row in answer["by_segment"]] == [1, 2, 3]
    assert answer["cells"]["share"] == pytest.approx(found.cells[-1].mean())
    assert sum(row["of"] for row in answer["by_difficulty"]) == len(found)
    assert answer["by_depth"][0]["depth"] == 2


def test_depths_and_segments_are_as_asked(home, capsys):
    answer = json.loads(
        run(home / "run", "--json", "--depth", 1, 4, "--segments", 5, "--problems", 6, capsys=capsys)
    )
    assert [row["depth"] for row in answer["by_depth"]] == [2, 1, 4]
    assert len(answer["by_segment"]) == 5
    assert answer["boards"] == 6


def test_a_board_is_shown_with_what_each_segment_changed(home, capsys):
    out = run(home / "run", "--show", capsys=capsys)
    assert out.startswith("board 1\n")
    assert "cells wrong" in out
    assert "95 % interval" in out
    found = answers(home)
    given = ~found.unknown[0]
    assert np.array_equal(found.inputs[0][given], found.labels[0][given])


def test_your_own_puzzles_are_read_and_their_solutions_found(home, tmp_path, capsys):
    puzzles = open_puzzles(home / "data")
    line = puzzles.kind.line(puzzles.test.inputs[0])
    (tmp_path / "mine.txt").write_text(line + "\n")
    answer = json.loads(run(home / "run", "--file", tmp_path / "mine.txt", "--json", capsys=capsys))
    assert answer["boards"] == 1
    assert answer["solved"]["right"] == int(answers(home).right[-1][0])


def test_puzzles_of_a_file_are_voted_on_as_those_of_a_folder(home, tmp_path, capsys):
    puzzles = open_puzzles(home / "data")
    lines = [puzzles.kind.line(board) for board in puzzles.test.inputs]
    (tmp_path / "mine.txt").write_text("\n".join(lines) + "\n")
    files = ((), ("--file", tmp_path / "mine.txt"))
    own, other = (
        json.loads(run(home / "run", *file, "--votes", 3, "--json", capsys=capsys)) for file in files
    )
    assert other["votes"] == own["votes"]
    shipped = json.loads(
        run("--pretrained", "sudoku", "--problems", 2, "--segments", 2, "--votes", 2, "--json", capsys=capsys)
    )
    assert shipped["votes"]["of"] == 2


def some(right: list[list[bool]], q: list[list[float]]) -> Solving:
    """Boards of one cell, right or not in every segment."""
    shape = np.array(right).shape
    return Solving(
        inputs=np.ones((shape[1], 1), int),
        labels=np.full((shape[1], 1), 2),
        unknown=np.ones((shape[1], 1), bool),
        answers=np.where(right, 2, 3)[..., None],
        q=np.stack([np.array(q), np.zeros(shape)], -1),
    )


def test_q_halts_where_it_first_says_so_and_at_the_last_segment_anyway():
    found = some([[True, False], [False, False], [False, True]], [[1, -1], [1, -1], [-1, -1]])
    assert found.halts("trm").tolist() == [1, 3]
    assert found.halts("fixed").tolist() == [3, 3]
    assert found.at(found.halts("trm")).tolist() == [True, True]
    assert found.right[-1].tolist() == [False, True]


def test_cells_that_do_not_count_are_neither_right_nor_wrong():
    found = some([[False]], [[0]])
    found.labels[:] = IGNORE
    assert found.right.all()


def test_a_vote_takes_the_most_frequent_answer_brought_back(home, monkeypatch):
    """A solver that is wrong on the board as it is, and right on every symmetry of it."""
    puzzles = open_puzzles(home / "data")

    def answered(model, batches, kind, *, segments, unknown_only=False, **_):  # noqa: ARG001
        whole = list(batches)
        inputs, labels = (
            np.concatenate([getattr(b, name).numpy() for b in whole]) for name in ("inputs", "labels")
        )
        wrong = np.array_equal(inputs, puzzles.test.inputs[:4])
        given = np.full_like(labels, 2) if wrong else labels
        return Solving(inputs, labels, kind.unknown(inputs), given[None], np.zeros((1, len(inputs), 2)))

    monkeypatch.setattr("srmlab.training.solving.solve", answered)
    how = {"attempts": 1, "limit": 4, "batch_size": 3, "segments": 1}
    assert not vote(None, puzzles, votes=1, **how).any()
    assert vote(None, puzzles, votes=5, **how).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "hops"], "is for text"),
        (["--segments", "0"], "must be at least 1"),
        (["--votes", "0"], "must be at least 1"),
        (["--file", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_what_cannot_be_is_one_line(home, arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["solve", str(home / "run"), *arguments])
    err = capsys.readouterr().err
    assert ended.value.code == 2
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["evaluate", "generate", "export"])
def test_what_is_for_text_says_so(home, command, tmp_path, capsys):
    more = ["--out", str(tmp_path / "hf")] if command == "export" else []
    with pytest.raises(SystemExit) as ended:
        main([command, str(home / "run"), *more])
    err = capsys.readouterr().err
    assert ended.value.code == 2
    assert "puzzle model" in err
    assert err.count("\n") == 1


def test_an_export_solves_the_same(home, tmp_path, capsys):
    srmlab.save(srmlab.load(home / "run"), tmp_path / "export")
    how = ("--data", home / "data", "--segments", 3, "--json")
    one, other = (json.loads(run(path, *how, capsys=capsys)) for path in (home / "run", tmp_path / "export"))
    assert one["by_segment"] == other["by_segment"]


def test_the_tables_of_a_model_that_solves_everything_fit_80_columns(capsys):
    shown = run("--pretrained", "sudoku", "--problems", 4, "--segments", 2, capsys=capsys)
    assert "100.0 % [" in shown
    tables, _, _ = shown.partition("halting")
    assert max(map(len, tables.splitlines())) <= 80
