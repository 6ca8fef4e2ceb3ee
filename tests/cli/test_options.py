"""Options that cannot be read: one line in plain words, with the option that was meant."""

from __future__ import annotations

import dataclasses
import importlib
import re
import warnings
from dataclasses import dataclass
from typing import Literal

import pytest
import tyro.extras

from srmlab.cli import COMMANDS, main
from srmlab.cli.options import OTHER_NAMES, option_names, parse, readings, suggestion
from srmlab.errors import UserError

TRAIN = ("train", "srm-nano", "--data", "x", "--out", "y")


def refused(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    out, err = capsys.readouterr()
    assert (stop.value.code, out, err.count("\n")) == (2, "", 1)
    return err.strip()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--learning-rate", "--lr"),
        ("--learning_rate", "--lr"),
        ("--max-steps", "--steps"),
        ("--epochs", "--steps"),
        ("--grad-clip", "--clip"),
        ("--block-size", "--context"),
        ("--stps", "--steps"),
        ("--batch", "--batch-size"),
        ("--streams", "--model.streams"),
        ("--model.strems", "--model.streams"),
        ("--n-layers", "--model.depth"),
    ],
)
def test_an_option_of_another_tool_or_a_slip_names_ours_in_full(capsys, typed, meant):
    said = refused(capsys, *TRAIN, typed, "3")
    assert said == f"srmlab train: Unrecognized options: {typed}; did you mean '{meant}'?"


@pytest.mark.parametrize(
    ("command", "typed", "meant"),
    [
        ("export", "--output", "--out"),
        ("generate", "--start", "--prompt"),
        ("explore", "--no-open", "--no-browser"),
    ],
)
def test_what_is_missing_under_our_name_is_found_under_another(capsys, command, typed, meant):
    said = refused(capsys, command, "--pretrained", "srm-nano", typed, "x")
    assert said == f"srmlab {command}: Unrecognized options: {typed}; did you mean '{meant}'?"


def test_every_name_that_is_suggested_is_an_option_of_some_command():
    known = set()
    for name in COMMANDS:
        module = importlib.import_module(f"srmlab.cli.{name}")
        known |= set(option_names(module.Command, name))
    for preset in ("gpt2", "hrm"):
        known |= set(option_names(*_train(preset)))
    assert {f"--{name}" for name in OTHER_NAMES} <= known


def _train(preset):
    from srmlab.cli import train

    return train.Command, "srmlab train", train.defaults([preset])


def test_an_option_of_two_values_asks_for_two(capsys):
    said = refused(capsys, *TRAIN, "--betas", "0.9")
    assert said == "srmlab train: --betas needs 2 values; `srmlab train --help` shows the options"


@pytest.mark.parametrize("option", ["--out", "--data"])
def test_an_empty_path_is_refused_and_not_taken_for_the_current_folder(capsys, option):
    given = {"--data": "x", "--out": "y"} | {option: ""}
    said = refused(capsys, "train", "srm-nano", *(word for pair in given.items() for word in pair))
    assert said == f"srmlab train: {option} is empty: give a path"
    assert refused(capsys, "evaluate", "") == "srmlab evaluate: RUN is empty: give a path"


def test_nothing_is_suggested_where_nothing_is_near():
    assert suggestion("--xyzzy", ["--steps", "--model.streams"]) == ""
    assert suggestion("--learning-rate", ["--steps"]) == ""  # not of this command


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--steps", "abc"], "--steps 'abc': must be a whole number"),
        (["--lr", "quick"], "--lr 'quick': must be a number"),
        (["--clip", "high"], "--clip 'high': must be a number"),
        (["--schedule", "linear"], "--schedule linear: must be one of constant, cosine"),
        (["--steps"], "--steps needs a value; `srmlab train --help` shows the options"),
        (
            ["--steps", "1", "--warmup", "20"],
            "warmup = 20: must be between 0 and steps = 1; set --warmup lower, or --steps higher",
        ),
    ],
)
def test_a_value_that_cannot_be_is_said_in_plain_words(capsys, options, says):
    assert refused(capsys, *TRAIN, *options) == f"srmlab train: {says}"


@dataclass
class Some:
    """Options that may have no value."""

    size: int | None = 3
    kind: Literal["a", "b"] | None = None


def test_an_option_without_a_value_is_written_none_and_shown_so(capsys):
    assert parse(Some, "some", []) == Some(3, None)
    assert parse(Some, "some", ["--size", "none", "--kind", "b"]) == Some(None, "b")
    assert parse(Some, "some", ["--kind", "none"]) == Some(3, None)
    with pytest.raises(UserError, match="--kind c: must be one of a, b"):
        parse(Some, "some", ["--kind", "c"])
    with pytest.raises(SystemExit):
        parse(Some, "some", ["--help"])
    shown = capsys.readouterr().out
    assert "--size INT" in shown
    assert "(default: none)" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_no_help_speaks_of_types_of_python(capsys, name):
    with pytest.raises(SystemExit):
        main([name, "--help"])
    shown = capsys.readouterr().out
    assert "None" not in shown
    assert "(default: )" not in shown


def explanations(kind, defaults=None) -> dict[str, str]:
    """Every option with its help, without the default: as defined, however it is laid out on a screen."""
    given = {} if defaults is None else {"default": defaults}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # tyro has no other way to ask for them
        parser = tyro.extras.get_parser(kind, registry=readings(), **given)
    options = [action for action in parser._actions if action.option_strings]
    helps = {action.option_strings[-1]: action.help for action in options}
    return {name: re.sub(r"\((default: .*|required)\)$", "", text).strip() for name, text in helps.items()}


def test_an_option_without_an_explanation_is_noticed():
    @dataclass
    class Bare:
        size: int = 3
        kind: int = 4
        """Explained."""

    found = explanations(Bare)
    assert (found["--size"], found["--kind"]) == ("", "Explained.")


@pytest.mark.parametrize(
    "preset", ["srm-nano", "hrm", "gpt2", "transformer", "ouro", "hyper", "huginn", "mor"]
)
def test_training_explains_every_option_of_every_model(preset):
    kind, prog, defaults = _train(preset)
    found = explanations(kind, defaults)
    assert "--model.vocab-size" in found
    assert {name for name, text in found.items() if not text} == set()
    assert found.keys() - {"--help"} <= {*option_names(kind, prog, defaults)}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_every_option(name):
    found = explanations(importlib.import_module(f"srmlab.cli.{name}").Command)
    assert {option for option, text in found.items() if not text or "\n" in text} == set()


def test_several_values_of_the_wrong_type_are_refused_in_plain_words(capsys):
    said = refused(capsys, "generate", "--pretrained", "--tokens", "one", "2")
    assert said == "srmlab generate: --tokens 'one', '2': must be whole numbers"
    assert refused(capsys, *TRAIN, "--betas", "a", "b").endswith("must be numbers")


def test_an_error_that_is_not_known_is_left_to_tyro():
    from srmlab.cli.options import complaint

    @dataclasses.dataclass
    class NewError:
        prog: str = "srmlab"

    assert complaint(NewError(), list) is None


@pytest.mark.parametrize("name", ["evaluate", "explore", "generate", "info"])
def test_a_run_that_may_be_left_out_says_for_what(capsys, name):
    with pytest.raises(SystemExit):
        main([name, "--help"])
    words = " ".join(re.sub("[│╭╰─╮╯]", " ", capsys.readouterr().out).split())
    assert "(or --pretrained" in words.partition(" options ")[0]
