"""`srmlab presets`: the table fits a terminal, and the JSON has everything in it."""

from __future__ import annotations

import json

import pytest

import srmlab
from srmlab.cli.presets import PAPER_PARAMETERS, Command, describe, table
from srmlab.models import PRESETS, SWEEP_PRESETS


def test_the_table_names_every_model_in_80_columns(capsys):
    Command().run()
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    rows = [" ".join(line.split()) for line in out.splitlines()[1 : 1 + len(PRESETS)]]
    assert [row.split()[0] for row in rows] == list(PRESETS)
    assert "srm-base 32 128 768 ABCABC+1 8/4 67,674,624 68M 2.82" in rows
    assert "gpt2 1 768 3072 – 12 124,439,808 124M 0.798" in rows
    assert "hrm 2 768 3072 L6 H4 3×4 109,376,256 109M 1.87" in rows
    assert "trm 2 768 3072 LH2 3×6 52,753,152 – 1.33" in rows


def test_the_sweep_adds_its_21_cells_in_100_columns_and_says_what_is_odd(capsys):
    Command(sweep=True).run()
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    named = [line.split()[0] for line in out.splitlines() if line.startswith("srm-sweep-")]
    assert named == list(SWEEP_PRESETS)
    assert len(named) == 21
    assert "839M*" in out
    assert "* 839M is the tied count" in out
    assert "dim 128" in out


def test_json_is_the_same_rows_as_data(capsys):
    Command(json=True).run()
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(PRESETS)
    for row in rows:
        config = srmlab.config_from_dict({"architecture": row["architecture"], **row["config"]})
        assert config == srmlab.preset(row["name"])
        assert row["training_flops_per_token"] > row["forward_flops_per_token"] > 0


@pytest.mark.parametrize("name", sorted(PAPER_PARAMETERS.keys() - {"srm-sweep-width-1"}))
def test_the_papers_figure_is_our_count_rounded(name):
    # The paper cuts SRM-med's 134.78M to 134M and rounds the others; other papers count in billions.
    count = describe(name)["parameters"]
    millions = {f"{count / 1e6:.0f}M", f"{count // 10**6}M"}
    billions = {f"{count / 1e9:.1f}B", f"{count // 10**8 / 10}B"}
    assert describe(name)["paper"] in millions | billions


def test_extra_steps_stand_around_the_order():
    row = describe("srm-base")
    row["config"] |= {"pre_steps": 2, "post_steps": 3}
    assert "2+ABCABC+3" in table([row])
