"""What is inside a model: numbers beside untrained twins, losses by level, and what an exit gate knows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import srmlab
from srmlab.analysis.bootstrap import ranks
from srmlab.analysis.inside import exit_gates, inside, rank_correlation
from srmlab.data import Batch
from srmlab.models import LanguageModel
from srmlab.models.loss import IGNORE, token_losses

SIZES = {"vocab_size": 32, "context": 12, "dim": 16, "heads": 2, "head_dim": 8, "mlp_dim": 24}
TINY = {
    "ouro-nano": {"blocks": 1, "loops": 3},
    "huginn-nano": {"core": 1, "steps": 3, "gradient_depth": 2},
    "mor-nano": {"kv_heads": 2, "core": 1},
    "hyper-loop-nano": {"loops": 3},
    "transformer-nano": {"blocks": 2},
}
TOKENS = torch.randint(0, 32, (3, 12), generator=torch.Generator().manual_seed(0))
TARGETS = TOKENS.roll(-1, 1)
TARGETS[:, -1] = IGNORE
BATCHES = [Batch(TOKENS, TARGETS)]


def tiny(name: str) -> LanguageModel:
    return srmlab.build(srmlab.preset(name, **SIZES, **TINY[name])).eval()


def ouro_with_a_gate() -> LanguageModel:
    model = tiny("ouro-nano")
    with torch.no_grad():
        model.gate.weight.copy_(torch.linspace(-1, 1, 16)[None])
    return model


@pytest.mark.parametrize("name", TINY)
def test_losses_by_level_are_those_of_the_model_that_stops_there(name):
    model = tiny(name)
    found = inside(model, BATCHES, twins=1)
    assert len(found.losses) == (2 * model.depth if model.recurrent else model.depth)
    assert len(found.changes) == len(found.losses) - 1
    with torch.no_grad():
        whole = float(model(TOKENS, TARGETS))
        assert found.losses[model.depth - 1] == pytest.approx(whole, abs=1e-5) or name == "mor-nano"
        for depth in (1, 2 * model.depth) if model.recurrent else ():
            stops = float(model.at_depth(depth)(TOKENS, TARGETS))
            assert found.losses[depth - 1] == pytest.approx(stops, abs=1e-5)


def test_only_what_is_defined_is_measured():
    ouro, mor, hyper = (inside(tiny(n), BATCHES, 2) for n in ("ouro-nano", "mor-nano", "hyper-loop-nano"))
    assert (ouro.streams, len(ouro.gates)) == (None, 2)
    assert (mor.streams, mor.drift, mor.gates) == (None, None, ())
    assert hyper.gates == ()
    assert hyper.streams is not None
    assert hyper.streams.value == pytest.approx(1)  # at the start, one stream several times
    assert hyper.streams.twins == pytest.approx((1, 1))
    srm = inside(srmlab.build(srmlab.preset("srm-nano", vocab_size=32, context=12)).eval(), BATCHES, 1)
    assert srm.streams is not None
    assert abs(srm.streams.value) < 0.2


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Where no two values are equal."""
    return float(np.corrcoef(x.argsort().argsort(), y.argsort().argsort())[0, 1])


def test_what_a_gate_knows_is_the_correlation_over_the_tokens_of_a_window():
    model = ouro_with_a_gate()
    _, cache = model.run_with_cache(TOKENS, list(model.exit_sites))
    losses = []
    with torch.no_grad():
        for depth in (1, 2, 3):
            hidden = model.at_depth(depth).output_embedding(TOKENS)
            losses.append(token_losses(hidden, model.unembedding, TARGETS)[:, :-1].numpy())
    for level, gate in enumerate(exit_gates(model, BATCHES)):
        on = 1 - cache[model.exit_sites[level]][:, :-1, 0].detach().numpy()
        gain = losses[level] - losses[-1]
        rows = [spearman(on[row], gain[row]) for row in range(3)]
        assert gate.level == level + 1
        assert gate.knows.mean == pytest.approx(np.mean(rows), abs=1e-6)
        assert gate.gain.mean == pytest.approx(gain.mean(), abs=1e-5)
        assert gate.shuffled.mean != gate.knows.mean


def test_a_gate_that_says_the_same_of_every_token_knows_nothing():
    for gate in exit_gates(tiny("ouro-nano"), BATCHES):  # its weights begin at zero
        assert (gate.knows.mean, gate.shuffled.mean) == (0, 0)
        assert gate.entropy.mean != 0


def test_equal_values_share_their_rank():
    assert ranks(torch.tensor([3.0, 1.0, 3.0, 0.0])).tolist() == [3.5, 2.0, 3.5, 1.0]
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert rank_correlation(x, x.exp()) == pytest.approx(1)
    assert rank_correlation(x, -x) == pytest.approx(-1)
    assert rank_correlation(x, torch.ones(4)) == 0
