"""`srmlab evaluate`: what it prints where there is no standard error."""

from __future__ import annotations

import json

import pytest

from srmlab.cli import main

ONE_WINDOW = ("evaluate", "--pretrained", "--context", "32", "--tokens", "32", "--device", "cpu")


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    return int(ended.value.code or 0)


def test_json_has_null_for_an_error_that_is_not_known(capsys):
    assert call(*ONE_WINDOW, "--json") == 0

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    answer = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert answer["windows"] == 1
    assert answer["loss"]["mean"] > 0
    assert answer["loss"]["standard_error"] is None


def test_one_window_is_printed_without_an_error(capsys):
    assert call(*ONE_WINDOW) == 0
    said = capsys.readouterr().out
    assert "±" not in said
    assert "one window has no standard error" in said
