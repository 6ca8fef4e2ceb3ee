from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from counting import text

import srmlab
import srmlab.analysis
import srmlab.dictionaries
from srmlab.dictionaries import Dictionary, DictionaryConfig
from srmlab.dictionaries.quality import QualitySums, qualities
from srmlab.errors import UserError


def perfect(model) -> Dictionary:
    """A dictionary with a direction for each axis and each sign: every state is decoded exactly."""
    S, D = model.config.streams, model.config.stream_dim
    points = (f"layers.{model.config.depth - 1}.out",)
    dictionary = Dictionary(DictionaryConfig(streams=S, dim=D, features=2 * D, k=D, points=points))
    axes = torch.cat((torch.eye(D), -torch.eye(D))).expand(S, 2 * D, D)
    dictionary.directions.data.copy_(axes)
    dictionary.encoder.data.copy_(axes.mT)
    return dictionary


def test_a_perfect_dictionary_explains_and_recovers_all(small, unseen):
    found = srmlab.dictionaries.quality(small, perfect(small), unseen)
    np.testing.assert_allclose(found.explained, 1, atol=1e-5)
    np.testing.assert_allclose(found.recovered, 1, atol=1e-4)
    assert found.all_recovered == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(found.active, 16, atol=0.1)


def test_a_dictionary_without_directions_explains_nothing(small, unseen):
    """Its reconstruction is the mean state, so nothing is recovered either."""
    dictionary = perfect(small)
    means = srmlab.analysis.state_means(small, unseen)
    dictionary.encoder.data.zero_()
    dictionary.centre.data.copy_(means.at("layers.2.out"))
    found = srmlab.dictionaries.quality(small, dictionary, unseen)
    np.testing.assert_allclose(found.explained, 0, atol=1e-5)
    np.testing.assert_allclose(found.spliced, found.ablated, atol=1e-6)
    assert not found.alive.any()


def test_the_loss_is_the_models_own_and_the_ablated_that_of_the_ablation(small, dictionary, unseen):
    found = srmlab.dictionaries.quality(small, dictionary, unseen)
    tokens = torch.cat(unseen)
    loss = torch.nn.functional.cross_entropy(small(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    assert float(found.loss) == pytest.approx(loss.item(), abs=1e-5)
    ablation = srmlab.analysis.ablation(small, unseen)
    np.testing.assert_allclose(found.ablated - found.loss, ablation.loss_change, atol=1e-5)


def test_reading_out_is_running_again(small, dictionary, unseen):
    """For the final state the losses come from the linear output function; a second run gives the same."""
    (means,) = srmlab.analysis.capture(small, unseen, srmlab.analysis.states.StateSums(small))
    quick, slow = (QualitySums(small, dictionary, means) for _ in range(2))
    assert quick.readout is not None
    slow.readout = None
    one, other = srmlab.analysis.capture(small, unseen, quick, slow)
    for name in ("spliced", "ablated", "all_spliced", "all_ablated"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-5)


def test_explained_variance_is_that_of_the_states(small, dictionary, unseen):
    found = srmlab.dictionaries.quality(small, dictionary, unseen)
    _, cache = small.run_with_cache(torch.cat(unseen), "layers.2.out")
    states = cache["layers.2.out"].flatten(0, 1)
    with torch.no_grad():
        left = (states - dictionary(states)).square().sum((0, 2))
        codes = dictionary.encode(states)
    spread = (states - states.mean(0)).square().sum((0, 2))
    np.testing.assert_allclose(found.explained[0], (1 - left / spread).numpy(), atol=1e-5)
    np.testing.assert_allclose(found.firing[0], (codes > 0).double().mean(0).numpy(), atol=1e-6)
    assert 0.2 < found.mean_explained < 1


def test_every_number_has_its_error(small, dictionary, unseen):
    found = srmlab.dictionaries.quality(small, dictionary, unseen)
    for name in [*found.derived(), *found.axes()]:
        assert np.isfinite(found.standard_error(name)).all(), name
    assert "±" in found.summary()


def test_one_dictionary_for_all_layers_is_replaced_at_all_of_them(small, unseen):
    dictionary = srmlab.dictionaries.learn(
        small, lambda step: unseen[step % 3], steps=20, features=32, k=4, layers="every"
    )
    found = srmlab.dictionaries.quality(small, dictionary, unseen)
    assert found.explained.shape == (3, 4)
    assert found.all_spliced > found.loss


def test_packed_documents_are_read_as_if_apart(small, unseen):
    """Learned on them and measured on them, with attention within documents."""
    apart = [tokens.view(8, 8) for tokens in unseen]
    documents = torch.arange(16).expand(4, 16) // 8
    packed = [
        (tokens, torch.cat((rows[:, 1:], torch.full((8, 1), -100)), 1).view(4, 16), documents)
        for tokens, rows in zip(unseen, apart, strict=True)
    ]
    learned, found, fired = [], [], []
    for batches in (packed, apart):
        dictionary = srmlab.dictionaries.learn(
            small, lambda step, batches=batches: batches[step % 3], steps=5, features=32, k=4, layers="every"
        )
        learned.append(dictionary)
        found.append(srmlab.dictionaries.quality(small, learned[0], batches))
        fired.append(srmlab.dictionaries.features(small, learned[0], batches).fired)
    torch.testing.assert_close(learned[0].directions, learned[1].directions, rtol=0, atol=1e-4)
    for name in ("explained", "loss", "spliced", "ablated", "all_spliced", "all_ablated"):
        np.testing.assert_allclose(getattr(found[0], name), getattr(found[1], name), atol=1e-5)
    np.testing.assert_array_equal(fired[0], fired[1])


@pytest.mark.parametrize("layers", ["last", "every"])
def test_dictionaries_that_are_measured_together_are_worth_what_each_is_alone(small, unseen, layers):
    several = [
        srmlab.dictionaries.learn(small, text, steps=3, features=32, k=k, layers=layers) for k in (1, 3)
    ]
    for one, found in zip(several, qualities(small, several, unseen), strict=True):
        alone = srmlab.dictionaries.quality(small, one, unseen)
        assert found.summary() == alone.summary()
        np.testing.assert_array_equal(found.recovered, alone.recovered)


def test_a_dictionary_of_another_model_is_refused(small, dictionary, unseen):
    other = srmlab.build(small.config.replace(init_seed=3))
    with pytest.raises(UserError, match="learned on other weights"):
        srmlab.dictionaries.quality(other, dictionary, unseen)
    with pytest.raises(UserError, match="learned on other weights"):
        srmlab.dictionaries.features(other, dictionary, unseen)


def test_quality_is_saved_drawn_and_told(small, dictionary, unseen, tmp_path):
    found = srmlab.dictionaries.quality(small, dictionary, unseen)
    again = srmlab.analysis.load(found.save(tmp_path / "quality"))
    np.testing.assert_array_equal(again.recovered, found.recovered)
    assert again.summary() == found.summary()
    assert found.figure().axes
    (table,) = found.to_pgfplots(tmp_path, "small")
    assert len(table.read_text().splitlines()) == 5


def test_a_saved_quality_is_loaded_by_a_program_that_has_not_imported_dictionaries(
    small, dictionary, unseen, tmp_path
):
    srmlab.dictionaries.quality(small, dictionary, unseen).save(tmp_path / "quality")
    program = f"import srmlab.analysis; print(srmlab.analysis.load({str(tmp_path / 'quality')!r}).kind)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "dictionary"
