"""`srmlab solve` for a puzzle model: what it counts, what it shows, what it refuses."""

from __future__ import annotations

import csv
import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

import srmlab
from srmlab.cli import main
from srmlab.cli.solve_puzzles import mean_share, play, shown
from srmlab.errors import Notice, UserError
from srmlab.models import HRMConfig
from srmlab.models.loss import IGNORE
from srmlab.puzzles import PuzzleConfig, evaluation_puzzles, find_kind, open_puzzles, prepare_puzzles
from srmlab.puzzles.kinds import EMPTY
from srmlab.puzzles.symmetries import random_symmetries
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


def with_notice(*arguments: object, capsys) -> tuple[dict, str]:
    """The answer, and the one line on the side."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", Notice)
        with pytest.raises(SystemExit) as ended:
            main(["solve", *map(str, arguments), "--json"])
    out = capsys.readouterr()
    assert ended.value.code == 0, out.err
    assert out.err.count("\n") == 1, out.err
    return json.loads(out.out), out.err.strip()


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
    with pytest.raises(SystemExit) as ended:
        main(["solve", str(tmp_path / "run"), "--file", "mine.txt"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "srmlab solve: --file is for sudokus and mazes, not for ARC: give --data with prepared tasks\n"
    )
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
    assert list(answer["by_difficulty"]) == ["search nodes", "empty cells"]
    for groups in answer["by_difficulty"].values():
        assert sum(row["of"] for row in groups) == len(found)
    empty = (found.inputs == EMPTY).sum(1)
    for row in answer["by_difficulty"]["empty cells"]:
        mine = (empty >= row["from"]) & (empty <= row["to"])
        assert (row["of"], row["right"]) == (mine.sum(), found.right[-1][mine].sum())
    assert answer["by_depth"][0]["depth"] == 2


def test_depths_and_segments_are_as_asked(home, capsys):
    answer = json.loads(
        run(home / "run", "--json", "--depth", 1, 4, "--segments", 5, "--problems", 6, capsys=capsys)
    )
    assert [row["depth"] for row in answer["by_depth"]] == [2, 1, 4]
    assert len(answer["by_segment"]) == 5
    assert answer["boards"] == 6


def test_the_help_says_which_depths_are_run(home, capsys):
    said = " ".join(run("--help", capsys=capsys).replace("│", " ").split())
    assert "default: as trained for puzzles, powers of two to twice that for text" in said
    answer = json.loads(run(home / "run", "--json", capsys=capsys))
    assert [row["depth"] for row in answer["by_depth"]] == [answer["trained_depth"]]


def test_a_board_is_shown_with_what_each_segment_changed(home, capsys):
    out = run(home / "run", "--show", capsys=capsys)
    assert out.startswith("board 1\n")
    assert "\nbeside a board: + changed in this segment, x wrong, X both\n" in out
    assert "cells wrong" in out
    assert "95 % interval" in out
    found = answers(home)
    given = ~found.unknown[0]
    assert np.array_equal(found.inputs[0][given], found.labels[0][given])


SUDOKU = find_kind("sudoku:4x4")
SOLUTION = np.array([int(digit) + 1 for digit in "2134342143121243"])


def sudoku(*answered: np.ndarray, counted: str = "all") -> Solving:
    """A board whose first row is asked for, and what each segment answers."""
    unknown = np.arange(16) < 4
    labels = np.where(unknown, SOLUTION, SOLUTION if counted == "all" else IGNORE)
    board = np.where(unknown, EMPTY, SOLUTION)
    return Solving(
        board[None], labels[None], unknown[None], np.stack(answered)[:, None], np.zeros((len(answered), 1, 2))
    )


def test_a_board_with_a_changed_given_is_shown_as_the_table_counts_it_unsolved():
    spoilt = SOLUTION.copy()
    spoilt[[0, 15]] = 5, 2  # one unknown cell and one given
    only_given = SOLUTION.copy()
    only_given[15] = 2
    found = sudoku(spoilt, only_given, SOLUTION)
    assert found.right[:, 0].tolist() == [False, False, True]
    said = "\n".join(play(SUDOKU, found, 0))
    assert "segment 1: 2 cells wrong, 1 of them given; " in said
    assert "segment 2: 1 cell wrong, 1 of them given; r1c1 4→2\n" in said
    assert "segment 3: solved; r4c4 1→3\n" in said


def test_a_board_is_marked_with_what_changed_and_what_is_wrong():
    first = SOLUTION.copy()
    first[[0, 1]] = 5, 5
    second = SOLUTION.copy()
    second[[0, 3]] = 5, 3
    shown = "\n".join(play(SUDOKU, sudoku(first, second), 0)).split("\n")
    assert shown[shown.index("segment 1: 2 cells wrong; r1c1 .→4, r1c2 .→4, r1c3 .→3, r1c4 .→4") + 1] == (
        "4 4 | 3 4    X X | + +"
    )
    assert shown[shown.index("segment 2: 2 cells wrong; r1c2 4→1, r1c4 4→2") + 1] == "4 1 | 3 2    x + | . X"


@pytest.mark.parametrize(("segments", "told"), [(1, None), (2, "segment 2"), (4, "segments 2 to 4")])
def test_segments_that_change_nothing_are_told_together(segments, told):
    said = "\n".join(play(SUDOKU, sudoku(*[SOLUTION] * segments), 0))
    assert said.endswith(f"\n{told}: no change") if told else "no change" not in said


def test_given_cells_that_were_not_trained_are_shown_as_given():
    other = SOLUTION.copy()
    other[15] = 2
    found = sudoku(other, counted="unknown")
    assert found.right.all()
    said = "\n".join(play(SUDOKU, found, 0))
    assert "segment 1: solved; " in said
    assert "given" not in said


def test_boards_that_the_run_was_trained_on_are_told(home, tmp_path, capsys):
    puzzles = open_puzzles(home / "data")
    turned = random_symmetries(puzzles.kind, 3, np.arange(3)).apply(puzzles.train.inputs[:3])
    lines = [puzzles.kind.line(board) for board in (*turned, *puzzles.test.inputs[:2])]
    (tmp_path / "mine.txt").write_text("\n".join(lines) + "\n")
    said = f"boards are, up to symmetry, puzzles that {home / 'run'} was trained on"
    _, notice = with_notice(home / "run", "--file", tmp_path / "mine.txt", capsys=capsys)
    assert notice == f"srmlab solve: 3 of 5 {said}"
    _, notice = with_notice(home / "run", "--file", tmp_path / "mine.txt", "--problems", 2, capsys=capsys)
    assert notice == f"srmlab solve: 2 of 2 {said}"
    (tmp_path / "files").mkdir()
    for side, boards in {"train": lines[3:], "test": lines[:3]}.items():
        (tmp_path / "files" / f"{side}.csv").write_text("\n".join(["question", *boards]) + "\n")
    prepare_puzzles(PuzzleConfig(f"sudoku:{tmp_path}/files", tmp_path / "other"))
    _, notice = with_notice(home / "run", "--data", tmp_path / "other", capsys=capsys)
    assert notice == f"srmlab solve: 3 of 3 {said}"


def test_what_cannot_be_checked_against_the_training_data_is_told(home, tmp_path, capsys):
    shutil.copytree(home / "run", tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    about["data"]["path"] = str(tmp_path / "gone")
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    (tmp_path / "run" / "run.sha256").unlink()
    run(tmp_path / "run", "--data", home / "data", capsys=capsys)  # the very data, moved
    prepare_puzzles(PuzzleConfig("sudoku:4x4", tmp_path / "other", count=30, seed=5, held_out=0.5))
    _, notice = with_notice(tmp_path / "run", "--data", tmp_path / "other", capsys=capsys)
    assert notice.endswith(f"could not be checked: its training data is not at {tmp_path / 'gone'}")


def test_difficulty_is_headed_by_what_the_ratings_are(home, tmp_path, capsys):
    puzzles = open_puzzles(home / "data")
    lines = [puzzles.kind.line(board) for board in puzzles.test.inputs]
    (tmp_path / "mine.txt").write_text("\n".join(lines) + "\n")
    with open(tmp_path / "mine.csv", "w", newline="") as file:
        csv.writer(file).writerows(
            [("question", "rating"), *((line, 1000 + n) for n, line in enumerate(lines))]
        )
    for side in ("train", "test"):
        ignored = shutil.ignore_patterns("*ratings*")
        shutil.copytree(home / "data" / side, tmp_path / "theirs" / side, ignore=ignored)
    prepare_puzzles(PuzzleConfig(f"hrm:{tmp_path}/theirs", tmp_path / "hrm"))

    def headings(*options: object) -> list[str]:
        tables = run(home / "run", *options, capsys=capsys).splitlines()
        return [line.partition("  boards")[0].strip() for line in tables if "  boards" in line]

    assert headings() == ["search nodes", "empty cells"]
    assert headings("--file", tmp_path / "mine.txt") == ["search nodes", "empty cells"]
    assert headings("--file", tmp_path / "mine.csv") == ["rating", "empty cells"]
    assert headings("--data", tmp_path / "hrm") == ["empty cells"]


def test_puzzles_that_are_left_out_are_told(home, capsys):
    total = len(open_puzzles(home / "data").test)
    assert f"first 2 of {total}:" in run(home / "run", "--problems", 2, capsys=capsys)
    assert "first" not in run(home / "run", "--problems", total, capsys=capsys)


def test_the_interval_of_cells_is_students_and_one_board_has_none(home, capsys):
    assert shown(mean_share(np.array([0.5]))) == "50.0 % [–]"
    assert shown(mean_share(np.ones(100))) == "100.0 % [–]"  # not [100.0, 100.0]: the next may fail
    few = mean_share(np.array([0.4, 0.5, 0.6]))
    assert few["high"] == pytest.approx(0.5 + 4.3027 * 0.1 / 3**0.5, abs=1e-4)
    answer = json.loads(run(home / "run", "--problems", 1, "--json", capsys=capsys))
    assert (answer["cells"]["low"], answer["cells"]["high"]) == (None, None)


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


def test_of_equally_frequent_answers_the_vote_takes_the_one_with_the_higher_mean_probability(
    home, monkeypatch
):
    """Right twice at 0.82; wrong once at 0.99995 and once at 0.002, whose mean q is the higher one."""
    puzzles = open_puzzles(home / "data")
    calls = iter([(False, 10.0), (False, -6.0), (True, 1.5), (True, 1.5)])

    def answered(model, batches, kind, **_):  # noqa: ARG001
        [batch] = batches
        inputs, labels = batch.inputs.numpy(), batch.labels.numpy()
        right, q = next(calls)
        given = labels if right else np.full_like(labels, 1)  # all empty, under every symmetry
        return Solving(inputs, labels, kind.unknown(inputs), given[None], np.full((1, 1, 2), q))

    monkeypatch.setattr("srmlab.training.solving.solve", answered)
    assert vote(None, puzzles, votes=4, attempts=1, limit=1, batch_size=1, segments=1).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "hops"], "is for text"),
        (["--segments", "0"], "must be at least 1"),
        (["--votes", "0"], "must be at least 1"),
        (["--file", "nowhere.txt"], "nowhere.txt"),
        (["--file", "mine.txt", "--data", "other"], "--file and --data cannot be combined"),
        (["--seed", "7"], "--seed is for text"),
        (["--show", "--json"], "--show and --json cannot be combined"),
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
    how = ("--data", home / "data", "--segments", 3)
    one = json.loads(run(home / "run", *how, "--json", capsys=capsys))
    other, notice = with_notice(tmp_path / "export", *how, capsys=capsys)
    assert notice.endswith("could not be checked: it does not say what it was trained on")
    assert one["by_segment"] == other["by_segment"]


def test_the_tables_of_a_model_that_solves_everything_fit_80_columns(capsys):
    shown = run("--pretrained", "sudoku", "--problems", 4, "--segments", 2, capsys=capsys)
    assert "100.0 % [" in shown
    tables, _, _ = shown.partition("halting")
    assert max(map(len, tables.splitlines())) <= 80
