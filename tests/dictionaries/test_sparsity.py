"""BatchTopK and JumpReLU beside TopK, dead features, and features in use against what is lost."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from counting import text

import srmlab
import srmlab.analysis
import srmlab.dictionaries
from srmlab.analysis.result import Evidence
from srmlab.cli import main
from srmlab.dictionaries import Dictionary, DictionaryConfig
from srmlab.dictionaries.curve import Curve
from srmlab.dictionaries.learning import AUXILIARY, Learner
from srmlab.dictionaries.sparsity import Jump, chosen
from srmlab.errors import UserError
from subjects import trained_run


@pytest.fixture(scope="module", params=["batchtopk", "jumprelu"])
def thresholded(small, request) -> Dictionary:
    return srmlab.dictionaries.learn(small, text, steps=60, features=64, k=4, activation=request.param)


def test_with_a_threshold_about_k_are_in_use_and_as_much_is_explained(small, dictionary, thresholded, unseen):
    found = srmlab.dictionaries.quality(small, thresholded, unseen)
    usual = srmlab.dictionaries.quality(small, dictionary, unseen)
    assert 2 < found.mean_active < 8
    assert found.mean_explained > usual.mean_explained - 0.2
    assert thresholded.config.activation in found.summary()
    assert found.dead == pytest.approx(1 - found.alive.mean())


def test_codes_are_the_activations_above_the_threshold(thresholded):
    states = torch.randn(7, 4, 16, generator=torch.Generator().manual_seed(0))
    activations, codes = thresholded.activations(states), thresholded.encode(states)
    for s in range(4):
        above = activations[:, s] > thresholded.threshold[s]
        torch.testing.assert_close(codes[:, s], torch.where(above, activations[:, s], 0.0))


def test_learning_is_the_same_again_to_the_bit_and_read_back(small, thresholded, tmp_path):
    kind = thresholded.config.activation
    other = srmlab.dictionaries.learn(small, text, steps=60, features=64, k=4, activation=kind)
    again = srmlab.dictionaries.load(srmlab.dictionaries.save(other, tmp_path / kind))
    assert again.config == thresholded.config
    for name, value in thresholded.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_a_topk_dictionary_is_written_as_before_there_were_others(dictionary, tmp_path):
    folder = srmlab.dictionaries.save(dictionary, tmp_path / "one")
    assert "activation" not in json.loads((folder / "dictionary.json").read_text())


def test_a_batch_keeps_k_times_its_states_and_the_least_of_them_moves_the_threshold():
    config = DictionaryConfig(streams=2, dim=6, features=8, k=3, activation="batchtopk")
    dictionary = Dictionary(config)
    activations = torch.rand(2, 10, 8, generator=torch.Generator().manual_seed(0))
    codes, cost = chosen(dictionary, activations, torch.ones(2, 1, 1))
    assert cost is None
    assert dictionary.threshold is not None
    assert (codes > 0).sum((1, 2)).tolist() == [30, 30]
    for s in range(2):
        least = activations[s].flatten().sort(descending=True).values[29]
        torch.testing.assert_close(codes[s], activations[s] * (activations[s] >= least))
        torch.testing.assert_close(dictionary.threshold[s], torch.full((8,), 0.1 * least.item()))


def test_a_jump_has_the_slope_of_one_as_wide_as_its_width():
    values = torch.tensor([[[0.2], [0.45], [0.55], [0.9]]], requires_grad=True)  # [S, N, F]
    threshold = torch.tensor([[[0.5]]], requires_grad=True)
    up = Jump.apply(values, threshold, torch.tensor([[[0.2]]]))
    up.sum().backward()
    assert up.flatten().tolist() == [0, 0, 1, 1]
    assert values.grad is not None
    assert threshold.grad is not None
    torch.testing.assert_close(values.grad.flatten(), torch.tensor([0.0, 5, 5, 0]))
    assert threshold.grad.item() == pytest.approx(-10)


def test_dead_features_learn_what_the_others_leave():
    """Against the slow form: the dead ones' largest activations, a thirty-second of the loss."""
    learner = Learner(Dictionary(DictionaryConfig(2, 6, 8, 1)), 10, 1e-3, 5, "auxiliary")
    states = torch.randn(2, 20, 6, generator=torch.Generator().manual_seed(1))
    learner.step(states, states)
    activations, dead = learner.dictionary._activations(states).detach(), torch.zeros(2, 8, dtype=torch.bool)
    dead[0, [1, 2, 5, 6]] = True
    residual = torch.randn(2, 20, 6, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        found = learner.of_the_dead(activations, residual, dead)
        only = activations[0] * dead[0]
        kept = only * (only >= only.topk(3).values[:, -1:])
        left = residual[0] - kept @ learner.dictionary.directions[0]
        expected = torch.stack([left.square().sum(-1).mean(), residual[1].square().sum(-1).mean()])
    torch.testing.assert_close(found, expected / learner.variance)
    assert AUXILIARY == 1 / 32
    before = learner.dictionary.directions.detach().clone()
    never = (learner.silent > 0).nonzero()[0].tolist()  # not in use in the one step so far
    learner.step(states, states)
    moved = (learner.dictionary.directions - before).detach().norm(dim=-1)
    assert moved[tuple(never)] > 1e-4  # it is given a direction although it is not in use


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "relu"}, "activation = 'relu': must be one of topk, batchtopk, jumprelu"),
        ({"dead": "leave"}, "dead = 'leave': must be one of replace, auxiliary"),
    ],
)
def test_unknown_kinds_are_refused(small, options, message):
    with pytest.raises(UserError, match=message):
        srmlab.dictionaries.learn(small, text, steps=1, **options)


def test_a_curve_has_every_entry_with_its_seeds(small, unseen, tmp_path):
    found = [
        srmlab.dictionaries.quality(
            small, srmlab.dictionaries.learn(small, text, steps=20, features=32, k=k, seed=seed), unseen
        )
        for k in (1, 4)
        for seed in (0, 1)
    ]
    curve = srmlab.dictionaries.curve(found, seeds=2)
    assert curve.ks == (1, 4)
    assert curve.recovered[1, 0] == pytest.approx(found[2].all_recovered)
    assert curve.active[0].max() <= 1
    assert curve.spread("explained")[1] == pytest.approx(abs(np.diff(curve.explained[1])[0]) / 2)
    assert np.isnan(curve.shuffled).all()  # not measured
    assert "shuffled" not in curve.summary()
    again = srmlab.analysis.load(curve.save(tmp_path / "curve"))
    assert isinstance(again, Curve)
    assert again.summary() == curve.summary()
    assert len(curve.figure().axes) == 2
    untrained = dataclasses.replace(curve, recovered=np.full_like(curve.recovered, np.nan))
    assert "no loss to recover" in repr(untrained)
    with pytest.raises(UserError, match="as many seeds each"):
        srmlab.dictionaries.curve(found[:3], seeds=2)
    with pytest.raises(UserError, match="as many entries and seeds"):
        srmlab.dictionaries.curve(found, seeds=2, shuffled=found[:2])


def test_a_shuffled_dictionary_writes_anothers_directions_for_the_same_codes(small, dictionary, unseen):
    other = dictionary.changed("shuffled")
    states = torch.randn(5, 4, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(other.encode(states), dictionary.encode(states))
    for s in range(4):
        own, shuffled = ({tuple(row) for row in one.directions[s].tolist()} for one in (dictionary, other))
        assert own == shuffled
    assert not torch.equal(other.directions, dictionary.directions)
    worth = [srmlab.dictionaries.quality(small, one, unseen).mean_explained for one in (dictionary, other)]
    assert worth[1] < worth[0] - 0.2


def test_the_command_writes_the_curve(tmp_path, capsys):
    run = trained_run(tmp_path)
    capsys.readouterr()
    options = ["--tokens", "512", "--eval-tokens", "128", "--k", "1", "2", "--seeds", "1", "--json"]
    options += ["--twin"]
    with pytest.raises(SystemExit) as stop:
        main(["sparsity", str(run), *options, "--activations", "topk", "jumprelu"])
    assert not stop.value.code
    answer = json.loads(capsys.readouterr().out)
    assert answer["k"] == [1, 2, 1, 2]
    assert answer["activations"] == ["topk", "topk", "jumprelu", "jumprelu"]
    folder = run / "dictionaries" / "sparsity-last"
    assert (folder / "figures" / "sparsity.png").is_file()
    found = srmlab.analysis.load(folder / "sparsity")
    assert isinstance(found, Curve)
    assert np.isfinite(found.untrained).all()
    assert np.isfinite(found.shuffled).all()
    assert "(untrained " in found.summary()
    assert isinstance(found.evidence, Evidence)
    for wrong, message in (
        (["--seeds", "0"], "at least one"),
        (["--k", "99"], "k = 99: give 1 to 64"),
        (["--of", "mlp", "--layers", "every"], "--layers is for --of states, not for mlp; leave it out"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["sparsity", str(run), *options[:4], *wrong, "--out", str(tmp_path / "never")])
        assert stop.value.code == 2
        error = capsys.readouterr().err.splitlines()
        assert message in error[-1]
    assert not (tmp_path / "never").exists()
