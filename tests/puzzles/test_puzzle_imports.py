"""Other people's puzzles: lines, tables, ARC's tasks, folders of HRM and TRM."""

import json

import numpy as np
import pytest
import torch

from srmlab.cli import main
from srmlab.data import DataError
from srmlab.errors import Notice
from srmlab.puzzles import PuzzleBatches, PuzzleConfig, open_puzzles, prepare_puzzles, variant_of
from srmlab.puzzles.batches import evaluation_puzzles
from srmlab.puzzles.files import read_puzzles
from srmlab.puzzles.symmetries import arc_orbit, grid_of, orbits
from srmlab.training.objective import open_data

EASY = ["1..4 ..2. .3.. 4..1", "...4 3... ..1. .2..", "12.. .... ..43 ..2.", ".2.4 3... .... 4.1. "]
LINES = [line.replace(" ", "") for line in EASY]
SOLVED = "2134342143121243"  # of the second
FULL = "".join("123456789"[(3 * row + row // 3 + column) % 9] for row in range(9) for column in range(9))
UNDECIDED = ".....5.8....6.1.43..........1.5........1.6...3.......553.....61........4........."  # no solution


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["prepare", *arguments])
    return stop.value.code or 0


def test_lines_become_puzzles_with_solutions_and_ratings(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("# a remark\n" + LINES[1] + "\n\n" + LINES[1].replace(".", "0") + "   # again\n")
    puzzles = prepare_puzzles(PuzzleConfig(f"sudoku:{file}", tmp_path / "out", held_out=0))
    assert len(puzzles.train) == 1
    assert puzzles.manifest.dropped == 1
    assert puzzles.kind.line(puzzles.train.inputs[0]) == LINES[1]
    assert puzzles.kind.line(puzzles.train.labels[0]) == SOLVED
    assert puzzles.train.ratings.tolist() == [12]


def test_a_table_keeps_its_ratings_and_a_split_that_others_made(tmp_path):
    made = prepare_puzzles(PuzzleConfig("sudoku:6x6", tmp_path / "made", held_out=0.4, count=30))
    line = made.kind.line
    folder = tmp_path / "tables"
    folder.mkdir()
    for side, boards in (("train", made.train), ("test", made.test)):
        pairs = [(line(q), line(a)) for q, a in zip(boards.inputs, boards.labels, strict=True)]
        if side == "train":  # a symmetry of a test puzzle among the training puzzles
            other = variant_of(made, 5)
            pairs.append((line(other.apply(made.test.inputs)[0]), line(other.apply(made.test.labels)[0])))
        rows = [f"here,{q},{a},{number}" for number, (q, a) in enumerate(pairs)]
        (folder / f"{side}.csv").write_text("\n".join(["source,question,answer,rating", *rows]) + "\n")
    read = prepare_puzzles(PuzzleConfig(f"sudoku:{folder}", tmp_path / "read"))
    assert read.kind.name == "sudoku:6x6"
    assert np.array_equal(read.train.inputs, made.train.inputs)
    assert np.array_equal(read.test.labels, made.test.labels)
    assert read.train.ratings.tolist() == list(range(len(made.train)))
    assert read.manifest.dropped == 1


def test_blank_lines_of_a_table_are_passed_over(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text(f"question,answer\n\n{LINES[1]},{SOLVED}\n  \n,\n\n")
    _, examples = read_puzzles(file, "sudoku")
    assert len(examples) == 1


def test_mazes_come_from_a_table_with_blanks(tmp_path):
    file = tmp_path / "mazes.csv"
    file.write_text("question,answer\nS   ## # ##   G ,\n#S#  # # G#    ,#S# o# #oG#oooo\n", newline="")
    assert call(f"maze:{file}", "--out", str(tmp_path / "bad"), "--val-fraction", "0") == 2
    file.write_text("question,answer\nS# ## # #G  ## #,S#\n".replace(",S#", ","), newline="")
    assert call(f"maze:{file}", "--out", str(tmp_path / "bad"), "--val-fraction", "0") == 2
    file.write_text("question,answer\nS #    # #  G###,S # o  #o#  G###\n", newline="")
    puzzles = prepare_puzzles(PuzzleConfig(f"maze:{file}", tmp_path / "out", held_out=0))
    assert puzzles.kind.name == "maze:4"
    assert puzzles.train.ratings.tolist() == [3]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("12345\n", "line 1: it has 5 characters; a sudoku has 16, 36 or 81"),
        (f"{LINES[1]}\n\n1{LINES[1][1:-1]}x\n", "line 3: 'x' is not a value of a sudoku:4x4"),
        (f"{LINES[1]}\n{'.' * 36}\n", "line 2: a sudoku:6x6 among sudoku:4x4"),
        (f"{LINES[1]}\n11{'.' * 14}\n", "line 2: it has no solution"),
        (f"{'.' * 16}\n", "line 1: it has more than one solution"),
        (f"{UNDECIDED}\n", "line 1: whether it has one solution is not decided within 200,000 moves"),
        ("# nothing\n", "contains no puzzles"),
    ],
)
def test_a_bad_line_is_named_with_its_number_and_the_reason(content, says, tmp_path, capsys):
    file = tmp_path / "bad.txt"
    file.write_text(content)
    assert call(f"sudoku:{file}", "--out", str(tmp_path / "out")) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (f"{LINES[1]},{SOLVED[:-1]},3", "line 2: the answer has 15 characters, the question 16"),
        (f"{LINES[1]},{SOLVED[::-1]},3", "line 2: its answer changes a given"),
        (f"{LINES[1]},2114342143121243,3", "line 2: its answer breaks the rules"),
        (f"{LINES[1]},{SOLVED},hard", "line 2: the rating 'hard' is not a whole number"),
        (f"{LINES[1]},{SOLVED},--5", "line 2: the rating '--5' is not a whole number"),
        (f"{LINES[1]},{SOLVED},99999999999", "line 2: the rating '99999999999' is not a whole number"),
        (f"{'.' * 16},{SOLVED},3", "line 2: it has more than one solution"),
        (f"{'.' * 81},{FULL},", "line 2: it has more than one solution"),  # rating it would never end
        (f"{'.' * 131_073},,", "line 2: it is not a row of a table (field larger than field limit"),
    ],
)
def test_a_bad_row_of_a_table_likewise(row, says, tmp_path, capsys):
    file = tmp_path / "bad.csv"
    file.write_text(f"question,answer,rating\n{row}\n")
    assert call(f"sudoku:{file}", "--out", str(tmp_path / "out")) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("question", "answer", "says"),
    [
        ("S # ##  G", "S # ##  G", "its answer is not a shortest path, which has 3 o"),
        ("S # ##  G", "So#o##ooG", "its answer is not a shortest path, which has 3 o"),
        ("S # ##  G", "S #oo#ooG", "its answer changes more than open cells into o"),
        ("S # ##  G", "o #o##ooG", "its answer changes more than open cells into o"),
        ("S       G", "", "it has 6 shortest ways, and no answer says which"),
        ("S       G", "Soo    oG", "its answer is not a shortest path, which has 3 o"),
        ("S#######G", "", "no way leads from S to G"),
        ("S  G", "", "it has 4 characters; a maze has a square number of them, 9 to 4096"),
    ],
)
def test_the_answer_of_a_maze_is_a_shortest_way(question, answer, says, tmp_path, capsys):
    file = tmp_path / "bad.csv"
    file.write_text(f"question,answer\nS # ##  G,S #o##ooG\n{question},{answer}\n")
    assert call(f"maze:{file}", "--out", str(tmp_path / "out")) == 2
    assert f"line 3: {says}; correct or remove the line\n" in capsys.readouterr().err


def test_of_several_shortest_ways_the_answer_says_which(tmp_path):
    file = tmp_path / "open.csv"
    file.write_text("question,answer\nS       G,S  o  ooG\n")
    kind, ((_, answer, rating),) = read_puzzles(file, "maze")
    assert (kind.line(answer).replace(".", " "), rating) == ("S  o  ooG", 4)


def test_a_table_without_questions_and_a_file_that_is_not_there(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("puzzle,solution\n1,2\n")
    assert call(f"sudoku:{tmp_path}/t.csv", "--out", str(tmp_path / "out")) == 2
    assert "no column `question`" in capsys.readouterr().err
    assert call("sudoku:nowhere.txt", "--out", str(tmp_path / "out")) == 2
    assert "no such file" in capsys.readouterr().err
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00")
    assert call(f"sudoku:{tmp_path}/b.txt", "--out", str(tmp_path / "out")) == 2
    assert "is not text" in capsys.readouterr().err


# HRM's and TRM's folders


def test_a_folder_in_hrms_format_is_read_and_written_without_a_change(tmp_path):
    made = prepare_puzzles(PuzzleConfig("sudoku:4x4", tmp_path / "made", held_out=0.3, count=40, copies=3))
    (made.path / "SHA256SUMS").unlink()
    (made.path / "manifest.json").unlink()  # what is left is theirs, but for the ratings
    again = prepare_puzzles(PuzzleConfig(f"hrm:{made.path}", tmp_path / "again"))
    assert again.kind == made.kind
    for side in ("train", "test"):
        names = ("inputs", "labels", "ratings", "puzzle_identifiers", "puzzle_indices", "group_indices")
        for file in [*(f"all__{name}.npy" for name in names), "dataset.json"]:
            old, new = (folder.path / side / file for folder in (made, again))
            assert old.read_bytes() == new.read_bytes(), file


def test_what_hrms_builder_writes_is_read(tmp_path):
    """As its sudoku builder makes them: int64 boards, groups of a puzzle and its augmentations."""
    made = prepare_puzzles(PuzzleConfig("sudoku:9x9", tmp_path / "made", held_out=0, count=4, empty="20-30"))
    for side, rows, group in (("train", [0, 0, 1, 1], 2), ("test", [2, 3], 1)):
        folder = tmp_path / "hrm" / side
        folder.mkdir(parents=True)
        about = {"pad_id": 0, "ignore_label_id": 0, "blank_identifier_id": 0, "vocab_size": 11, "seq_len": 81}
        about |= {"num_puzzle_identifiers": 1, "total_groups": 2, "mean_puzzle_examples": 1, "sets": ["all"]}
        (folder / "dataset.json").write_text(json.dumps(about))
        np.save(folder / "all__inputs.npy", made.train.inputs[rows].astype(np.int64))
        np.save(folder / "all__labels.npy", made.train.labels[rows].astype(np.int64))
        np.save(folder / "all__puzzle_identifiers.npy", np.zeros(len(rows), np.int32))
        np.save(folder / "all__puzzle_indices.npy", np.arange(len(rows) + 1, dtype=np.int32))
        np.save(folder / "all__group_indices.npy", np.arange(0, len(rows) + 1, group, dtype=np.int32))
    with pytest.raises(
        DataError, match=r"/hrm is a data folder of HRM or TRM: run `srmlab prepare hrm:.*/hrm "
    ):
        open_data(tmp_path / "hrm")  # as `srmlab train --data` does
    read = prepare_puzzles(PuzzleConfig(f"hrm:{tmp_path}/hrm", tmp_path / "read"))
    assert read.kind.name == "sudoku:9x9"
    assert read.train.num_groups == 2
    assert PuzzleBatches(read).epoch_examples == 2  # a group once an epoch, as HRM does
    assert read.train.ratings.tolist() == (made.train.inputs[[0, 0, 1, 1]] == 1).sum(1).tolist()


def test_a_split_that_shares_symmetries_is_kept_but_said(tmp_path):
    made = prepare_puzzles(PuzzleConfig("maze:5", tmp_path / "made", held_out=0.3, count=20))
    boards = np.load(made.path / "test" / "all__inputs.npy")
    answers = np.load(made.path / "test" / "all__labels.npy")
    boards[0], answers[0] = (
        variant_of(made, 2).apply(b[:1])[0] for b in (made.train.inputs, made.train.labels)
    )
    np.save(made.path / "test" / "all__inputs.npy", boards)
    np.save(made.path / "test" / "all__labels.npy", answers)
    with pytest.warns(Notice, match="1 of"):
        prepare_puzzles(PuzzleConfig(f"hrm:{made.path}", tmp_path / "again"))


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("all__inputs.npy", lambda a: a + 100, "row 0 of inputs has a value beyond 0 … 5"),
        ("all__inputs.npy", lambda a: a + 100, "correct it, or make the folder again"),
        ("all__inputs.npy", lambda a: a.astype(float), "all__inputs.npy holds float64, not whole numbers"),
        ("all__labels.npy", lambda a: a.astype(bool), "all__labels.npy holds bool, not whole numbers"),
        ("all__labels.npy", lambda a: a[:-1], "all__labels.npy has"),
        ("all__labels.npy", lambda a: a[:, :-1], "instead of rows × 25"),
        ("all__ratings.npy", lambda a: a[:-1], "all__ratings.npy has"),
        ("all__puzzle_indices.npy", lambda _: np.int32(3), "has the shape () instead of rows"),
        ("all__group_indices.npy", lambda a: a[:-1], "group_indices do not divide"),
        ("all__puzzle_identifiers.npy", lambda a: a + 1, "an identifier is not below 1"),
    ],
)
def test_a_bad_folder_of_hrms_is_one_line(file, change, says, tmp_path, capsys):
    made = prepare_puzzles(PuzzleConfig("maze:5", tmp_path / "made", held_out=0.3, count=20))
    path = made.path / "train" / file
    array = np.array(np.load(path))
    np.save(path, change(array))
    assert call(f"hrm:{made.path}", "--out", str(tmp_path / "out")) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def change_json(path, change):
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **change} if isinstance(change, dict) else change))


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("train/dataset.json", 3, "dataset.json is not a description of a data set"),
        ("test/dataset.json", {"sets": 3}, "sets is 3, not a list of names"),
        ("train/dataset.json", {"sets": []}, "sets is [], not a list of names"),
        ("train/dataset.json", {"seq_len": "16"}, "seq_len is '16', not a whole number"),
        ("train/dataset.json", {"ignore_label_id": "0"}, "ignore_label_id is '0', not a whole number"),
        ("identifiers.json", 3, "identifiers.json is not a list of names"),
    ],
)
def test_a_bad_description_of_hrms_is_one_line(file, change, says, tmp_path, capsys):
    made = prepare_puzzles(PuzzleConfig("maze:5", tmp_path / "made", held_out=0.3, count=20))
    change_json(made.path / file, change)
    assert call(f"hrm:{made.path}", "--out", str(tmp_path / "out")) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_folder_of_hrms_without_training_puzzles_is_refused(tmp_path, capsys):
    made = prepare_puzzles(PuzzleConfig("sudoku:4x4", tmp_path / "made", held_out=0.3, count=20))
    for path in (made.path / "train").glob("*.npy"):
        np.save(path, np.load(path)[: "indices" in path.name])  # of the indices, the 0 they begin with
    assert call(f"hrm:{made.path}", "--out", str(tmp_path / "out")) == 2
    assert "train holds no puzzle" in capsys.readouterr().err


@pytest.mark.parametrize("given", [True, False])
def test_a_sudoku_of_hrms_whose_label_is_wrong_is_named_by_its_row(given, tmp_path, capsys):
    made = prepare_puzzles(PuzzleConfig("sudoku:6x6", tmp_path / "made", held_out=0.3, count=10))
    labels = np.array(made.train.labels)
    cell = int(((made.train.inputs[3] != 1) == given).argmax())
    labels[3, cell] = (labels[3, cell] - 1) % 6 + 2 if given else 1  # another digit, or none
    np.save(made.path / "train" / "all__labels.npy", labels)
    assert call(f"hrm:{made.path}", "--out", str(tmp_path / "out")) == 2
    assert "train: row 3 of labels leaves a cell empty or changes a given" in capsys.readouterr().err


def test_copies_are_symmetries_in_the_group_of_their_puzzle(tmp_path):
    plain = prepare_puzzles(PuzzleConfig("sudoku:6x6", tmp_path / "a", held_out=0.3, count=10))
    copied = prepare_puzzles(PuzzleConfig("sudoku:6x6", tmp_path / "b", held_out=0.3, count=10, copies=4))
    assert len(copied.train) == 5 * len(plain.train)
    assert len(copied.test) == len(plain.test)
    assert copied.train.num_groups == len(plain.train)
    assert len({row.tobytes() for row in copied.train.inputs}) == len(copied.train)
    keys = orbits(copied.kind, copied.train.inputs, copied.train.labels)
    assert keys == [
        key for key in orbits(plain.kind, plain.train.inputs, plain.train.labels) for _ in range(5)
    ]


# ARC


def arc_folder(folder, layout="folders"):
    """Three tasks for training, two for evaluation: grids of several sizes, the answer a flipped input."""
    random = np.random.default_rng(0)

    def pair():
        grid = random.integers(0, 10, random.integers(2, 6, 2))
        return {"input": grid.tolist(), "output": grid[::-1].tolist()}

    tasks = {f"t{k}": {"train": [pair(), pair()], "test": [pair()]} for k in range(5)}
    for number, (name, task) in enumerate(tasks.items()):
        place = folder / (("training" if number < 3 else "evaluation") if layout == "folders" else "")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{name}.json").write_text(json.dumps(task))
    return tasks


def test_arc_tasks_are_divided_as_hrm_does(tmp_path):
    tasks = arc_folder(tmp_path / "arc")
    puzzles = prepare_puzzles(PuzzleConfig(f"arc:{tmp_path}/arc", tmp_path / "out", variants=8))
    assert (len(puzzles.train), len(puzzles.test)) == (3 * 3 + 2 * 2, 2)
    assert puzzles.num_identifiers == 1 + 5 * 8
    assert puzzles.identifiers[:3] == ["<blank>", "t0", "t0#1"]
    assert puzzles.test.identifiers.tolist() == [1 + 3 * 8, 1 + 4 * 8]
    grid = np.array(tasks["t3"]["test"][0]["input"]) + 2
    assert np.array_equal(grid_of(puzzles.test.inputs[0]), grid)
    board = puzzles.test.inputs[0].reshape(30, 30)
    assert (board[grid.shape[0], : grid.shape[1]] == 1).all()  # the edge
    assert board[grid.shape[0], grid.shape[1]] == 0


def test_arc_examples_are_variants_with_their_identifiers_and_votes_come_back(tmp_path):
    arc_folder(tmp_path / "arc", "flat")
    puzzles = prepare_puzzles(PuzzleConfig(f"arc:{tmp_path}/arc", tmp_path / "out", variants=4))
    batch = PuzzleBatches(puzzles, seed=1).batch(0, 60)
    assert set(batch.identifiers.tolist()) <= set(range(1, 21))
    assert len(set(batch.identifiers.tolist())) > 12
    known = {arc_orbit(b, a) for b, a in zip(puzzles.train.inputs, puzzles.train.labels, strict=True)}
    labels = np.where(batch.labels < 0, 0, batch.labels)
    for board, answer in zip(batch.inputs.numpy(), labels, strict=True):
        assert arc_orbit(board, answer) in known
    for variant in range(4):
        (changed,) = evaluation_puzzles(puzzles, batch_size=50, variant=variant)
        assert changed.identifiers.tolist() == (puzzles.test.identifiers + variant).tolist()
        back = variant_of(puzzles, variant).inverse().apply(np.where(changed.labels < 0, 0, changed.labels))
        assert np.array_equal(back, puzzles.test.labels)


def test_arc_that_was_prepared_here_keeps_its_variants_when_it_is_read_again(tmp_path):
    arc_folder(tmp_path / "arc", "flat")
    first = prepare_puzzles(PuzzleConfig(f"arc:{tmp_path}/arc", tmp_path / "out", variants=4, seed=3))
    again = prepare_puzzles(PuzzleConfig(f"hrm:{first.path}", tmp_path / "again"))
    assert (again.manifest.variants, again.manifest.seed) == (4, 3)
    one, other = (next(evaluation_puzzles(puzzles, 50, variant=3)) for puzzles in (first, again))
    assert torch.equal(one.inputs, other.inputs)
    assert torch.equal(one.identifiers, other.identifiers)
    one, other = (PuzzleBatches(puzzles, seed=1).batch(0, 20) for puzzles in (first, again))
    assert torch.equal(one.labels, other.labels)


def test_arc_prizes_files_of_challenges_and_solutions_are_read(tmp_path):
    tasks = arc_folder(tmp_path / "other")
    folder = tmp_path / "kaggle"
    folder.mkdir()
    solutions = {name: [pair.pop("output") for pair in task["test"]] for name, task in tasks.items()}
    (folder / "arc_evaluation_challenges.json").write_text(json.dumps(tasks))
    (folder / "arc_evaluation_solutions.json").write_text(json.dumps(solutions))
    puzzles = prepare_puzzles(PuzzleConfig(f"arc:{folder}", tmp_path / "out"))
    assert (len(puzzles.train), len(puzzles.test)) == (10, 5)
    (folder / "sample_submission.json").write_text('{"t0": [{"attempt_1": [[0]]}]}')  # Kaggle's
    again = prepare_puzzles(PuzzleConfig(f"arc:{folder}", tmp_path / "again"))
    assert np.array_equal(again.train.inputs, puzzles.train.inputs)


def test_arc_in_one_file_is_the_same_as_in_folders(tmp_path):
    arc_folder(tmp_path / "arc")
    parts = {"train": "training", "eval": "evaluation"}
    splits = {
        side: {path.stem: json.loads(path.read_text()) for path in (tmp_path / "arc" / part).glob("*.json")}
        for side, part in parts.items()
    }
    (tmp_path / "arc.json").write_text(json.dumps(splits))
    folders = prepare_puzzles(PuzzleConfig(f"arc:{tmp_path}/arc", tmp_path / "a", variants=2))
    file = prepare_puzzles(PuzzleConfig(f"arc:{tmp_path}/arc.json", tmp_path / "b", variants=2))
    assert file.identifiers == folders.identifiers
    for side in ("train", "test"):
        one, other = getattr(file, side), getattr(folders, side)
        assert np.array_equal(one.inputs, other.inputs)
        assert np.array_equal(one.labels, other.labels)


def test_a_file_that_is_not_arckits_is_one_line(tmp_path, capsys):
    (tmp_path / "arc.json").write_text('{"train": {}}')
    assert call(f"arc:{tmp_path}/arc.json", "--out", str(tmp_path / "out")) == 2
    assert "does not hold tasks under 'train' and 'eval': give a folder" in capsys.readouterr().err


def test_arc_written_out_has_an_identifier_for_every_variant(tmp_path):
    arc_folder(tmp_path / "arc")
    puzzles = prepare_puzzles(PuzzleConfig(f"arc:{tmp_path}/arc", tmp_path / "out", copies=2))
    assert puzzles.manifest.variants == 1
    assert puzzles.num_identifiers == 1 + 5 * 3
    assert len(puzzles.train) == 3 * 13
    assert puzzles.train.num_groups == 5
    assert sorted(set(puzzles.train.identifiers.tolist())) == list(range(1, 16))
    assert open_puzzles(puzzles.path).fingerprint == puzzles.fingerprint
    again = prepare_puzzles(PuzzleConfig(f"hrm:{puzzles.path}", tmp_path / "again"))
    assert again.kind.name == "arc"
    moved = PuzzleBatches(again, seed=2).batch(0, 20)
    assert set(moved.identifiers.tolist()) <= set(range(1, 16))


PAIR = {"input": [[1]], "output": [[2]]}


@pytest.mark.parametrize(
    ("challenges", "solutions", "says"),
    [
        ([], {}, "a_challenges.json does not map names of tasks"),
        ({"t": {"train": [PAIR], "test": [PAIR]}}, [], "a_solutions.json does not map names of tasks"),
        (
            {"t": {"train": [PAIR], "test": [PAIR]}},
            {"t": [[[1]], [[1]]]},
            "are not a list of 1, one for each",
        ),
        ({"t": {"train": [PAIR], "test": [PAIR]}}, {"t": 3}, "are not a list of 1, one for each test"),
        ({"t": {"train": [PAIR], "test": [{"input": [[1]]}]}}, {}, "nothing is left for test: give tasks"),
        ({"t": {"train": [], "test": [PAIR]}}, {}, "nothing is left for train: give tasks"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--copies", "2"]])
def test_challenges_that_are_not_whole_are_one_line(challenges, solutions, says, more, tmp_path, capsys):
    (tmp_path / "arc").mkdir()
    (tmp_path / "arc" / "a_challenges.json").write_text(json.dumps(challenges))
    (tmp_path / "arc" / "a_solutions.json").write_text(json.dumps(solutions))
    assert call(f"arc:{tmp_path}/arc", "--out", str(tmp_path / "out"), *more) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_shared_pair_is_noticed_wherever_it_stands_in_its_task(tmp_path):
    arc_folder(tmp_path / "arc")
    made = prepare_puzzles(PuzzleConfig(f"arc:{tmp_path}/arc", tmp_path / "made"))
    for name in ("inputs", "labels"):
        path = made.path / "test" / f"all__{name}.npy"
        boards = np.array(np.load(path))
        boards[1] = getattr(made.train, name)[2]  # the last pair of the first task
        np.save(path, boards)
    with pytest.warns(Notice, match="1 of 2"):
        prepare_puzzles(PuzzleConfig(f"hrm:{made.path}", tmp_path / "again"))


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ({"train": []}, "no 'test'"),
        ({"train": None, "test": []}, "no 'train' that is a list of pairs"),
        ([1, 2], "no 'train' that is a list of pairs"),
        (
            {"train": [{"input": [[1]]}], "test": []},
            "(output of example 1: it is missing): correct or remove",
        ),
        ({"train": [{"input": [[1]], "output": 3}], "test": []}, "a grid must be a list of rows"),
        ({"train": [{"input": [["a"]], "output": [[1]]}], "test": []}, 'number from 0 to 9, not "a"'),
        ({"train": [{"input": [], "output": [[1]]}], "test": []}, "1 to 30 rows of 1 to 30 colours"),
        (
            {"train": [{"input": [[1, 2]], "output": [[1, 11]]}], "test": []},
            "a colour is a number from 0 to 9",
        ),
        (
            {"train": [{"input": [[1], [1, 2]], "output": [[1]]}], "test": []},
            "task bad is not an ARC task (input of example 1: its rows have different lengths, 1 to 2)",
        ),
        (
            {"train": [], "test": [{"input": [[1]], "output": [[1]]}, {"input": [[1]], "output": [[1], []]}]},
            "(output of test 2: its rows have different lengths, 0 to 1)",
        ),
        ({"train": [{"input": [1, 2], "output": [[1]]}], "test": []}, "is not an ARC task"),
        ({"train": [{"input": [[0] * 31], "output": [[1]]}], "test": []}, "1 to 30 rows"),
    ],
)
def test_a_bad_arc_task_is_named(task, says, tmp_path, capsys):
    (tmp_path / "arc").mkdir()
    (tmp_path / "arc" / "bad.json").write_text(json.dumps(task))
    assert call(f"arc:{tmp_path}/arc", "--out", str(tmp_path / "out")) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "bad.json" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["arc:{there}", "--count", "5"], "--count is for generated puzzles"),
        (["hrm:{there}", "--rating", "1-2"], "--rating is for sudokus and mazes"),
        (["sudoku:4x4", "--variants", "3"], "--variants is for ARC"),
        (["sudoku:4x4", "--copies", "-1"], "--copies of 0 or more"),
        (["hrm:{there}"], "dataset.json is missing"),
        (["arc:{there}"], "holds no task"),
        (["hrm:{there}/mine.txt"], "is not a folder: give a data folder of HRM or TRM"),
        (["hrm:{there}/nothing"], "no such file or folder; write hrm:FOLDER"),
        (["arc:{there}", "--val-fraction", "0.1"], "has a split, which is kept; leave it out"),
        (["hrm:{there}", "--val-fraction", "0.1"], "has a split, which is kept; leave it out"),
        (["sudoku:{there}", "--val-fraction", "0"], "has a split, which is kept; leave it out"),
        (["sudoku:"], "sudoku: names no puzzles: write sudoku:6x6"),
        (["maze:"], "maze: names no puzzles: write maze:9"),
        (["arc:"], "arc: names no puzzles: write arc:FOLDER"),
        (["hrm:"], "hrm: names no puzzles: write hrm:FOLDER"),
    ],
)
def test_options_that_do_not_fit_the_source_are_refused(arguments, says, tmp_path, capsys):
    there = tmp_path / "there"
    there.mkdir()
    (there / "mine.txt").write_text(LINES[1])
    arguments = [argument.format(there=there) for argument in arguments]
    assert call(*arguments, "--out", str(tmp_path / "out")) == 2
    assert says in capsys.readouterr().err
