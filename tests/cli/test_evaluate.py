"""`srmlab evaluate`: what it reads, and what it prints where there is no standard error."""

from __future__ import annotations

import json

import pytest
import torch

import srmlab
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


def test_a_part_of_the_text_is_windows_from_all_of_it(capsys):
    """Against a loss that is written out, window by window."""
    arguments = ("evaluate", "--pretrained", "--context", "32", "--tokens", "96", "--device", "cpu", "--json")
    assert call(*arguments) == 0
    answer = json.loads(capsys.readouterr().out)
    model, folder = srmlab.load("srm-nano"), srmlab.pretrained.folder()
    ids = srmlab.load_tokenizer("srm-nano").encode((folder / "validation.txt").read_text(encoding="utf-8"))
    every = (len(ids) - 1) // 32
    losses = []
    for place in (every // 6, every // 2, 5 * every // 6):  # the middles of thirds
        window = torch.tensor(ids[32 * place : 32 * place + 33])
        with torch.no_grad():
            chances = model(window[None, :-1])[0].double().log_softmax(-1)
        losses += [-float(chances[t, window[t + 1]]) for t in range(32)]
    assert answer["windows"] == 3
    assert answer["loss"]["mean"] == pytest.approx(sum(losses) / 96, abs=1e-5)
