"""What one pass through the Hugging Face wrapper needs: a cache, masks that can be read, states to give."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from srmlab.errors import UserError
from srmlab.models import LanguageModel
from srmlab.models.cache import DecodingCache
from srmlab.models.loss import IGNORE
from srmlab.models.sites import HookPoint


class SRMCache(Cache):
    """What `generate` hands from step to step: a `DecodingCache` (`.past`), which remembers padding too."""

    def __init__(self, model: LanguageModel, capacity: int | None = None) -> None:
        super().__init__(layers=[])
        self.past = model.new_cache(capacity)

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        return self.past.length

    def get_max_length(self, layer_idx: int | None = None) -> int:  # noqa: ARG002
        return self.past.capacity

    @property
    def batch_size(self) -> int:
        return self.past.rows or -1  # until something has been read

    def batch_select_indices(self, indices: Tensor) -> None:
        """Row r goes on from what row indices[r] has read."""
        if self.past.rows:
            self.past.select(indices)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.batch_select_indices(torch.arange(self.past.rows).repeat_interleave(repeats))

    @property
    def is_croppable(self) -> bool:
        return False

    def crop(self, tokens_to_remove: int) -> None:  # noqa: ARG002
        raise UserError("this cache cannot take tokens back: generate without assistant and prompt lookup")

    def reset(self) -> None:
        self.past = DecodingCache(self.past.capacity, self.past.reuse)


def real_tokens(mask: Tensor, tokens: Tensor, past: DecodingCache | None) -> Tensor:
    """[B, cached + new] True where there is no padding; a mask that cannot be read is refused."""
    batch, new = tokens.shape
    start = 0 if past is None else past.length
    if list(mask.shape) != [batch, start + new]:
        raise UserError(
            f"attention_mask of shape {list(mask.shape)}: need {[batch, start + new]}, one flag per token"
        )
    real = mask.bool()
    begins = real & ~nn.functional.pad(real, (1, -1))  # real, and the column before is not
    if not bool((begins.sum(-1) == 1).all()):
        raise UserError(
            "attention_mask: every row must be one unbroken run of tokens, padded on the left or the right"
        )
    if past is not None:
        if not bool(real[:, -1].all()):
            raise UserError(
                'attention_mask: text that goes on is padded on the left; set tokenizer.padding_side = "left"'
            )
        known = torch.ones_like(real[:, :start]) if past.real is None else past.real
        if not torch.equal(real[:, :start], known.to(real.device)):
            raise UserError("attention_mask: not the padding that the cached tokens were read with")
    return real


@contextmanager
def embedded_as(embedding: nn.Module, values: Tensor | None) -> Iterator[None]:
    """While open, `embedding` gives these values [B, T, E] for whatever tokens it reads."""
    if values is None:
        yield
        return
    handle = embedding.register_forward_hook(lambda *_: values)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def hidden_states(model: LanguageModel, wanted: bool) -> Iterator[list[Tensor]]:
    """The input and the state at every point in depth, each [B, T, S·D]: filled when the block closes."""
    states: list[Tensor] = []
    if not wanted:
        yield states
        return
    values: dict[str, Tensor] = {}
    flat: dict[str, Tensor] = {}

    def keep(value: Tensor, hook: HookPoint) -> Tensor:
        flat[hook.name] = value.flatten(2)
        values[hook.name] = flat[hook.name].view(value.shape)
        return values[hook.name]  # so that what is handed out is part of the computation and has a gradient

    first = model.site_names[0]
    sites = {first, *(site for point in model.points for site in point.sites)}
    with model.hooks([(sorted(sites), keep)]):
        yield states
    states.append(flat[first])
    for point in model.points:
        several = len(point.sites) > 1
        states.append(model.state_at(point, values).flatten(2) if several else flat[point.sites[0]])


@contextmanager
def attentions(model: LanguageModel, wanted: bool) -> Iterator[list[Tensor]]:
    """The pattern of every attention call, each [B, heads, T, keys] with those of all streams."""
    patterns: list[Tensor] = []
    sites = model.pattern_sites if wanted else []

    def keep(value: Tensor, hook: HookPoint) -> Tensor:  # noqa: ARG001
        patterns.append(value.flatten(1, -3))
        return patterns[-1].view(value.shape)

    with model.hooks([(sites, keep)]):
        yield patterns


def aligned(labels: Tensor | None) -> Tensor | None:
    """[B, T] What each token is to predict: the label of the next; at last −100, which does not count."""
    return None if labels is None else nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE)


def without_padding(given: Tensor, real: Tensor) -> Tensor:
    """Aligned labels [B, T], of real tokens alone; what padding would predict does not count."""
    return given.masked_fill(~real[:, -given.shape[1] :].to(given.device), IGNORE)


def share_counted(counted: Tensor, given: Tensor) -> Tensor:
    """How many of the aligned labels [B, T] that were given count: a share, never 0."""
    kept, all = ((labels != IGNORE).sum().clamp_min(1) for labels in (counted, given))
    return kept / all


def check_positions(given: Tensor, real: Tensor | None, tokens: Tensor, past: DecodingCache | None) -> None:
    """Refuse positions that are not those of an unbroken text, from its first token on."""
    batch, new = tokens.shape
    if real is None:
        start = 0 if past is None else past.length
        real = torch.ones(batch, start + new, dtype=torch.bool, device=given.device)
    counted = (real.cumsum(-1) - 1)[:, -new:]
    if not bool(((counted == given.to(real.device)) | ~real[:, -new:]).all()):
        raise UserError("position_ids: positions count from each row's first token; leave them out")


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)
