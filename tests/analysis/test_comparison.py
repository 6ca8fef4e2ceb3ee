"""Losses side by side where windows differ in their targets: means over tokens, and their intervals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from srmlab.analysis.comparison import compare
from srmlab.analysis.student import interval, student
from srmlab.data import Batch
from srmlab.errors import UserError
from srmlab.models import OuroConfig, build
from srmlab.models.loss import IGNORE
from srmlab.training.evaluation import per_token

OURO = OuroConfig(vocab_size=32, context=12, dim=16, heads=2, head_dim=8, mlp_dim=24, blocks=1, loops=2)
MODELS = {"one": build(OURO).eval(), "other": build(OURO.replace(init_seed=1)).eval()}


def answers(*counts: int) -> Batch:
    """Windows whose last so many targets count."""
    both = torch.randint(0, 32, (len(counts), 13), generator=torch.Generator().manual_seed(0))
    targets = both[:, 1:].clone()
    for row, count in enumerate(counts):
        targets[row, : 12 - count] = IGNORE
    return Batch(both[:, :-1], targets)


def test_the_loss_is_the_mean_over_tokens():
    batch = answers(1, 8, 3, 12)
    rows = compare(MODELS, [batch], twins=0)
    with torch.no_grad():
        one, other = (float(model(batch.tokens, batch.targets)) for model in MODELS.values())
    assert [row.loss.mean for row in rows] == pytest.approx([one, other], rel=1e-5)
    assert rows[1].difference is not None
    assert rows[1].difference.mean == pytest.approx(other - one, abs=1e-5)


def test_windows_without_a_target_do_not_count():
    both = answers(5, 2, 7, 0, 0)
    with_targets = Batch(both.tokens[:3], both.targets[:3])
    for found, expected in zip(
        compare(MODELS, [both], twins=0), compare(MODELS, [with_targets], twins=0), strict=True
    ):
        assert (found.loss.mean, found.loss.half) == pytest.approx((expected.loss.mean, expected.loss.half))
    one, _ = compare(MODELS, [answers(0, 4, 0)], twins=0)
    assert np.isnan(one.loss.half)  # of a single window nothing is known


def test_text_without_any_target_is_refused():
    with pytest.raises(UserError, match="no window of 12 tokens holds a question and its answer"):
        compare(MODELS, [answers(0, 0)], twins=0)


def test_the_interval_of_a_ratio_is_that_of_leaving_out_windows():
    random = np.random.default_rng(0)
    counts = random.integers(1, 9, 60)
    sums = random.normal(3, 0.5, 60) * counts
    without = (sums.sum() - sums) / (counts.sum() - counts)  # the jackknife
    error = np.sqrt(59 / 60 * np.square(without - without.mean()).sum())
    found = interval(per_token(sums, counts))
    assert found.mean == pytest.approx(sums.sum() / counts.sum())
    assert found.half == pytest.approx(student(59) * error, rel=0.03)
