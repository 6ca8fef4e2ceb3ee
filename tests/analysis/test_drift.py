from __future__ import annotations

from itertools import combinations_with_replacement, product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from constructed import build

import srmlab
import srmlab.analysis
from srmlab.analysis.drift import Convergence, Softened, convergence, convergence_class
from srmlab.errors import UserError


def test_a_frozen_step_has_drift_zero_and_converges_early(model, batches):
    """Step B is made to give back the state it was given: it contributes nothing, in every layer."""
    seen = {}
    for l in range(4):
        model.sites[f"layers.{l}.steps.0.out"].register_forward_hook(
            lambda _m, _i, out: seen.update(z=out) or None
        )
        model.sites[f"layers.{l}.steps.1.out"].register_forward_hook(lambda *_: seen["z"])
    found = srmlab.analysis.drift(model, batches)
    b = found.groups.index("B")
    assert not found.cosine[b].any()
    assert not found.kl[b].any()
    assert found.convergence()["B"].transitions == (0, 0, 0, 0)
    assert found.convergence("kl")["B"].counts == (4, 0, 0)
    assert found.cosine[0].min() > 0


def test_drift_is_that_of_cached_contributions_summed_over_a_groups_calls(batches):
    model = build(order="ABCAB")
    found = srmlab.analysis.drift(model, batches)
    _, cache = model.run_with_cache(torch.cat(batches), "layers.*.steps.*.out")
    z, contributions = model.z0.expand(12, 16, 4, 16), []
    for l in range(4):
        sums = [0.0, 0.0, 0.0]
        for i, group in enumerate((0, 1, 2, 0, 1)):
            after = cache[f"layers.{l}.steps.{i}.out"]
            sums[group] = sums[group] + (after - z)
            z = after
        contributions.append(torch.stack(sums))
    before, after = torch.stack(contributions[:-1], 1).double(), torch.stack(contributions[1:], 1).double()
    cosine = 1 - F.cosine_similarity(before, after, dim=-1)
    p, q = before.log_softmax(-1), after.log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1)
    np.testing.assert_allclose(found.cosine, cosine.mean((2, 3)), atol=1e-6)
    np.testing.assert_allclose(found.kl, kl.mean((2, 3)), atol=1e-5)


def test_kl_is_finite_at_512_dimensions_on_a_layer_of_srm_med():
    """Where the paper's own KL became NaN. One layer's worth of SRM-med's widths, shallow and with a small
    vocabulary."""
    config = srmlab.preset("srm-med", depth=3, gradient_depth=1, vocab_size=64, mlp_dim=64, token_heads=1)
    model = srmlab.build(config)
    with torch.no_grad():  # large contributions: nearly all of the softmax on one dimension
        for step in model.layer.steps:
            step.mlp_down.weight[:, :, 0] += 20.0
    found = srmlab.analysis.drift(model, [torch.arange(8)[None]])
    assert found.kl.shape == (3, 2, 8)
    assert np.isfinite(found.kl).all()
    assert np.isfinite(found.cosine).all()


@pytest.mark.soak
def test_kl_is_finite_on_srm_med_with_all_its_weights():
    model = srmlab.build(srmlab.preset("srm-med"))
    assert (model.num_parameters(), model.config.stream_dim) == (134_783_488, 512)
    found = srmlab.analysis.drift(model, [torch.arange(8)[None]])
    assert found.kl.shape == (3, 7, 8)
    assert np.isfinite(found.kl).all()
    assert (found.kl > 0).all()
    assert np.isfinite(found.cosine).all()


def test_kl_backward_is_of_the_later_contribution_from_the_earlier():
    model = build(depth=2, gradient_depth=1)
    tokens = [torch.arange(16)[None]]
    forward, backward = (
        srmlab.analysis.drift(model, tokens, direction) for direction in ("forward", "backward")
    )
    np.testing.assert_array_equal(forward.cosine, backward.cosine)
    _, cache = model.run_with_cache(tokens[0], "layers.*.steps.*.out")
    before = cache["layers.0.steps.0.out"] - model.z0
    after = cache["layers.1.steps.0.out"] - cache["layers.0.steps.2.out"]
    p, q = before.log_softmax(-1), after.log_softmax(-1)
    np.testing.assert_allclose(forward.kl[0, 0], (p.exp() * (p - q)).sum(-1).mean((0, 1)), atol=1e-5)
    np.testing.assert_allclose(backward.kl[0, 0], (q.exp() * (q - p)).sum(-1).mean((0, 1)), atol=1e-5)
    assert "KL backward" in backward.summary()
    with pytest.raises(UserError, match="direction"):
        srmlab.analysis.drift(model, tokens, "sideways")


def test_kl_stays_finite_where_a_plain_softmax_underflows():
    far = torch.zeros(1, 1, 1, 512)
    far[..., 0] = 400.0
    a, b = Softened(far), Softened(-far)
    assert (far.softmax(-1) * (far.softmax(-1) / (-far).softmax(-1)).log()).sum().isfinite().logical_not()
    # all mass on the first dimension, where the other has e^(−400)/511
    assert a.kl(b).item() == pytest.approx(400 + np.log(511), rel=1e-5)


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ([1, 1, 1, 1, 1, 1, 1], 0),
        ([1, 2, 2, 2, 2, 2, 2], 1),
        ([1, 1, 1, 1, 1, 1, 2], 6),
        ([1, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3], 0),
        ([1, 1.2, 1.44, 1.44, 1.44, 1.44, 1.44], 2),
        ([0, 0, 0, 0, 0, 0, 0], 0),
        ([1e-9, 3e-7, 0, 0, 1e-7, 0, 0], 0),
        ([np.nan, 1, 1, 1, 1, 1, 2], 6),
        ([1, np.nan, 1, 2, 2, 2, 2], 3),
        ([1], 0),
    ],
)
def test_convergence_is_the_earliest_transition_after_which_changes_stay_under_a_tenth(curve, expected):
    assert convergence(np.array(curve, dtype=float)) == expected


@pytest.mark.parametrize(
    "curve",
    [
        [np.nan] * 7,
        [np.nan, np.nan, 1, np.nan, 1, np.nan, np.nan],
        [1, 1, 1, 1, 1, 1, np.nan],
        [1, 1, 1, 1, 1, np.nan, 1],
        [1, 1, 1, np.nan, 1, 1, 1],
        [],
    ],
)
def test_convergence_is_unknown_where_a_gap_hides_it(curve):
    assert np.isnan(convergence(np.array(curve, dtype=float)))


def test_what_was_not_measured_counts_for_no_class(batches):
    assert Convergence((2, np.nan, 6), of=7).counts == (0, 1, 1)
    assert Convergence((2, np.nan, 6), of=7).mean == 4
    assert str(Convergence((np.nan,) * 3, of=7)) == "not measured"
    found = srmlab.analysis.drift(build(order="random:2", order_seed=3), batches)
    assert any(not one.measured for one in found.convergence().values())
    assert "not measured" in found.summary()
    assert "not measured" in found.headline()
    assert found.figure()


def test_seven_transitions_are_two_early_two_middle_and_three_late():
    assert [convergence_class(t, 7) for t in range(7)] == [0, 0, 1, 1, 2, 2, 2]


# The paper's SRM-large: group, mean, standard deviation, and how many streams converge early, middle and late
PAPER_LARGE = [
    ("A", "4.13", "1.63", (2, 1, 13)),
    ("B", "4.25", "2.08", (3, 2, 11)),
    ("C", "4.06", "2.11", (3, 3, 10)),
    ("D", "4.63", "2.09", (3, 1, 12)),
    ("E", "3.44", "1.79", (2, 6, 8)),
    ("F", "4.19", "1.64", (1, 4, 11)),
]


@pytest.mark.parametrize(("group", "mean", "std", "counts"), PAPER_LARGE)
def test_the_papers_statistics_come_out_of_some_streams_in_its_class_counts(group, mean, std, counts):  # noqa: ARG001
    """The paper prints counts, mean and std, not the transitions; some transitions must give all three."""
    early, middle, late = counts
    found = [
        Convergence(a + b + c, of=7)
        for a, b, c in product(
            combinations_with_replacement((0, 1), early),
            combinations_with_replacement((2, 3), middle),
            combinations_with_replacement((4, 5, 6), late),
        )
    ]
    assert all(one.counts == counts for one in found)
    fits = [one for one in found if abs(one.mean - float(mean)) < 0.0051 and f"{one.std:.2f}" == std]
    assert fits


def test_the_papers_srm_med_group_c_comes_out_with_the_sample_standard_deviation():
    """5 streams at transition 2 and 3 at transition 6: printed as 3.5 ± 2.1."""
    found = Convergence((2,) * 5 + (6,) * 3, of=7)
    assert (f"{found.mean:.1f}", f"{found.std:.1f}", found.median) == ("3.5", "2.1", 2.0)
    assert str(Convergence((6,) * 8, of=7)) == "6.00 ± 0.00 (0 early, 0 middle, 8 late)"


def test_a_group_that_a_random_order_skips_in_a_layer_has_no_drift_there(batches):
    model = build(order="random:2", order_seed=3)
    found = srmlab.analysis.drift(model, batches)
    orders = model.evaluation_orders
    for g in range(3):
        for t in range(3):
            skipped = g not in orders[t] or g not in orders[t + 1]
            assert np.isnan(found.cosine[g, t]).all() == skipped
    assert np.isnan(found.cosine).any()
    assert found.summary()


def test_hrm_drifts_between_high_cycles_and_gpt2_between_blocks(batches):
    tokens = [batch % 64 for batch in batches]
    hrm = srmlab.analysis.drift(srmlab.build(srmlab.preset("hrm-nano", high_cycles=4)), tokens)
    assert (hrm.groups, hrm.cosine.shape, hrm.boundary) == (("low", "high"), (2, 3, 1), 3)
    gpt2 = srmlab.build(srmlab.preset("gpt2-nano"))
    found = srmlab.analysis.drift(gpt2, tokens)
    assert (found.groups, found.cosine.shape) == (("attn", "mlp"), (2, 5, 1))
    _, cache = gpt2.run_with_cache(torch.cat(tokens), "blocks.*.mlp")
    expected = 1 - F.cosine_similarity(cache["blocks.2.mlp"], cache["blocks.3.mlp"], dim=-1).mean()
    assert found.cosine[1, 2, 0] == pytest.approx(expected.item(), abs=1e-5)


def test_the_absolute_rule_stands_beside_the_relative_one():
    """A geometric decay never converges by relative change, and is settled once it is small."""
    from srmlab.analysis.drift import absolute, settled

    halving = 0.4 * 0.5 ** np.arange(10)
    assert convergence(halving) == 9
    curves = np.stack([halving, np.full(10, 0.3), halving * 100], axis=1)
    found = settled(curves)
    assert found[0] == next(t for t in range(10) if halving[t] < 0.01)
    assert np.isnan(found[1:]).all()
    assert (
        absolute(curves) == "under 0.01 in 1 of 3 streams, from transition 6.0 on average; 1 still shrinking"
    )
