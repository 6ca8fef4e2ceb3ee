"""Small models for the tests of this folder."""

from __future__ import annotations

import srm
from srm.models import SRM, SRMConfig

SMALL = SRMConfig(
    vocab_size=97,
    context=32,
    embedding_dim=24,
    streams=4,
    stream_dim=16,
    mlp_dim=32,
    token_heads=2,
    stream_heads=2,
    head_dim=8,
    order="ABC",
    depth=4,
    gradient_depth=2,
)


def build(**changes) -> SRM:
    model = srm.build(SMALL.replace(**changes))
    assert isinstance(model, SRM)
    return model
