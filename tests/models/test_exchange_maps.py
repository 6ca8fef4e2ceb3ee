"""The matrices that a model says its exchanges are made of are the ones it computes with."""

import pytest
import torch

from srmlab.models import build
from subjects import SMALL


@pytest.mark.parametrize("connection", ["attention", "gate", "translation"])
@pytest.mark.parametrize("z0", ["fixed", "input"])
def test_pattern_and_message_follow_from_the_matrices(connection, z0):
    model = build(SMALL.replace(connection=connection, z0=z0, stream_heads=3))
    tokens = torch.arange(20).view(2, 10)
    with torch.no_grad():
        if connection == "translation":  # or all streams would be read alike
            model.layer.connection.gates.normal_()
        _, cache = model.run_with_cache(tokens)
        for exchange in model.exchanges:
            state = exchange.state
            z = cache[state] if isinstance(state, str) else state.expand(2, 10, -1, -1)
            pattern = cache[exchange.pattern]
            if model.queries_and_keys is not None:
                query, key = (torch.einsum("btsd,hsdk->bthsk", z, m) for m in model.queries_and_keys)
                torch.testing.assert_close(torch.softmax(query @ key.mT, -1), pattern)
            message = torch.einsum("bthij,btjd,hijde->btie", pattern, z, model.translations)
            torch.testing.assert_close(message, cache[exchange.message], atol=1e-5, rtol=1e-4)


def test_connections_without_such_matrices_say_none():
    model = build(SMALL.replace(connection="addition"))
    assert model.queries_and_keys is None
    assert model.translations is None
    assert build(SMALL.replace(connection="translation")).queries_and_keys is None
