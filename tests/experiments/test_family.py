"""The family experiment: equal sizes, every model's own way of spending less, and a figure."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import srmlab
from srmlab.analysis.spending import spending
from srmlab.data import Batch
from srmlab.experiments import experiment
from srmlab.experiments.family import AT_PAPER, FLOP, SRM
from srmlab.models import Exit, build, outline

TINY = {
    "ouro-nano": {"dim": 16, "heads": 2, "head_dim": 8, "mlp_dim": 24, "blocks": 1, "loops": 3},
    "huginn-nano": {
        "dim": 16, "heads": 2, "head_dim": 8, "mlp_dim": 24, "core": 1, "steps": 3, "gradient_depth": 2,
    },
    "mor-nano": {"dim": 16, "heads": 2, "kv_heads": 2, "head_dim": 8, "mlp_dim": 24, "core": 1},
    "hyper-loop-nano": {"dim": 16, "heads": 2, "head_dim": 8, "mlp_dim": 24, "loops": 3},
    "transformer-nano": {"dim": 16, "heads": 2, "head_dim": 8, "mlp_dim": 24, "blocks": 2},
}  # fmt: skip
TOKENS = torch.arange(24).view(2, 12)
BATCH = Batch(TOKENS, TOKENS.roll(-1, 1))


@pytest.mark.parametrize("scale", ["mini", "small"])
def test_every_model_has_srms_parameters_but_the_one_that_has_its_flop(scale):
    counts = {cell.name: outline(cell.model) for cell in experiment("family").cells(scale)}
    wanted = counts[SRM].num_parameters()
    for name, model in counts.items():
        if name == FLOP:
            context = model.config.context
            assert model.flops_per_token(context).training == pytest.approx(
                counts[SRM].flops_per_token(context).training, rel=0.01
            )
        else:
            assert model.num_parameters() == pytest.approx(wanted, rel=0.02)
    assert all(cell.tuned for cell in experiment("family").cells(scale))


@pytest.mark.parametrize("name", TINY)
def test_the_full_model_and_every_fixed_depth_are_measured(name):
    model = srmlab.build(srmlab.preset(name, vocab_size=32, context=12, **TINY[name])).eval()
    found = spending(model, [BATCH])
    with torch.no_grad():
        assert found[0].loss == pytest.approx(float(model(BATCH.tokens, BATCH.targets)), abs=1e-5)
        for one in found:
            if one.rule == "fixed":
                shallow = model.at_depth(int(one.threshold))
                assert one.loss == pytest.approx(float(shallow(BATCH.tokens, BATCH.targets)), abs=1e-5)
                assert one.flops == shallow.flops_per_token(12).forward
    assert {one.rule for one in found} - {"full", "fixed"} == (
        set() if name in ("transformer-nano", "mor-nano") else set(model.exit_rules)
    )


def test_a_rule_stops_each_token_where_decoding_would():
    """On first tokens, which see nothing before them, both are the same."""
    model = srmlab.build(srmlab.preset("ouro-nano", vocab_size=32, context=12, **TINY["ouro-nano"])).eval()
    with torch.no_grad():
        model.gate.weight.copy_(torch.linspace(-1, 1, 16)[None])
    tokens = torch.arange(8)[:, None]
    found = [one for one in spending(model, [Batch(tokens, tokens)]) if one.rule == "gate"]
    for one in found:
        exit = Exit(one.threshold, by="gate")
        with torch.no_grad():
            model(tokens, cache=model.new_cache(), exit=exit)
        assert exit.mean_levels == pytest.approx(one.levels)
    assert [one.levels for one in found] == sorted(one.levels for one in found)


def test_the_page_about_the_family_has_every_drawing_as_it_is():
    page = (Path(__file__).parents[2] / "docs" / "family.md").read_text(encoding="utf-8")
    for name in AT_PAPER:
        if name != "transformer":
            assert srmlab.preset(name).drawing in page
            assert f"{build(srmlab.preset(name), device='meta').num_parameters():,}" in page
