"""`srmlab patch`: prompts in, a grid out, and one line for what cannot be patched."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import srmlab
from srmlab.analysis import log_probability
from srmlab.cli import main
from srmlab.data import byte_tokenizer
from subjects import OF_BYTES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    model = srmlab.build(OF_BYTES)
    return srmlab.save(model, tmp_path_factory.mktemp("exports") / "bytes", tokenizer=byte_tokenizer())


@pytest.fixture
def pairs(tmp_path) -> Path:
    rows = [
        {"clean": "the sun", "corrupt": "the sea", "answer": " is", "other": "!"},
        {"clean": "a sun", "corrupt": "a sea", "answer": "?", "other": " is"},
    ]
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


def run(capsys, *arguments: object) -> tuple[int | str | None, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["patch", *map(str, arguments)])
    out, err = capsys.readouterr()
    return stop.value.code, out, err


def test_json_has_the_grid_that_patch_grid_measures(capsys, folder, pairs):
    code, out, _ = run(capsys, folder, "--pairs", pairs, "--metric", "log-probability", "--json")
    answer = json.loads(out)
    assert code == 0
    model, tokenizer = srmlab.load(folder), byte_tokenizer()
    right = tokenizer([" ", "?"]).tokens[:, 0]
    clean, corrupt = tokenizer(["the sun", "a sun"]), tokenizer(["the sea", "a sea"])
    found = srmlab.patch_grid(model, clean, corrupt, log_probability(right))
    assert answer["positions"] == ["−7", "−6", "−5", "−4", "−3", "−2", "−1"]
    assert len(answer["cells"]) == found.share.size == 3 * 3 * 7
    for cell in answer["cells"]:
        at = cell["layer"], cell["stream"], cell["position"]
        assert cell["share"] == pytest.approx(found.share[at], abs=1e-6)
        assert cell["share_error"] is not None or np.isnan(found.standard_error("share")[at])


def test_it_writes_the_result_and_its_figures_into_a_new_folder(capsys, folder, tmp_path):
    out = tmp_path / "patched"
    arguments = (folder, "--clean", "ab", "--corrupt", "ac", "--answer", "x", "--other", "y", "--out", out)
    code, shown, _ = run(capsys, *arguments, "--over", "layer", "position")
    assert code == 0
    assert "logit-difference of 'x' against 'y'" in shown
    found = srmlab.analysis.load(out / "patch_grid")
    assert found.positions == ("0 a", "1 b|c")
    assert found.summary() in shown
    assert {path.suffix for path in out.iterdir()} == {".npz", ".json", ".txt", ".png", ".svg", ".pdf"}
    code, _, err = run(capsys, *arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert "exists and is not overwritten" in err


def test_paths_are_patched_with_their_own_figure(capsys, folder, pairs, tmp_path):
    code, shown, _ = run(capsys, folder, "--pairs", pairs, "--paths", "--out", tmp_path / "paths")
    assert code == 0
    assert "S0 → S" in shown or "S1 → S" in shown or "S2 → S" in shown
    assert (tmp_path / "paths" / "path_grid.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--clean", "a"), "give --clean TEXT and --corrupt TEXT, or --pairs FILE"),
        (("--clean", "ab", "--corrupt", "abc"), "'ab' has 2 tokens and 'abc' 3"),
        (("--clean", "ab", "--corrupt", "ab"), "begin with the same token; give --answer and --other"),
        (("--pairs", "none.jsonl"), "cannot read none.jsonl"),
        (("--pairs", "none.jsonl", "--clean", "a"), "--pairs and --clean cannot be combined"),
        (("--clean", "ab", "--corrupt", "ac", "--answer", ""), "an empty answer"),
        (("--paths", "--over", "layer"), "--over is not for --paths"),
        (("--metric", "kl", "--answer", "c"), "--answer is for the other metrics"),
        (("--metric", "log-probability", "--other", "c"), "--other is for --metric logit-difference"),
    ],
)
def test_what_cannot_be_patched_is_one_line(capsys, folder, arguments, message):
    code, _, err = run(capsys, folder, *arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err


def test_a_line_of_the_file_that_cannot_be_read_is_named(capsys, folder, tmp_path):
    file = tmp_path / "pairs.jsonl"
    for line, message in (("{", "line 2: give {"), ('{"clean": 1, "corrupt": "a"}', "line 2: every value")):
        file.write_text('{"clean": "a", "corrupt": "b"}\n' + line)
        code, _, err = run(capsys, folder, "--pairs", file)
        assert code == 2
        assert message in err


def test_the_snippets_of_the_guide_run(capsys):
    guide = (ROOT / "docs/patching.md").read_text(encoding="utf-8")
    code = "\n".join(block.split("```")[0] for block in guide.split("```python\n")[1:])
    exec(compile(code, "docs/patching.md", "exec"), {})
    assert "gradient against exact" in capsys.readouterr().out


def test_a_puzzle_model_is_refused_as_one(capsys):
    code, out, err = run(capsys, "--pretrained", "sudoku", "--clean", "a", "--corrupt", "b")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "is a puzzle model and reads no text" in err


def test_the_names_of_the_strongest_cells_begin_in_one_column(capsys):
    code, out, _ = run(capsys, "--pretrained", "--clean", "of the United", "--corrupt", "of the wanted")
    named = [line.index("layers.") for line in out.splitlines() if "stream S" in line]
    assert code == 0
    assert len(named) == 8
    assert len(set(named)) == 1
