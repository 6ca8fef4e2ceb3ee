from __future__ import annotations

import numpy as np
import pytest
import torch
from constructed import build

import srmlab
import srmlab.analysis
from srmlab.errors import UserError


def test_mixing_whose_weights_are_no_shares_is_not_surveyed_as_routing():
    """Trained hyper-connections have any weights, below 0 too: there is no share of attention to count."""
    model = srmlab.build(srmlab.preset("hyper-nano", blocks=2, dim=16, heads=2, head_dim=8, vocab_size=64))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # as training would
        for name, weights in model.named_parameters():
            if name.endswith(".mix"):
                weights += 0.3 * torch.randn(weights.shape, generator=generator)
    found = srmlab.analysis.survey(model, [torch.arange(32).view(2, 16)], lens_tokens=8)
    assert "stream_similarity" in found
    assert not {"routing", "routing_controls", "effective_sources"} & found.keys()
    assert len(srmlab.analysis.cut_edges(model, [(1, 0, 0, 2)])) == 1  # a pattern can be cut nevertheless


def test_a_survey_gives_what_the_analyses_give_one_by_one(model, batches):
    found = srmlab.analysis.survey(model, batches, lens_tokens=40, max_depth=5)
    defined = [name for name, one in srmlab.analysis.ANALYSES.items() if one.defined_on(model)]
    assert list(found) == defined
    single = {
        "routing": srmlab.analysis.routing(model, batches),
        "alignment": srmlab.analysis.alignment(model, batches),
        "drift": srmlab.analysis.drift(model, batches),
        "ablation": srmlab.analysis.ablation(model, batches),
        "attribution": srmlab.analysis.attribution(model, batches),
        "logit_lens": srmlab.analysis.logit_lens(model, batches, lens_tokens=40),
        "interaction": srmlab.analysis.interaction(model, batches),
        "depth": srmlab.analysis.depth(model, batches, max_depth=5),
    }
    for name, expected in single.items():
        for field in expected.axes():
            np.testing.assert_allclose(
                getattr(found[name], field),
                getattr(expected, field),
                rtol=1e-4,
                atol=1e-6,
                err_msg=f"{name}.{field}",
            )
        for number, error in expected.errors.items():
            np.testing.assert_allclose(
                found[name].errors[number], error, rtol=1e-3, atol=1e-6, err_msg=f"{name}.{number}"
            )
        assert found[name].evidence == expected.evidence


def test_every_result_saves_loads_tells_and_names_itself(model, batches, tmp_path):
    for name, result in srmlab.analysis.survey(model, batches, lens_tokens=20, max_depth=5).items():
        again = srmlab.analysis.load(result.save(tmp_path / name))
        assert again.summary() == result.summary()
        assert repr(again) == f"<{type(result).__name__}: {result.headline()} ({result.evidence})>"
        assert again.headline() == result.headline()
        for field in result.axes():
            np.testing.assert_array_equal(getattr(again, field), getattr(result, field))
        for number in result.errors:
            np.testing.assert_array_equal(again.standard_error(number), result.standard_error(number))
        for path in result.to_pgfplots(tmp_path, "x"):
            lines = path.read_text().splitlines()
            assert len({len(line.split()) for line in lines}) == 1
            assert len(lines) > 1


def test_known_results_are_not_measured_again(model, batches):
    first = srmlab.analysis.survey(model, batches, only=["routing"])
    passes = []
    model.sites["layers.0.out"].register_forward_hook(lambda *_: passes.append(1))
    again = srmlab.analysis.survey(model, batches, only=["routing", "states"], known=first)
    assert again["routing"] is first["routing"]
    assert len(passes) == len(batches)


def test_baselines_get_what_is_defined_on_them(batches):
    model = srmlab.build(srmlab.preset("hrm-nano"))
    found = srmlab.analysis.survey(model, [batch % 64 for batch in batches])
    assert sorted(found) == ["depth", "drift", "logit_lens", "stream_similarity", "token_similarity"]
    known = "HRM has drift, token_similarity, stream_similarity, logit_lens, depth"
    with pytest.raises(UserError, match=f"routing needs a model that has stream attention; {known}"):
        srmlab.analysis.survey(model, batches, only=["routing"])


def test_an_unknown_analysis_is_refused_with_the_nearest_name(model, batches):
    with pytest.raises(UserError, match="did you mean 'routing'"):
        srmlab.analysis.survey(model, batches, only=["roting"])


def test_dynamics_hold_the_same_analyses_for_each_checkpoint(model, batches):
    later = build(init_seed=5)
    found = srmlab.analysis.dynamics([(0, model), (10, later)], batches)
    assert found.steps.tolist() == [0, 10]
    np.testing.assert_allclose(found.outgoing[1], srmlab.analysis.routing(later, batches).outgoing)
    np.testing.assert_allclose(found.ablation[0], srmlab.analysis.ablation(model, batches).kl, rtol=1e-4)
    np.testing.assert_allclose(
        found.drift[1], srmlab.analysis.drift(later, batches).quartiles()[1], rtol=1e-4
    )
    assert found.boundary == 2
    assert "transition 1→2 crosses its boundary" in found.summary()


def test_dynamics_without_checkpoints_are_refused(batches):
    with pytest.raises(UserError, match="no checkpoints"):
        srmlab.analysis.dynamics([], batches)
