from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from constructed import build

import srmlab.analysis


def test_a_connection_that_gives_back_the_input_has_alignment_one(model, batches):
    seen = {}
    model.sites["input.streams"].register_forward_hook(lambda _m, _i, out: seen.update(x=out) or None)
    for l in range(4):
        model.sites[f"layers.{l}.connection.out"].register_forward_hook(lambda *_: 3.0 * seen["x"])
    found = srmlab.analysis.alignment(model, batches)
    np.testing.assert_allclose(found.connection, 1.0, atol=1e-6)
    assert found.negative_share == 0


def test_an_opposed_connection_has_alignment_minus_one_and_only_negative_pairs(model, batches):
    seen = {}
    model.sites["input.streams"].register_forward_hook(lambda _m, _i, out: seen.update(x=out) or None)
    for l in range(4):
        model.sites[f"layers.{l}.connection.out"].register_forward_hook(lambda *_: -0.5 * seen["x"])
    found = srmlab.analysis.alignment(model, batches)
    np.testing.assert_allclose(found.connection, -1.0, atol=1e-6)
    assert found.negative_share == 1
    assert "negative in 100.0%" in found.summary()


def test_a_step_that_outputs_the_update_has_alignment_one_with_its_output(model, batches):
    seen = {}
    for l in range(4):
        model.sites[f"layers.{l}.update"].register_forward_hook(
            lambda _m, _i, out: seen.update(y=out) or None
        )
        model.sites[f"layers.{l}.steps.1.out"].register_forward_hook(lambda *_: seen["y"])
    found = srmlab.analysis.alignment(model, batches)
    np.testing.assert_allclose(found.output[:, 1], 1.0, atol=1e-6)
    np.testing.assert_allclose(found.incoming[:, 2], 1.0, atol=1e-6)
    assert found.output[:, 0].max() < 0.999


def test_all_three_cosines_are_those_of_cached_tensors(batches):
    model = build(pre_steps=1, order="ABCA")
    found = srmlab.analysis.alignment(model, batches)
    _, cache = model.run_with_cache(torch.cat(batches))
    x = cache["pre.0.out"]
    z = model.z0.expand_as(x)
    for l in range(4):
        c, y = cache[f"layers.{l}.connection.out"], cache[f"layers.{l}.update"]
        np.testing.assert_allclose(
            found.connection[l], F.cosine_similarity(c, x, dim=-1).mean((0, 1)), atol=1e-6
        )
        for i in range(4):
            np.testing.assert_allclose(
                found.incoming[l, i], F.cosine_similarity(y, z, dim=-1).mean((0, 1)), atol=1e-6
            )
            z = cache[f"layers.{l}.steps.{i}.out"]
            np.testing.assert_allclose(
                found.output[l, i], F.cosine_similarity(y, z, dim=-1).mean((0, 1)), atol=1e-6
            )


def test_layer_zero_is_marked(model, batches):
    assert srmlab.analysis.alignment(model, batches).token_independent == (0,)


def test_the_papers_tables_run_through_streams_first_with_layers_from_one_and_steps_from_zero(
    model, batches, tmp_path
):
    found = srmlab.analysis.alignment(model, batches)
    paths = found.to_pgfplots(tmp_path, "161m")
    assert [path.name for path in paths] == ["161m_attn_token_cos.dat", "161m_update_state_cos.dat"]
    attention, update = (np.genfromtxt(path, names=True) for path in paths)
    assert attention.dtype.names == ("stream", "layer", "value")
    assert attention["stream"][:5].tolist() == [0, 1, 2, 3, 0]
    assert attention["layer"][:5].tolist() == [1, 1, 1, 1, 2]
    np.testing.assert_allclose(attention["value"], found.connection.ravel(), atol=1e-5)
    assert update.dtype.names == ("stream", "step", "value")
    assert update["step"].tolist() == np.repeat(np.arange(12), 4).tolist()
    np.testing.assert_allclose(update["value"], found.output.ravel(), atol=1e-5)
    (_, other) = found.to_pgfplots(tmp_path / "b", "161m", state="incoming")
    np.testing.assert_allclose(np.genfromtxt(other, names=True)["value"], found.incoming.ravel(), atol=1e-5)
