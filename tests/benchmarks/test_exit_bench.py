"""What the bench of early exit says is what a reader can check by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import srmlab

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def early_exit(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import exit as early_exit

    return early_exit


@pytest.fixture(scope="module")
def model():
    return srmlab.load(srmlab.pretrained.folder()).eval()


def test_never_stopping_costs_nothing(early_exit, model):
    tokens = torch.arange(24)[None]
    found = early_exit.cost(model, tokens[:, :-1], tokens[:, 1:], 0.0)
    assert found.layers == model.depth
    assert found.loss == pytest.approx(0, abs=1e-5)
    assert found.mean_kl == pytest.approx(0, abs=1e-5)
    assert found.cache == pytest.approx(1, abs=0.02)  # and the addresses


def test_a_divergence_is_never_negative_and_grows_with_the_tolerance(early_exit, model):
    tokens = torch.arange(24)[None]
    costs = [early_exit.cost(model, tokens[:, :-1], tokens[:, 1:], exit) for exit in (0.05, 0.2, 0.6)]
    assert 0 < costs[0].mean_kl < costs[1].mean_kl < costs[2].mean_kl
    assert costs[0].layers > costs[1].layers > costs[2].layers
    assert all(found.mean_kl <= found.high_kl for found in costs)
