"""A model that has learned to count, and the text it counts in."""

from __future__ import annotations

import torch

import srmlab
from srmlab.models import SRM
from subjects import SMALL


def text(step: int) -> torch.Tensor:
    """Four windows of 16 tokens that count by ones, twos or threes; other ones at every step."""
    draw = torch.Generator().manual_seed(step)
    first = torch.randint(0, SMALL.vocab_size, (4, 1), generator=draw)
    stride = torch.randint(1, 4, (4, 1), generator=draw)
    return (first + stride * torch.arange(16)) % SMALL.vocab_size


def counting_model(steps: int = 60) -> SRM:
    model = srmlab.build(SMALL.replace(depth=3))
    assert isinstance(model, SRM)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        tokens = text(step)
        loss = torch.nn.functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for parameter in model.parameters():
        parameter.grad = None
    return model.eval()
