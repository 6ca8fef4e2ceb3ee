"""The sudoku model that comes with the package: small, whole, and solving most unseen puzzles."""

import json

import pytest

import srmlab
from srmlab.cli import main
from srmlab.cli.train import defaults
from srmlab.training.config import identity
from srmlab.training.run import RunConfig

FOLDER = srmlab.pretrained.folder("sudoku")


def solve(*arguments: str, capsys) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["solve", *arguments])
    out = capsys.readouterr()
    assert ended.value.code == 0, out.err
    return out.out


def test_it_is_small_and_names_no_machine():
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 2_000_000
    assert json.loads((FOLDER / "run.json").read_text())["data"]["path"] == "data/sudoku4"


def test_it_solves_unseen_puzzles_and_the_first_segment_alone_fewer(capsys):
    answer = json.loads(solve("--pretrained", "sudoku", "--json", capsys=capsys))
    assert answer["boards"] == 108
    assert answer["solved"]["share"] > 0.9
    assert answer["by_segment"][0]["right"] <= answer["solved"]["right"]


def test_its_boards_are_shown_by_name_and_by_path(capsys):
    assert solve("--pretrained", "sudoku", "--show", "--problems", "3", capsys=capsys).startswith("board 1")
    assert srmlab.load("sudoku").num_parameters() == 72_322


def test_its_record_is_that_of_its_recipe():
    again = defaults(["--config", str(FOLDER / "train.toml")])
    saved = RunConfig.read(FOLDER)
    assert identity(again.training) == identity(saved.training)
    assert again.model == saved.model
