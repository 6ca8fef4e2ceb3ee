"""Untrained twins: what learning did stands beside what random weights do."""

import numpy as np
import pytest
import torch
from constructed import SMALL, build, force_pattern

import srmlab
from srmlab.analysis import load, routing, routing_controls
from srmlab.analysis.null import Beside, beside, learned_hubs, strongest, summary, twins
from srmlab.cli.analyze import Command, weight_of
from srmlab.errors import UserError
from srmlab.training.evaluation import token_losses
from subjects import trained_run


def test_twins_have_the_config_and_other_weights(model):
    found = dict(twins(model, 3))
    assert list(found) == [1, 2, 3]
    for seed, twin in found.items():
        assert twin.config == SMALL.seeded(seed)
        assert not torch.equal(twin.embedding.weight, model.embedding.weight)  # pyright: ignore
    assert [*twins(model, 0)] == []


def test_a_number_is_beyond_its_twins_outside_the_interval_of_one_more():
    from scipy.stats import t

    values = (0.41, 0.50, 0.60)
    low, high = Beside("x", "share", 0.5, values).interval
    half = t.ppf(0.975, 2) * np.std(values, ddof=1) * (4 / 3) ** 0.5
    assert (low, high) == pytest.approx((np.mean(values) - half, np.mean(values) + half), rel=1e-4)
    assert str(Beside("in use", "share of tokens", 0.576, values)) == (
        "in use 57.6% of tokens; untrained twins 41.0% to 60.0%"
    )
    assert str(Beside("x", "bits", 9.0, (1.0, 1.1, 1.2))).endswith(
        "untrained twins 1 to 1.2, beyond the twins"
    )
    assert not Beside("x", "bits", 9.0, (1.0,)).beyond  # one twin says nothing of the others


def test_hardly_any_untrained_model_has_a_hub_by_the_test(batches):
    """By mean + 1 s.d. nearly all had one."""
    found = [routing(build(init_seed=seed), batches) for seed in range(24)]
    old = sum(bool(one.hubs) for one in found)
    new = sum(bool(learned_hubs(found[i], found[i + 1 : i + 4])) for i in range(0, 24, 4))
    assert old >= 18
    assert new <= 1


def test_a_stream_that_all_read_is_a_hub(model, batches):
    others = [routing(twin, batches) for _, twin in twins(model, 4)]
    wanted = torch.full((4, 4), 0.02)
    wanted[:, 2] = 0.94
    force_pattern(model, wanted)
    found = routing(model, batches)
    assert learned_hubs(found, others) == [2]
    assert strongest(found, others).value == 1.0
    assert "hubs beyond the twins' strongest stream: S2" in summary(found, others)
    assert "hubs" not in summary(found, others[:1])  # one twin has no interval to be beyond
    assert beside(found, []) == []


def test_controls_are_the_losses_with_the_patterns_replaced(model, batches):
    found = routing_controls(model, batches)
    data = [srmlab.data.as_batch(batch) for batch in batches]

    @torch.no_grad()
    def total() -> float:
        return sum(float(token_losses(model, batch).sum()) for batch in data)

    full = total()
    force_pattern(model, torch.full((4, 4), 0.25))
    flat = total()
    counted = sum(int(batch.counted.sum()) for batch in data)
    assert found.loss_change[0] == pytest.approx((flat - full) / counted, abs=1e-5)
    assert f"KL {found.kl[0] / np.log(2):.3f}" in found.summary()  # in bits, as every KL of predictions
    assert "bits" in found.summary()
    again = routing_controls(model, batches)  # a constant pattern is worth nothing more than itself
    assert again.loss_change == pytest.approx(0, abs=1e-6)
    assert again.kl == pytest.approx(0, abs=1e-6)


def test_a_threshold_may_be_relative_to_the_number_of_streams(model):
    assert weight_of("0.10", model) == 0.10
    assert weight_of("2/S", model) == 0.5
    for wrong in ("2/T", "much", "/S", "nan", "-1", "9/S"):
        with pytest.raises(UserError, match="give a weight such as"):
            weight_of(wrong, model)


def test_twins_are_measured_kept_and_told(tmp_path):
    run = trained_run(tmp_path)
    options = {"path": run, "tokens": 256, "only": ("routing",), "batch_size": 4, "formats": ("png",)}
    answer = Command(**options, null=2).analyze(show=False)
    assert "untrained twins" in answer["results"]["routing"]["twins"][0]
    assert "next to 2 untrained twins" in (run / "analysis" / "summary.txt").read_text()
    for seed in (1, 2):
        twin = load(run / "analysis" / "null" / f"seed-{seed}" / "routing")
        assert twin.evidence == load(run / "analysis" / "routing").evidence
    stamps = [file.stat().st_mtime_ns for file in sorted((run / "analysis" / "null").rglob("*.npz"))]
    assert len(stamps) == 2
    assert Command(**options, null=2).analyze(show=False) == answer
    assert [f.stat().st_mtime_ns for f in sorted((run / "analysis" / "null").rglob("*.npz"))] == stamps
    assert "twins" not in Command(**options, null=0).analyze(show=False)["results"]["routing"]
    with pytest.raises(UserError, match="--null -1"):
        Command(**options, null=-1).analyze(show=False)
