"""A small model, a little text, and a dictionary learned on it."""

from __future__ import annotations

import pytest
import torch
from counting import counting_model, text

import srmlab.dictionaries
from srmlab.dictionaries import Dictionary
from srmlab.models import SRM


@pytest.fixture(scope="session")
def small() -> SRM:
    return counting_model()


@pytest.fixture(scope="session")
def dictionary(small) -> Dictionary:
    return srmlab.dictionaries.learn(small, text, steps=60, features=64, k=4)


@pytest.fixture
def unseen() -> list[torch.Tensor]:
    return [text(1000 + i) for i in range(3)]
