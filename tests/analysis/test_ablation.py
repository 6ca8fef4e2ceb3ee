from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.distributed
import torch.multiprocessing
from constructed import build

import srmlab.analysis
from srmlab.analysis.ablation import Ablation
from srmlab.analysis.readout import kl_of_changes
from srmlab.analysis.replacement import other_tokens
from srmlab.analysis.result import Evidence
from srmlab.errors import UserError


def reference_kl(full: torch.Tensor, changed: torch.Tensor) -> torch.Tensor:
    p, q = full.double().log_softmax(-1), changed.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def by_hand(model, batches, stream, replace, point):
    """KL with a stream replaced by a hook, from the logits."""
    tokens = torch.cat(batches)

    def hook(z, hook):  # noqa: ARG001
        z = z.clone()
        z[:, :, stream] = replace(z[:, :, stream])
        return z

    return reference_kl(model(tokens), model.run_with_hooks(tokens, [(point, hook)])).mean().item()


def some_result(kl) -> Ablation:
    kl = np.array(kl, dtype=float)
    same = {"loss_change": kl, "errors": {"kl": kl * 0.01, "loss_change": kl * 0.01}}
    groups = tuple((s,) for s in range(len(kl)))
    return Ablation(
        evidence=Evidence(1, 1, "0"), by="mean", points=("layers.7.out",), groups=groups, kl=kl, **same
    )


def test_a_stream_without_output_weight_has_kl_exactly_zero(model, batches):
    with torch.no_grad():
        model.output_function.from_streams.weight[:, 16:32] = 0  # stream 1
    found = srmlab.analysis.ablation(model, batches)
    assert found.kl[1] == 0
    assert found.loss_change[1] == 0
    assert found.kl[[0, 2, 3]].min() > 0
    assert found.dynamic_range == math.inf


@pytest.mark.parametrize("post_steps", [0, 1])
def test_mean_ablation_is_what_a_hook_that_puts_in_the_mean_does(batches, post_steps):
    model = build(post_steps=post_steps)
    point = "post.0.out" if post_steps else "layers.3.out"
    _, cache = model.run_with_cache(torch.cat(batches), point)
    mean = cache[point].mean((0, 1))
    found = srmlab.analysis.ablation(model, batches)
    expected = [by_hand(model, batches, s, lambda z, s=s: mean[s].expand_as(z), point) for s in range(4)]
    np.testing.assert_allclose(found.kl, expected, rtol=1e-4)
    np.testing.assert_allclose(found.bits, found.kl / math.log(2))
    assert found.points == (point,)


def test_zero_ablation_is_what_a_hook_that_puts_in_zero_does(model, batches):
    found = srmlab.analysis.ablation(model, batches, by="zero")
    expected = [by_hand(model, batches, s, torch.zeros_like, "layers.3.out") for s in range(4)]
    np.testing.assert_allclose(found.kl, expected, rtol=1e-4)


def test_resampling_permutes_a_streams_states_and_is_the_same_every_time(model, batches):
    first, again = (srmlab.analysis.ablation(model, batches, by="resample") for _ in range(2))
    np.testing.assert_array_equal(first.kl, again.kl)
    assert first.kl.min() > 0
    with (
        torch.no_grad()
    ):  # a stream that says the same for every token is not changed by another token's state
        model.output_function.from_streams.weight[:, 0:16] = 0
    assert srmlab.analysis.ablation(model, batches, by="resample").kl[0] == 0


def test_the_loss_change_is_that_of_the_ablated_logits(model, batches):
    tokens, targets = torch.cat(batches)[:, :-1], torch.cat(batches)[:, 1:]
    found = srmlab.analysis.ablation(model, [(tokens, targets)], by="zero")

    def silence(z, hook):  # noqa: ARG001
        z = z.clone()
        z[:, :, 2] = 0
        return z

    ablated = model.run_with_hooks(tokens, [("layers.3.out", silence)]).log_softmax(-1)
    gained = model(tokens).log_softmax(-1) - ablated
    expected = gained.gather(-1, targets[..., None]).mean().item()
    assert found.loss_change[2] == pytest.approx(expected, abs=1e-5)


def test_ablation_at_every_layer_reruns_the_model_with_each_layers_mean(model, batches):
    means = srmlab.analysis.state_means(model, batches)
    found = srmlab.analysis.ablation(model, batches, layers="every")
    tokens = torch.cat(batches)
    hooks = srmlab.analysis.replace_streams(model, [1], layers="every", by="mean", means=means)
    expected = reference_kl(model(tokens), model.run_with_hooks(tokens, hooks)).mean().item()
    assert found.kl[1] == pytest.approx(expected, rel=1e-4)
    assert len(found.points) == 4


def test_ablation_at_the_last_layer_by_number_is_ablation_of_the_final_state(model, batches):
    by_name = srmlab.analysis.ablation(model, batches)
    by_number = srmlab.analysis.ablation(model, batches, layers=[3])
    np.testing.assert_allclose(by_number.kl, by_name.kl)
    earlier = srmlab.analysis.ablation(model, batches, layers=range(1, 3))
    assert earlier.points == ("layers.1.out", "layers.2.out")


def test_groups_of_streams_are_ablated_together(model, batches):
    found = srmlab.analysis.ablation(model, batches, by="zero", groups=[(0, 1, 2, 3), (2,)])
    tokens = torch.cat(batches)
    nothing = torch.zeros(*tokens.shape, 97)
    assert found.kl[0] == pytest.approx(reference_kl(model(tokens), nothing).mean().item(), rel=1e-4)
    assert found.kl[1] == pytest.approx(srmlab.analysis.ablation(model, batches, by="zero").kl[2], rel=1e-6)
    assert found.names == ["S0+S1+S2+S3", "S2"]


def test_known_means_give_the_same_as_measuring_them(model, batches):
    means = srmlab.analysis.state_means(model, batches)
    given = srmlab.analysis.ablation(model, batches, means=means)
    np.testing.assert_allclose(given.kl, srmlab.analysis.ablation(model, batches).kl, rtol=1e-5)


def test_the_kl_of_a_change_is_precise_when_small_and_finite_when_huge():
    generator = torch.Generator().manual_seed(0)
    unembedding, embedding, delta = (torch.randn(n, 8, generator=generator) for n in (50, 6, 6))
    full = embedding.double() @ unembedding.double().T
    for scale in (1e-3, 1.0, 1e3):
        kl, _ = kl_of_changes(embedding, scale * delta[None], unembedding)
        changed = (embedding + scale * delta).double() @ unembedding.double().T
        np.testing.assert_allclose(
            kl[0], reference_kl(full, changed), rtol=2e-2 if scale < 1 else 1e-4, atol=2e-7
        )


def test_the_papers_srm_med_needs_three_streams_for_half_of_the_impact():
    """KLs in bits of S6, S4 and S3 as printed; the rest so that the mean is 0.224 and the least 0.130."""
    kl = np.array([0.14, 0.19, 0.13, 0.278, 0.306, 0.19, 0.339, 0.219]) * math.log(2)
    found = some_result(kl)
    assert found.ranking[:3] == [6, 4, 3]
    assert found.groups_for(0.5) == 3
    assert found.dynamic_range == pytest.approx(2.6, abs=0.05)
    assert [len(tier) for tier in found.tiers()] == [3, 3, 2]
    assert "50% is from the top 3" in found.summary()


def test_tiers_of_sixteen_streams_fall_where_the_papers_srm_large_has_them():
    kl = [0.155, 0.15, 0.14, 0.125, 0.10, 0.095, 0.09, 0.085, 0.075]
    kl += [0.06, 0.055, 0.05, 0.05, 0.02, 0.015, 0.013]
    assert [len(tier) for tier in some_result(kl).tiers()] == [4, 5, 4, 3]


def test_shares_are_those_of_the_ranked_total():
    found = some_result([1, 4, 2, 1])
    np.testing.assert_allclose(found.cumulative_share, [0.5, 0.75, 0.875, 1])
    assert [found.groups_for(share) for share in (0.5, 0.75, 0.8, 1.0)] == [1, 2, 3, 4]


def test_the_papers_table_is_ranked_and_in_bits(model, batches, tmp_path):
    found = srmlab.analysis.ablation(model, batches)
    (path,) = found.to_pgfplots(tmp_path, "479m")
    assert path.name == "479m_ablation_ranked.dat"
    table = np.genfromtxt(path, names=True)
    assert table.dtype.names == ("stream", "kl")
    assert table["stream"].tolist() == found.ranking
    np.testing.assert_allclose(table["kl"], np.sort(found.bits)[::-1], rtol=1e-5)


def test_batches_that_can_be_read_only_once_are_refused_where_two_readings_are_needed(model, batches):
    with pytest.raises(UserError, match="pass a list, or a function"):
        srmlab.analysis.ablation(model, iter(batches))
    srmlab.analysis.ablation(model, lambda: iter(batches))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "noise"}, "by = 'noise'"),
        ({"layers": [9]}, r"layers = \[9\]"),
        ({"layers": "first"}, "layers = 'first'"),
        ({"groups": [(0, 0)]}, r"group \(0, 0\)"),
        ({"groups": [(7,)]}, r"group \(7,\)"),
    ],
)
def test_what_cannot_be_ablated_is_refused_in_one_line(model, batches, options, message):
    with pytest.raises(UserError, match=message):
        srmlab.analysis.ablation(model, batches, **options)


@pytest.mark.parametrize("count", [2, 3, 17])
def test_resampling_gives_every_token_another_ones_state(count):
    other = other_tokens(count)
    assert sorted(other.tolist()) == list(range(count))
    assert (other != torch.arange(count)).all()


def ablate_on_two(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    sizes = (3, 1, 3, 1)
    batches = [torch.arange(16 * n).view(n, 16) % 97 for n in sizes]
    np.save(f"{folder}/{rank}.npy", srmlab.analysis.ablation(build(), batches).kl)
    torch.distributed.destroy_process_group()


def test_processes_that_share_the_text_agree_on_the_means_and_on_the_ablations(tmp_path):
    torch.multiprocessing.spawn(ablate_on_two, (str(tmp_path),), nprocs=2)
    batches = [torch.arange(16 * n).view(n, 16) % 97 for n in (3, 1, 3, 1)]
    expected = srmlab.analysis.ablation(build(), batches).kl
    for rank in range(2):
        np.testing.assert_allclose(np.load(tmp_path / f"{rank}.npy"), expected, rtol=1e-5)
