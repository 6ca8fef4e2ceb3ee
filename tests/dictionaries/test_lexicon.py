"""A lexicon names the features in use, and belongs to one model."""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch
from counting import counting_model, text

import srmlab.dictionaries
from srmlab.dictionaries import Dictionary, Lexicon, lexicons_of
from srmlab.dictionaries.dictionary import check
from srmlab.errors import UserError


@pytest.fixture(scope="module")
def folder(small, dictionary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lexicon") / "last"
    srmlab.dictionaries.save(dictionary, folder)
    srmlab.dictionaries.features(small, dictionary, [text(0)], examples=2).save(folder / "features")
    return folder


def test_the_features_in_use_are_those_of_the_code(small, dictionary, folder):
    lexicon = Lexicon.load(folder, small)
    config = dictionary.config
    states = torch.randn(2, 25, config.streams, config.dim)
    features, activations = lexicon.in_use(states)
    codes = dictionary.encode(states)
    assert features.shape == activations.shape == (2, 25, config.streams, config.k)
    assert (activations.diff(dim=-1) <= 0).all()
    rebuilt = torch.zeros_like(codes).scatter_add(-1, features.clamp_min(0), activations)
    assert torch.equal(rebuilt, codes)
    assert ((features < 0) == (activations == 0)).all()


def test_of_another_model_or_without_its_features_it_is_refused(folder, tmp_path):
    other = counting_model()
    with torch.no_grad():
        next(other.parameters()).add_(1)
    with pytest.raises(UserError, match="learned on other weights"):
        Lexicon.load(folder, other)
    with pytest.raises(UserError, match="no dictionary in"):
        Lexicon.load(tmp_path)


def test_points_that_the_model_lacks_are_refused(small, dictionary):
    for points in ((), ("layers.99.out",)):
        config = dataclasses.replace(dictionary.config, points=points)
        with pytest.raises(UserError, match="are not states of this model"):
            check(small, Dictionary(config))


def test_without_features_it_is_refused_with_the_command_that_writes_them(dictionary, tmp_path):
    srmlab.dictionaries.save(dictionary, tmp_path)
    with pytest.raises(UserError, match="`srmlab dictionary RUN` writes both"):
        Lexicon.load(tmp_path)


def test_the_newest_of_a_run_comes_first_and_an_exports_lie_beside_it(folder, tmp_path):
    for place, age in (
        ("run/dictionaries/old", 100),
        ("run/dictionaries/new", 0),
        ("run-dictionaries/b", 50),
    ):
        target = tmp_path / place
        target.mkdir(parents=True)
        written = target / "dictionary.json"
        written.write_text((folder / "dictionary.json").read_text())
        os.utime(written, (1e9 - age, 1e9 - age))
    assert [found.name for found in lexicons_of(tmp_path / "run")] == ["new", "b", "old"]
    assert lexicons_of(tmp_path / "none") == []


def test_ones_own_of_a_shipped_model_come_before_those_it_ships_with(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = srmlab.pretrained.folder()
    own = tmp_path / f"{shipped.name}-dictionaries" / "own"
    own.mkdir(parents=True)
    (own / "dictionary.json").write_text((folder / "dictionary.json").read_text())
    os.utime(own / "dictionary.json", (0, 0))
    assert [found.name for found in lexicons_of(shipped)] == ["own", "every-256-4"]
    assert [found.name for found in lexicons_of(shipped, "transcoders.json")] == ["transcoders-mlp-128-4"]
