"""Small models whose inner workings are known, and a little text for them."""

from __future__ import annotations

import pytest
import torch
from constructed import SMALL, build

from srmlab.models import SRM


@pytest.fixture
def model() -> SRM:
    return build()


@pytest.fixture
def batches() -> list[torch.Tensor]:
    """Four batches of three windows of 16 tokens."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(0, SMALL.vocab_size, (3, 16), generator=generator) for _ in range(4)]
