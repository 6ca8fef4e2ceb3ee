"""The command line as a whole: help, versions, and bad input in one line with exit code 2."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
import torch

import srmlab
from srmlab.cli import COMMANDS, main, no_memory


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int | str | None, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    out, err = capsys.readouterr()
    return stop.value.code, out, err


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("help",)])
def test_the_overview_names_every_command(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    for name, summary in COMMANDS.items():
        assert f"  {name} " in out
        assert summary in out
    assert max(map(len, out.splitlines())) <= 80


def test_the_version_is_the_packages(capsys):
    assert run(capsys, "--version") == (0, f"srmlab {srmlab.__version__}\n", "")


@pytest.mark.parametrize("option", [["--import", "{}"], ["--import={}"]])
def test_a_file_is_imported_before_help_too_and_its_name_may_follow_an_equals_sign(capsys, tmp_path, option):
    file = tmp_path / f"own_{len(option)}.py"
    file.write_text("print('imported')")
    given = [part.format(file) for part in option]
    assert run(capsys, *given, "--version") == (0, f"imported\nsrmlab {srmlab.__version__}\n", "")
    code, out, _ = run(capsys, *given, "--help")
    assert code == 0
    assert "usage: srmlab" in out


def test_what_the_encoding_of_the_output_lacks_is_escaped(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help"])
    sys.stdout.flush()
    assert not stop.value.code
    assert b"\\u2026" in written.getvalue()  # …


def test_the_package_can_be_run_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "srmlab", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"srmlab {srmlab.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_shows_an_example(capsys, name):
    code, out, err = run(capsys, name, "--help")
    assert (code, err) == (0, "")
    assert f"usage: srmlab {name}" in out
    assert "Example" in out
    assert f"    srmlab {name}" in out[out.index("Example") :]
    assert all(len(line) <= 80 for line in out[out.index("\n\n") : out.index("Example")].splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inof"], "srmlab inof: no such command; did you mean 'info'?"),
        (
            ["generate", "--pretrained", "sodoku"],
            "srmlab generate: give either a run, such as runs/nano, or --pretrained (srm-nano or sudoku); "
            "did you mean 'sudoku'?",
        ),
        (
            ["generate", "--pretrained=sudoku"],
            f"srmlab generate: {srmlab.pretrained.folder('sudoku')} is a puzzle model and does not generate "
            "text: use `srmlab solve`",
        ),
        (
            ["solve", "--pretrained"],
            f"srmlab solve: {srmlab.pretrained.folder()} does not come with its training data: give --data "
            "DIR, or --pretrained sudoku for a model of puzzles",
        ),
        (["--import"], "srmlab: --import needs a Python file: srmlab --import my_model.py train …"),
        (["--import="], "srmlab: --import needs a Python file: srmlab --import my_model.py train …"),
        (
            ["info", "--import", "mine.py", "mine"],
            "srmlab info: --import goes before the command: srmlab --import FILE info …",
        ),
        (
            ["circuit", "--pretrained", "--prompt", "a", "--out", "."],
            "srmlab circuit: --out . is a folder: give a file",
        ),
        (
            ["circuit", "--pretrained", "--prompt", "a", "--out", "a.js", "--view", "a.js"],
            "srmlab circuit: --out and --view are both a.js: give two files",
        ),
        (["xyzzy"], "srmlab xyzzy: no such command; `srmlab --help` lists the commands"),
        (["info", "srm-bse"], "srmlab info: no preset is called 'srm-bse'; did you mean 'srm-base'?"),
        (["info", "?"], "srmlab info: no preset is called '?'; `srmlab presets` lists them"),
        (["info"], "srmlab info: NAME missing; `srmlab info --help` shows the options"),
        (
            ["info", "gpt2", "hrm"],
            "srmlab info: Unrecognized options: hrm; `srmlab info --help` shows the options",
        ),
        (["presets", "--jsn"], "srmlab presets: Unrecognized options: --jsn; did you mean '--json'?"),
        (
            ["generate", "srm-nanno"],
            "srmlab generate: srm-nanno does not exist: give a run, a checkpoint, an export or a preset; "
            "did you mean 'srm-nano'?",
        ),
        (
            ["evaluate", "--pretrained", "maze"],
            "srmlab evaluate: give either a run, such as runs/nano, or --pretrained (srm-nano or sudoku)",
        ),
        (
            ["resume", __file__],
            f"srmlab resume: {__file__} is not a run (it has no run.json): "
            "give the --out of an `srmlab train`",
        ),
        (
            ["resume", "runs/none", "--steps", "900"],
            "srmlab resume: --steps would change the result of a run that is resumed: `srmlab train "
            "--init-from RUN --steps …` starts a new run from its weights",
        ),
        (["demo", "--tokens", "0"], "srmlab demo: --tokens 0: must be at least 2"),
        (["bench", "--threads", "0"], "srmlab bench: --threads 0: must be at least 1"),
        (
            ["analyze", "--pretrained", "--lens-tokens", "0"],
            "srmlab analyze: --lens-tokens 0: must be at least 1",
        ),
        (
            ["circuit", "--pretrained", "--prompt", "", "--out", "graph.json"],
            "srmlab circuit: --prompt is empty: give some text",
        ),
        (
            ["report", "--pretrained", "--out", "."],
            "srmlab report: --out . is a folder: give a file, such as report.html",
        ),
        (
            ["sweep", "family", "--slurm", "timeout_min=5"],
            "srmlab sweep: --slurm is for --on slurm; leave it out",
        ),
        (
            ["bench", "decoding", "--base-tokens", "9"],
            "srmlab bench: --base-tokens is for the bench analyses; leave it out",
        ),
        (
            ["evaluate", "srm-nano", "--tokens", "0"],  # by its name, as in Python
            "srmlab evaluate: 0 tokens are fewer than one window: give 256 or more",
        ),
        (
            ["train", "srm-nanno", "--data", "x", "--out", "y"],
            "srmlab train: no preset is called 'srm-nanno'; did you mean 'srm-nano'?",
        ),
    ],
)
def test_bad_input_is_one_line_on_stderr_and_exit_code_2(capsys, arguments, message):
    assert run(capsys, *arguments) == (2, "", message + "\n")


def test_memory_that_runs_out_is_one_line_and_exit_code_2(capsys):
    message = "srmlab info: out of memory: use a smaller batch, context or model\n"
    assert run(capsys, "info", "srm-nano", "--set", "vocab_size=1000000000000000000") == (2, "", message)
    for allocate in (torch.empty, np.empty):
        with pytest.raises((RuntimeError, MemoryError)) as full:
            allocate(10**15)
        assert no_memory(full.value)
    assert not no_memory(RuntimeError("shapes do not match"))


def test_a_value_that_cannot_be_read_is_one_line_that_names_the_option(capsys):
    code, out, err = run(capsys, "demo", "--tokens", "many")
    assert (code, out) == (2, "")
    assert err.startswith("srmlab demo: ")
    assert "--tokens" in err
    assert "'many'" in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_the_installed_command_answers_and_fails_like_the_function():
    command = [sys.executable, "-c", "from srmlab.cli import main; main()"]
    failed = subprocess.run([*command, "presests"], capture_output=True, text=True, timeout=60)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr == "srmlab presests: no such command; did you mean 'presets'?\n"


@pytest.mark.parametrize(
    "name", ["", "prepare", "analyze", "explore", "evaluate", "solve", "generate", "export"]
)
def test_help_does_not_wait_for_torch(name):
    code = (
        "import sys\n"
        "from srmlab.cli import main\n"
        "try:\n"
        f"    main({[*filter(None, [name]), '--help']!r})\n"
        "finally:\n"
        "    assert 'torch' not in sys.modules\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
