"""Which model a file is of: what was saved long ago is still recognised."""

import json

import torch

import srmlab
from srmlab.models import SRMConfig
from srmlab.storage import model_fingerprint, model_mark

SMALL = SRMConfig(
    vocab_size=20, context=8, embedding_dim=8, streams=2, stream_dim=8, mlp_dim=8, token_heads=1
)


def test_the_shipped_means_and_dictionary_are_known_as_the_shipped_models():
    folder = srmlab.pretrained.folder()
    means = json.loads((folder / "analysis/states.json").read_text())["settings"]["model"]
    dictionary = json.loads((folder / "dictionaries/every-256-4/dictionary.json").read_text())["model"]
    model = srmlab.load(folder)
    assert model_mark(model) == means == dictionary
    assert model_fingerprint(model) == "6071d0b5092b95da6b75f92e2f321b32"


def test_one_changed_weight_is_another_model():
    model = srmlab.build(SMALL)
    before = model_fingerprint(model)
    with torch.no_grad():
        next(model.parameters())[-1, -1] += 1e-6
    assert model_fingerprint(model) != before


def test_another_config_is_another_model_even_with_the_same_weights():
    models = [srmlab.build(SMALL.replace(rope_theta=theta)) for theta in (1e4, 1e5)]
    assert model_mark(models[0]) != model_mark(models[1])
    assert model_fingerprint(models[0]) != model_fingerprint(models[1])
