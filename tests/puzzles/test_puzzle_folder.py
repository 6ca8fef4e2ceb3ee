"""Folders of puzzles: made, sealed, opened, read as an endless sequence."""

import json
from pathlib import Path

import numpy as np
import pytest

from srmlab.cli import main
from srmlab.data import DataError
from srmlab.puzzles import (
    PuzzleBatches,
    PuzzleConfig,
    evaluation_puzzles,
    open_puzzles,
    prepare_puzzles,
    variant_of,
)
from srmlab.puzzles.symmetries import orbits


@pytest.fixture(scope="module")
def puzzles(tmp_path_factory):
    out = tmp_path_factory.mktemp("puzzles") / "sudoku4"
    return prepare_puzzles(PuzzleConfig("sudoku:4x4", out, held_out=0.2, count=300))


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["prepare", *arguments])
    return stop.value.code or 0


@pytest.mark.parametrize(("source", "count"), [("sudoku:4x4", 200), ("sudoku:6x6", 40), ("maze:6", 100)])
def test_no_puzzle_nor_a_symmetry_of_one_is_on_both_sides(source, count, tmp_path):
    puzzles = prepare_puzzles(PuzzleConfig(source, tmp_path / "out", held_out=0.3, count=count))
    sides = [set(orbits(puzzles.kind, b.inputs, b.labels)) for b in (puzzles.train, puzzles.test)]
    assert min(map(len, sides)) > 0
    assert not sides[0] & sides[1]
    assert len(sides[0]) + len(sides[1]) == count  # and no two of one side are symmetries


def test_another_seed_leaves_a_puzzle_on_its_side(puzzles, tmp_path):
    again = prepare_puzzles(PuzzleConfig("sudoku:4x4", tmp_path / "b", held_out=0.2, count=300, seed=1))
    test = set(orbits(puzzles.kind, puzzles.test.inputs, puzzles.test.labels))
    assert not test & set(orbits(again.kind, again.train.inputs, again.train.labels))
    assert again.fingerprint != puzzles.fingerprint


def test_preparing_twice_gives_the_same_bytes(puzzles, tmp_path):
    again = prepare_puzzles(PuzzleConfig("sudoku:4x4", tmp_path / "b", held_out=0.2, count=300))
    assert again.fingerprint == puzzles.fingerprint


def test_examples_are_a_pure_function_of_seed_and_index(puzzles):
    examples = PuzzleBatches(puzzles, seed=3)
    batch = examples.batch(first=500, count=40)
    for index in (500, 517, 539):
        board, answer, identifier = PuzzleBatches(puzzles, seed=3).example(index)
        assert board.equal(batch.inputs[index - 500])
        assert answer.equal(batch.labels[index - 500])
        assert identifier == 0
    assert examples.at([539, 500]).inputs.equal(batch.inputs[[39, 0]])
    assert not PuzzleBatches(puzzles, seed=4).batch(500, 40).inputs.equal(batch.inputs)


def test_an_epoch_without_augmentation_is_every_training_puzzle_once(puzzles):
    examples = PuzzleBatches(puzzles, seed=0, augment=False)
    count = len(puzzles.train)
    assert examples.epoch_examples == count
    for epoch in (0, 1):
        seen = examples.batch(epoch * count, count).inputs.numpy()
        assert sorted(map(bytes, seen.astype(np.uint8))) == sorted(map(bytes, puzzles.train.inputs))
    assert not examples.batch(0, count).inputs.equal(examples.batch(count, count).inputs)


def test_augmentation_changes_boards_but_not_their_orbits(puzzles):
    plain = PuzzleBatches(puzzles, seed=0, augment=False).batch(0, 30)
    changed = PuzzleBatches(puzzles, seed=0).batch(0, 30)
    assert not plain.inputs.equal(changed.inputs)
    keys = [orbits(puzzles.kind, b.inputs.numpy(), b.labels.numpy()) for b in (plain, changed)]
    assert keys[0] == keys[1]


def test_givens_are_in_the_answer_and_unknown_cells_are_the_empty_ones(puzzles):
    unknown = puzzles.kind.unknown(puzzles.test.inputs)
    assert np.array_equal(puzzles.test.inputs[~unknown], puzzles.test.labels[~unknown])
    assert (unknown.sum(1) <= puzzles.test.ratings).all()
    assert (puzzles.test.labels[unknown] > 1).all()


def test_evaluation_goes_through_the_test_puzzles_in_order_and_variants_come_back(puzzles):
    batches = list(evaluation_puzzles(puzzles, batch_size=25))
    assert sum(map(len, batches)) == len(puzzles.test)
    assert np.array_equal(batches[0].inputs, puzzles.test.inputs[:25])
    changed = next(evaluation_puzzles(puzzles, batch_size=25, variant=3))
    assert not changed.inputs.equal(batches[0].inputs)
    back = variant_of(puzzles, 3).inverse().apply(changed.labels.numpy())
    assert np.array_equal(back, batches[0].labels)
    assert sum(map(len, evaluation_puzzles(puzzles, batch_size=10, limit=15))) == 15


def test_the_folder_is_as_hrm_and_trm_read_it(puzzles):
    for side, boards in (("train", puzzles.train), ("test", puzzles.test)):
        about = json.loads((puzzles.path / side / "dataset.json").read_text())
        assert about["seq_len"] == 16
        assert about["vocab_size"] == 6
        assert about["total_groups"] == len(boards)
        assert about["sets"] == ["all"]
        arrays = {
            name: np.load(puzzles.path / side / f"all__{name}.npy")
            for name in ("inputs", "labels", "puzzle_identifiers", "puzzle_indices", "group_indices")
        }
        assert arrays["inputs"].shape == arrays["labels"].shape == (len(boards), 16)
        assert arrays["puzzle_indices"][-1] == len(boards)
    assert json.loads((puzzles.path / "identifiers.json").read_text()) == ["<blank>"]


@pytest.mark.parametrize("name", ["train/all__labels.npy", "manifest.json", "test/dataset.json"])
def test_a_flipped_bit_is_noticed(name, tmp_path):
    out = tmp_path / "p"
    prepare_puzzles(PuzzleConfig("maze:5", out, held_out=0.3, count=20))
    open_puzzles(out)
    content = bytearray((out / name).read_bytes())
    content[-9] ^= 1
    (out / name).write_bytes(bytes(content))
    with pytest.raises(DataError, match=Path(name).name):
        open_puzzles(out)


def test_a_damaged_seal_is_noticed(tmp_path):
    out = tmp_path / "p"
    prepare_puzzles(PuzzleConfig("maze:5", out, held_out=0.3, count=20))
    seal = (out / "SHA256SUMS").read_text()
    (out / "SHA256SUMS").write_text(seal.replace("a", "b", 1))
    with pytest.raises(DataError, match="damaged"):
        open_puzzles(out)


def test_ranges_of_empty_cells_and_ratings_are_kept(tmp_path):
    puzzles = prepare_puzzles(
        PuzzleConfig("sudoku:6x6", tmp_path / "a", held_out=0.2, count=20, empty="10-12", rating="11-12")
    )
    assert set((puzzles.train.inputs == 1).sum(1)) == {11, 12}
    assert set(puzzles.train.ratings.tolist()) == {11, 12}


def test_a_sudoku_that_cannot_be_emptied_as_far_as_asked_is_not_taken(tmp_path):
    puzzles = prepare_puzzles(PuzzleConfig("sudoku:4x4", tmp_path / "a", 0, count=20, empty="12"))
    assert set((puzzles.train.inputs == 1).sum(1)) == {12}


def test_a_kind_with_fewer_orbits_than_asked_gives_all_it_has(tmp_path):
    puzzles = prepare_puzzles(PuzzleConfig("sudoku:4x4", tmp_path / "a", 0, count=500, empty="1-1"))
    assert 0 < len(puzzles.train) < 20


def test_the_command_says_what_it_made(tmp_path, capsys):
    assert call("maze:5", "--out", str(tmp_path / "m"), "--count", "30", "--val-fraction", "0.3") == 0
    said = capsys.readouterr().out
    assert "maze:5, 25 cells, 6 values" in said
    assert open_puzzles(tmp_path / "m").kind.name == "maze:5"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sudoku:5x5"], "no kind of puzzle is called 'sudoku:5x5'"),
        (["maze:2"], "3 to 64 cells on a side; write maze:3 to maze:64"),
        (["sudoku:4x4", "--empty", "9-3"], "write LOW-HIGH"),
        (["sudoku:4x4", "--empty", "16"], "from 1 to 15"),
        (["sudoku:4x4", "--empty", "15"], "empty 15-15: no such puzzle in 2,000 draws; widen the range"),
        (["sudoku:4x4", "--seed", "-1"], "--seed -1: give 0 or more"),
        (["maze:9", "--empty", "3-4"], "is for sudokus"),
        (["sudoku:4x4", "--count", "0"], "ask for 1 or more"),
        (["sudoku:4x4", "--val-fraction", "1"], "val_fraction is 1.0"),
        (["sudoku:4x4", "maze:5"], "give only one SOURCE"),
        (["sudoku:4x4", "--count", "20", "--rating", "90-99"], "widen the range"),
        (["sotu", "--count", "5"], "--count is for puzzles"),
        (["sudoku:mine.txt", "--seed", "3"], "--seed is for what is generated, and sudoku:mine.txt is only"),
    ],
)
def test_bad_requests_are_one_line_and_write_nothing(arguments, says, tmp_path, capsys):
    assert call(*arguments, "--out", str(tmp_path / "out")) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_not_overwritten(puzzles, capsys):
    assert call("sudoku:4x4", "--out", str(puzzles.path)) == 2
    assert "never overwritten" in capsys.readouterr().err
