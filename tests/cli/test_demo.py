"""`srm demo`: it runs, says what it does, and promises nothing of an untrained model."""

from __future__ import annotations

import re

import pytest

import srm
from srm import models
from srm.cli.demo import PROMPT, Command


@pytest.mark.parametrize("name", ["srm-nano", "hrm-nano", "gpt2-nano"])
def test_the_demo_builds_looks_and_writes(capsys, name):
    Command(preset=name, tokens=5).run()
    out = capsys.readouterr().out
    assert [line[:2] for line in out.splitlines() if re.match(r"\d\. ", line)] == ["1.", "2.", "3."]
    assert f"{srm.build(srm.preset(name), device='meta').num_parameters():,} parameters" in out
    assert "logits" in out
    assert "noise" in out
    assert max(map(len, out.splitlines())) <= 80
    ids = out.splitlines()[-2].split()
    assert len(ids) == 5
    assert all(0 <= int(token) < 4096 for token in ids)


def test_the_same_seed_writes_the_same_tokens(capsys):
    written = []
    for seed in (1, 1, 2):
        Command(tokens=6, seed=seed).run()
        written.append(capsys.readouterr().out.splitlines()[-2])
    assert written[0] == written[1] != written[2]


def test_the_demo_may_write_past_the_context(capsys, monkeypatch):
    monkeypatch.setattr(srm, "preset", lambda _name: models.preset("gpt2-nano", context=len(PROMPT) + 4))
    Command(preset="gpt2-nano", tokens=9).run()
    assert len(capsys.readouterr().out.splitlines()[-2].split()) == 9
