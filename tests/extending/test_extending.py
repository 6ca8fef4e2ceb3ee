"""One of each extension, each in one file outside the package, through every command that should take it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GUIDE = HERE.parents[1] / "docs" / "extending.md"
EXAMPLES = ("looped.py", "mean_connection.py", "state_length.py", "surprisal.js", "parity.py")
SMALL = ("--steps", "4", "--warmup", "1", "--batch-size", "2", "--context", "32", "--eval-tokens", "64")

# Commands one after the other in one process, as a user would type them; each prints its JSON or its text.
RUNNER = """
import contextlib, io, json, sys
from srmlab.cli import main
for argv in json.loads(sys.argv[1]):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            main(argv)
        except SystemExit as stop:
            if stop.code:
                sys.exit(f"{argv}: exit {stop.code}")
    print(json.dumps(out.getvalue()))
"""


def run(folder: Path, extension: str, *commands: list[object], code: str = RUNNER) -> list[str]:
    """What each command prints, with the file imported as `srmlab --import` and SRMLAB_IMPORT do."""
    arguments = json.dumps([[str(word) for word in command] for command in commands])
    environment = os.environ | {"SRMLAB_IMPORT": str(HERE / extension), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def explore(folder: Path, path: str) -> None:
    """`srmlab explore` answers with its page, the view of one's own among its files, and stops when asked."""
    words = ["explore", path, "--port", "0", "--no-browser", "--view", str(HERE / "surprisal.js")]
    environment = os.environ | {"SRMLAB_IMPORT": str(HERE / "looped.py"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "srmlab", *words]
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            lines = iter(server.stdout.readline, "")
            address = next(found[0] for line in lines if (found := re.search(r"http://[\w.:]+", line)))
            for file in ("", "/views/own.js"):
                with urllib.request.urlopen(f"{address}{file}", timeout=30) as answer:
                    assert answer.status == 200
        finally:
            server.send_signal(signal.SIGINT)
            assert server.wait(timeout=30) in (0, 130)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("extending")
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    lines = (" ".join(words[(i * k) % 10] for k in range(1, 12)) for i in range(300))
    (folder / "text").mkdir()
    for i, line in enumerate(lines):
        (folder / "text" / f"{i}.txt").write_text(f"{i} {line}", encoding="utf-8")
    return folder


@pytest.mark.slow
def test_an_architecture_goes_through_every_command(folder):
    _, info, presets, *_ = run(
        folder,
        "looped.py",
        ["prepare", "text", "--out", "data", "--tokenizer", "byte", "--val-fraction", "0.2"],
        ["info", "looped-nano"],
        ["presets", "--json"],
        ["train", "looped-nano", "--data", "data", "--out", "run", "--model.vocab-size", "257", *SMALL,
         "--checkpoint-every", "2"],
    )  # fmt: skip
    assert "4 times one block" in info
    assert "looped-nano" in {row["name"] for row in json.loads(presets)}
    last = folder / "run" / "checkpoints" / "step-4" / "model.safetensors"
    before = last.read_bytes()
    for file in sorted(last.parent.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    last.parent.rmdir()
    _, evaluated, written, analyzed, solved, *_ = run(
        folder,
        "looped.py",
        ["resume", "run"],
        ["evaluate", "run", "--json"],
        ["generate", "run", "--prompt", "one two", "--max-new-tokens", "4"],
        ["analyze", "run", "--tokens", "128", "--json", "--formats", "png"],
        ["evaluate", "run/checkpoints/step-4", "--json"],
        ["export", "run", "--to", "safetensors", "--out", "plain"],
        ["export", "run", "--to", "hf", "--out", "hf"],
        ["evaluate", "plain", "--data", "data", "--json"],
        ["evaluate", "hf", "--data", "data", "--json"],
        ["report", "run", "--prompt", "one two three", "--view", HERE / "surprisal.js"],
    )
    assert last.read_bytes() == before  # resumed, bitwise
    assert json.loads(evaluated)["loss"] == json.loads(solved)["loss"]
    assert written.startswith("one two")
    assert {"drift", "logit_lens", "depth"} <= set(json.loads(analyzed)["results"])
    report = (folder / "run" / "report.html").read_text(encoding="utf-8")
    assert "Surprisal, large" in report
    assert "logit lens" in report.lower()
    explore(folder, "run")


def test_an_architecture_that_was_not_imported_is_named(tmp_path):
    code = """
import sys, srmlab
try:
    srmlab.config_from_dict({"architecture": "looped"})
except srmlab.ConfigError as error:
    print(repr(str(error)))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert "architecture = 'looped': must be one of" in done.stdout
    assert "--import" in done.stdout


def with_looped(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import looped\n{code}"
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)


def test_an_architecture_that_reads_its_config_runs_at_another_depth(tmp_path):
    code = """
import srmlab, torch
model, tokens = srmlab.build(srmlab.preset("looped-nano")), torch.arange(8)[None]
deeper = model.at_depth(6)
assert torch.equal(model(tokens, depth=6), deeper(tokens))
trained = [m(tokens, tokens, progress=0.0, depth=6)["loss"] for m in (model, deeper)]
print(torch.equal(*trained), torch.equal(model(tokens), deeper(tokens)))
"""
    done = with_looped(code, tmp_path)
    assert done.stdout.strip() == "True False", done.stderr


def test_a_gradient_that_an_architecture_cannot_cut_is_refused(tmp_path):
    code = """
import srmlab
config = srmlab.preset("looped-nano")
assert config.at_depth(6).loops == config.at_depth(6, 6).loops == 6
try:
    config.at_depth(6, 2)
except ValueError as error:
    print(repr(str(error)))
"""
    done = with_looped(code, tmp_path)
    assert "gradient_depth = 2: the gradient of looped goes through 6 of 6 levels" in done.stdout, done.stderr


@pytest.mark.slow
def test_a_connection_is_a_value_of_the_config(folder):
    trained = ["train", "srm-nano", "--data", "means", "--out", "means-run", "--model.connection", "mean"]
    _, info, _, analyzed = run(
        folder,
        "mean_connection.py",
        ["prepare", "text", "--out", "means", "--tokenizer", "byte", "--val-fraction", "0.2"],
        ["info", "srm-nano", "--set", "connection=mean"],
        [*trained, "--model.vocab-size", "257", *SMALL],
        [
            "analyze",
            "means-run",
            "--tokens",
            "64",
            "--json",
            "--formats",
            "png",
            "--only",
            "ablation",
            "drift",
        ],
    )
    assert "c = mean of all streams" in info
    assert {"ablation", "drift"} <= set(json.loads(analyzed)["results"])


NANO = ["srm-nano", "hrm-nano", "gpt2-nano", "ouro-nano", "hyper-nano", "huginn-nano", "mor-nano"]


@pytest.fixture(scope="module")
def analyzed(folder) -> dict[str, str]:
    """By preset, what `srmlab analyze` prints; all of them from one process, which starts in seconds."""
    commands: list[list[object]] = [
        ["prepare", "text", "--out", "lengths", "--tokenizer", "byte", "--val-fraction", "0.2"]
    ]
    for preset in NANO:
        out, only = f"run-{preset}", ["--only", "state_length"]
        commands += [
            ["train", preset, "--data", "lengths", "--out", out, "--model.vocab-size", "257", *SMALL],
            ["analyze", out, "--tokens", "64", "--json", "--formats", "png", *only],
        ]
    return dict(zip(NANO, run(folder, "state_length.py", *commands)[2::2], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("preset", NANO)
def test_an_analysis_is_measured_saved_and_drawn_on_every_architecture(folder, analyzed, preset):
    found = json.loads(analyzed[preset])["results"]["state_length"]
    assert "length" in found["finding"]
    assert all(Path(folder / file).is_file() for file in (found["file"], *found["figures"]))


@pytest.mark.slow
def test_a_task_is_prepared_and_solved(folder):
    _, _, solved = run(
        folder,
        "parity.py",
        ["prepare", "task:parity:6-8:400", "--out", "parity", "--tokenizer", "byte"],
        ["train", "srm-nano", "--data", "parity", "--out", "parity-run", "--model.vocab-size", "257",
         "--answers-only", *SMALL],
        ["solve", "parity-run", "--problems", "5", "--json", "--depth", "8"],
    )  # fmt: skip
    answer = json.loads(solved)
    assert answer["task"] == "parity"
    assert {row["difficulty"] for row in answer["results"]} == {6, 7, 8}


def test_the_guide_shows_exactly_these_files():
    blocks = dict(
        re.findall(r"`(\w+\.\w+)`[^\n]*:\n\n```\w+\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.S)
    )
    assert set(blocks) == set(EXAMPLES)
    for name in EXAMPLES:
        assert blocks[name] == (HERE / name).read_text(encoding="utf-8"), name


def test_the_examples_use_public_names_only():
    for name in EXAMPLES:
        for module in re.findall(r"from (srmlab[\w.]*) import", (HERE / name).read_text(encoding="utf-8")):
            assert module.count(".") <= 1, f"{name} reaches into {module}"
