"""Every analysis on a model in every floating-point format."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from constructed import SMALL, build

import srmlab.analysis
from srmlab.analysis.survey import available

DTYPES = [torch.bfloat16, torch.float16, torch.float64]
BASELINES = {"hrm": {"high_cycles": 2}, "gpt2": {"blocks": 2}}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", [{}, {"z0": "input", "pre_steps": 1, "post_steps": 1}])
def test_every_analysis_of_an_srm_works_in(dtype, options, batches):
    model = build(**options).to(dtype)
    found = srmlab.analysis.survey(model, batches)
    assert set(found) == set(available(model))
    if dtype == torch.float64:
        expected = srmlab.analysis.survey(build(**options), batches)
        for name, result in found.items():
            for field in result.axes():
                ours, theirs = getattr(result, field), getattr(expected[name], field)
                np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=2e-2, err_msg=f"{name}.{field}")
    for result in found.values():
        assert result.summary()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_interventions_and_dynamics_work_in(dtype, batches):
    model = build(post_steps=1).to(dtype)
    tokens, other = batches[:2]
    means = srmlab.analysis.state_means(model, batches)
    for hooks in (
        srmlab.analysis.replace_streams(model, [1], means=means),
        srmlab.analysis.replace_streams(model, [1], by="resample"),
        srmlab.analysis.patch_streams(model, other, [2], layer=1),
        srmlab.analysis.cut_edges(model, [(1, None, 0, 2)]),
    ):
        assert srmlab.analysis.effect(model, tokens, hooks).mean_kl > 0
    assert srmlab.analysis.ablation(model, batches, layers="every").kl.min() > 0
    assert srmlab.analysis.ablation(model, batches, by="resample", layers=[1]).kl.min() > 0
    assert srmlab.analysis.logit_lens(model, batches, through_post=True).summary()
    assert srmlab.analysis.attribute(model, tokens, other).dtype == torch.float32
    assert srmlab.analysis.dynamics([(0, model)], batches).summary()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_edge_attribution_works_in(dtype, batches):
    tokens = batches[0][0]
    expected = srmlab.analysis.edge_attribution(build(), tokens, 7, target=3)
    found = srmlab.analysis.edge_attribution(build().to(dtype), tokens, 7, target=3)
    for name in ("edges", "nodes", "direct"):
        ours, theirs = (getattr(one, name).float() for one in (found, expected))
        torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.02)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", BASELINES)
def test_the_baselines_analyses_work_in(dtype, name, batches):
    model = srmlab.build(srmlab.preset(f"{name}-nano", vocab_size=SMALL.vocab_size, **BASELINES[name])).to(
        dtype
    )
    for result in srmlab.analysis.survey(model, batches).values():
        assert result.summary()
