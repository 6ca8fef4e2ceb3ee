"""The activation cache: the values of a forward pass by site name.

`run_with_cache` returns one: a dict, with TransformerLens' helpers.

    >>> import srmlab, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> logits, cache = model.run_with_cache(torch.arange(5)[None])
    >>> cache.stack_activation("layers.*.update").shape         # layer, batch, token, stream, dim
    torch.Size([8, 1, 5, 8, 32])
    >>> states = cache.accumulated_resid()                      # the state at every point in depth
    >>> parts, labels = cache.decompose_resid(return_labels=True)
    >>> labels[:3]                                              # where it starts, then what every call adds
    ['start', 'layers.0.steps.0.out', 'layers.0.steps.1.out']
    >>> torch.allclose(parts.sum(0), states[-1], atol=1e-4)
    True
    >>> token = int(logits[0, -1].argmax())
    >>> torch.allclose(cache.logit_attrs(parts, token).sum(0)[0, -1], logits[0, -1, token], atol=1e-4)
    True
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from srmlab.errors import UserError
from srmlab.models.decoding import check_range
from srmlab.models.sites import NamesFilter, UnknownSite, hint

if TYPE_CHECKING:
    from srmlab.models.model import LanguageModel


class ActivationCache(dict[str, Tensor]):
    """The values of a forward pass by site name, as `run_with_cache` returns them."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model
        self.batched = True

    def __missing__(self, name: str) -> Tensor:
        known = self.model.site_names
        if name not in known:
            raise UnknownSite(f"no site is called {name!r}{hint(str(name), known)}")
        raise UserError(f"the cache lacks {name}: leave out names_filter, or let it select this site too")

    def __repr__(self) -> str:
        more = " …" if len(self) > 3 else ""
        return f"{type(self).__name__} of {len(self)} values: {', '.join([*self][:3])}{more}"

    def to(self, device: torch.device | str) -> Self:
        """Move all values; returns the cache."""
        self.update({name: value.to(device) for name, value in self.items()})
        return self

    def remove_batch_dim(self) -> Self:
        """Remove the batch axis, of size 1, from all values; returns the cache."""
        if sizes := {len(value) for value in self.values()} - {1}:
            raise UserError(f"remove_batch_dim is for one text; here are {max(sizes)}")
        self.update({name: value[0] for name, value in self.items()})
        self.batched = False
        return self

    def stack_activation(self, names_filter: NamesFilter) -> Tensor:
        """[site, …] The values of several sites of one shape, in the order of the computation."""
        names = self.model.select_sites(names_filter)
        shapes = {tuple(self[name].shape) for name in names}
        if len(shapes) != 1:
            raise UserError(
                f"{names_filter!r} selects values of shapes {sorted(shapes)}: stack those of one shape"
            )
        return torch.stack([self[name] for name in names])

    def accumulated_resid(self, return_labels: bool = False) -> Tensor | tuple[Tensor, list[str]]:
        """[point, B, T, S, D] The state at every point in depth: what has accumulated so far."""
        self.need_batch()
        points = self.model.points
        found = torch.stack([self.model.state_at(point, self) for point in points])
        return (found, [point.name for point in points]) if return_labels else found

    def decompose_resid(self, return_labels: bool = False) -> Tensor | tuple[Tensor, list[str]]:
        """[part, B, T, …] Where the state starts, and what every call adds to it.

        The parts add up to the state after the last level; in a model of two nets, those of each net to its
        own. They do not where the state is normed or mixed between calls, as in Ouro and hyper-connections.
        Labels are the calls' sites.
        """
        self.need_batch()
        if not self.model.calls:
            raise UserError(f"{self.model.config.architecture} does not say what its calls add to the state")
        parts: list[Tensor] = []
        labels: list[str] = []
        sites = {call.site for call in self.model.calls}
        for call in self.model.calls:
            value = self[call.site]
            goes_on = isinstance(call.before, str) and call.before in sites
            begins = not parts if call.before is None else not goes_on
            before = self.model.site_names[0] if call.before is None else call.before
            given = self[before] if isinstance(before, str) else before
            if begins:
                if given.ndim == 3 and value.ndim == 4:  # [B, T, D], from which every stream starts
                    given = given[:, :, None]
                parts.append(given.to(value).expand_as(value))
                labels.append("start")
            parts.append(value if call.before is None else value - given.to(value))
            labels.append(call.site)
        found = torch.stack(parts)
        return (found, labels) if return_labels else found

    def logit_attrs(self, parts: Tensor, tokens: Tensor | int | str) -> Tensor:
        """[part, B, T] What each part [part, B, T, S, D] of the last state adds to the logit of `tokens`, one
        id, the text of one, or [B, T]: where the output is linear, so that logits are sums over parts."""
        model = self.model
        if model.stream_readout is None or len(model.points) > model.depth:
            raise UserError(
                f"logit_attrs needs an output that is linear in the last state; that of this "
                f"{model.config.architecture} is not"
            )
        if parts.ndim != 5 or parts.shape[-2:] != (len(model.streams), model.stream_dim):
            raise UserError(f"parts of shape {list(parts.shape)}: give [part, batch, token, stream, dim]")
        if isinstance(tokens, str):
            tokens = model.to_single_token(tokens)
        ids, positions = torch.as_tensor(tokens, device=parts.device), parts.shape[1:3]
        if ids.ndim and ids.shape not in (positions, positions[1:]):
            raise UserError(
                f"tokens of shape {list(ids.shape)}: give one id, or {list(positions)}, as parts have"
            )
        check_range(ids, model.config.vocab_size)
        ids = ids.expand(positions)
        directions = model.unembedding[ids]  # [B, T, E]
        wanted = torch.einsum("bte,sde->btsd", directions, model.stream_readout)
        return torch.einsum("nbtsd,btsd->nbt", parts, wanted.to(parts))

    def need_batch(self) -> None:
        if not self.batched:
            raise UserError("this cache has no batch axis any more: ask it before remove_batch_dim")
