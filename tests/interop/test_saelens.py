"""Dictionaries in SAELens' format. Where SAELens is installed its own codes are compared."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

sys.path.append(str(Path(__file__).parents[1] / "dictionaries"))
from counting import counting_model, text

import srmlab
import srmlab.dictionaries
from srmlab.dictionaries import Dictionary
from srmlab.errors import UserError
from srmlab.interop import saelens


@pytest.fixture(scope="module")
def small():
    return counting_model(10)


@pytest.fixture(scope="module", params=["topk", "batchtopk", "jumprelu"])
def dictionary(small, request) -> Dictionary:
    return srmlab.dictionaries.learn(small, text, steps=10, features=32, k=3, activation=request.param)


STATES = torch.randn(20, 4, 16, generator=torch.Generator().manual_seed(0))


def theirs(folder: Path, states: torch.Tensor) -> torch.Tensor:
    """SAELens' codes, from the files alone."""
    config, weights = (
        json.loads((folder / "cfg.json").read_text()),
        load_file(folder / "sae_weights.safetensors"),
    )
    given = states - weights["b_dec"] * config["apply_b_dec_to_input"]
    before = given @ weights["W_enc"] + weights["b_enc"]
    if config["architecture"] == "jumprelu":
        return before.relu() * (before > weights["threshold"])
    kept = before.topk(config["k"])
    return torch.zeros_like(before).scatter(-1, kept.indices, kept.values.relu())


def test_every_stream_is_a_folder_whose_codes_are_ours(dictionary, tmp_path):
    folders = saelens.save(dictionary, tmp_path)
    assert [folder.name for folder in folders] == ["S0", "S1", "S2", "S3"]
    codes = dictionary.encode(STATES)
    for s, folder in enumerate(folders):
        torch.testing.assert_close(theirs(folder, STATES[:, s]), codes[:, s])


def test_what_was_written_is_read_back_the_same(dictionary, tmp_path):
    again = saelens.load(saelens.save(dictionary, tmp_path))
    assert again.config == dictionary.config
    assert torch.equal(again.encode(STATES), dictionary.encode(STATES))
    assert torch.equal(again(STATES), dictionary(STATES))


def test_saelens_gives_the_same_codes(dictionary, tmp_path):
    sae_lens = pytest.importorskip("sae_lens", reason="SAELens is not installed")
    for s, folder in enumerate(saelens.save(dictionary, tmp_path)):
        sae = sae_lens.SAE.load_from_disk(folder)
        with torch.no_grad():
            torch.testing.assert_close(sae.encode(STATES[:, s]), dictionary.encode(STATES)[:, s])
            torch.testing.assert_close(sae(STATES[:, s]), dictionary(STATES)[:, s])


def test_what_saelens_learns_on_a_site_is_read(small, tmp_path):
    """The way docs/dictionaries.md shows."""
    sae_lens = pytest.importorskip("sae_lens", reason="SAELens is not installed")
    config = sae_lens.BatchTopKTrainingSAEConfig(d_in=16, d_sae=32, k=3)
    sae = sae_lens.BatchTopKTrainingSAE(config)

    def states(stream: int):
        for step in range(10_000):
            _, cache = small.run_with_cache(text(step), "layers.2.out")
            yield cache["layers.2.out"][:, :, stream].flatten(0, 1)

    theirs = pytest.importorskip("sae_lens.config")

    settings = theirs.SAETrainerConfig(
        n_checkpoints=0, checkpoint_path=None, save_final_checkpoint=False, total_training_samples=640,
        device="cpu", autocast=False, lr=1e-3, lr_end=1e-3, lr_scheduler_name="constant", lr_warm_up_steps=0,
        adam_beta1=0.9, adam_beta2=0.999, lr_decay_steps=0, n_restart_cycles=1, train_batch_size_samples=64,
        dead_feature_window=1000, feature_sampling_window=1000,
        logger=theirs.LoggingConfig(log_to_wandb=False),
    )  # fmt: skip
    sae_lens.SAETrainer(cfg=settings, sae=sae, data_provider=states(1)).fit()
    sae.save_inference_model(tmp_path / "S1")
    ours = saelens.load([tmp_path / "S1"])
    assert ours.config.activation == "jumprelu"
    loaded = sae_lens.SAE.load_from_disk(tmp_path / "S1")
    given = next(states(1))
    with torch.no_grad():
        torch.testing.assert_close(
            ours.encode(given[:, None])[:, 0], loaded.encode(given), atol=1e-5, rtol=1e-4
        )


def test_biases_and_norms_of_other_conventions_are_folded_in(tmp_path):
    torch.manual_seed(0)
    config = {"architecture": "topk", "d_in": 6, "d_sae": 9, "k": 2, "apply_b_dec_to_input": False}
    config |= {"rescale_acts_by_decoder_norm": True, "metadata": {"hook_name": "layers.2.out"}}
    weights = {"W_enc": torch.randn(6, 9), "b_enc": torch.randn(9), "W_dec": torch.randn(9, 6)}
    weights["b_dec"] = torch.randn(6)
    saelens.write_sae(tmp_path, config, weights)
    given, size = torch.randn(5, 6), weights["W_dec"].norm(dim=-1)
    before = (given @ weights["W_enc"] + weights["b_enc"]) * size
    kept = before.topk(2)
    expected = torch.zeros_like(before).scatter(-1, kept.indices, kept.values.relu())
    ours = saelens.load([tmp_path])
    torch.testing.assert_close(ours.encode(given[:, None])[:, 0], expected)
    rebuilt = (expected / size) @ weights["W_dec"] + weights["b_dec"]
    torch.testing.assert_close(ours(given[:, None])[:, 0], rebuilt)
    assert ours.config.points == ("layers.2.out",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "gated"}, "only topk and jumprelu are read"),
        ({"normalize_activations": "layer_norm"}, "normalises its input"),
        ({"d_in": 5}, "do not fit their cfg.json"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(dictionary, tmp_path, change, message):
    folder = saelens.save(dictionary, tmp_path)[0]
    config = json.loads((folder / "cfg.json").read_text()) | change
    (folder / "cfg.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=message):
        saelens.load([folder])
    with pytest.raises(UserError, match="holds no sparse autoencoder"):
        saelens.load([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="give one of SAELens'"):
        saelens.load([])


def test_streams_of_another_sparsity_or_order_are_refused(small, tmp_path):
    two, three = (
        saelens.save(srmlab.dictionaries.learn(small, text, steps=1, features=8, k=k), tmp_path / str(k))
        for k in (2, 3)
    )
    with pytest.raises(UserError, match="unlike sizes or kinds"):
        saelens.load([two[0], three[1]])
    with pytest.raises(UserError, match="streams 0, 2, 1"):
        saelens.load([two[0], two[2], two[1]])
    assert saelens.load(two[2:]).config.streams == 2


def test_one_folder_in_place_of_a_list_is_refused(tmp_path):
    for folder in (tmp_path, str(tmp_path)):
        with pytest.raises(UserError, match="give a list, SAELens' folder of every stream"):
            saelens.load(folder)
