"""Attention over tokens, for the view of that name: which calls there are, and the weights of one of them.

    >>> import srmlab
    >>> model = srmlab.build(srmlab.preset("srm-nano", vocab_size=257))
    >>> attention_calls(model)[4]
    AttentionCall(name='layers.1.steps.1', level=1)
    >>> attention_weights(model, [1, 2, 3], 4).shape             # stream, head, token, token read
    torch.Size([8, 1, 3, 3])

A trace has none of it: the weights of all calls would be many times its size, so each is asked for alone.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from safetensors.torch import save
from torch import Tensor

from srmlab.analysis.interventions import Hook
from srmlab.errors import UserError
from srmlab.models import LanguageModel


@dataclass(frozen=True)
class AttentionCall:
    """One of `model.pattern_sites`, without its ending, and the level of depth it belongs to."""

    name: str
    level: int


def attention_calls(model: LanguageModel) -> list[AttentionCall]:
    """All of a forward pass, in their order. Sites are in the order of the computation, so a call belongs to
    the level whose state is the next to be read."""
    order = {site: place for place, site in enumerate(model.site_names)}
    ends = [max(order[site] for site in point.sites) for point in model.points[: model.depth]]
    level = {site: min(bisect(ends, order[site]), model.depth - 1) for site in model.pattern_sites}
    return [AttentionCall(site.removesuffix(".attention.weights"), at) for site, at in level.items()]


@torch.inference_mode()
def attention_weights(
    model: LanguageModel, tokens: Sequence[int], call: int, hooks: Sequence[Hook] = ()
) -> Tensor:
    """How much each token reads of each in one call: [stream, head, token, token read]; a call that is not
    divided into streams has one."""
    sites = model.pattern_sites
    if call >= len(sites):
        raise UserError(f"attention call {call}: this model has {len(sites)}, counted from 0")
    ids = torch.tensor([list(tokens)], device=model.device)
    with model.evaluating(), model.hooks(hooks):
        _, cache = model.run_with_cache(ids, names_filter=[sites[call]])
    before = model.config.puzzle_positions  # of a puzzle; they are no cells
    weights = cache[sites[call]][0, ..., before:, before:].float()
    return weights if weights.ndim == 4 else weights[None]


def to_bytes(weights: Tensor) -> bytes:
    """One array of a safetensors file, as the page reads it."""
    return save({"weights": weights.half().cpu().contiguous()}, {"manifest": "{}"})
