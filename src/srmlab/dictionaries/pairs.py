"""Why an edge is open: its logit as a sum over pairs of features, exactly.

The weight of an edge (head, target ← source) is the softmax over sources of

    logit = (z_target · query) · (z_source · key)

and a dictionary writes a state as z = centre + Σ_f a_f · direction_f + error. Both sides are linear in the
state, so the logit is a sum over pairs of terms, one of the target and one of the source: F features, then
the centre (place F), which is the same for every token, then the error (place F + 1), what the dictionary
does not explain.

    >>> import torch, srmlab, srmlab.dictionaries
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> text = lambda step: torch.arange(64).view(2, 32) + step
    >>> dictionary = srmlab.dictionaries.learn(model, text, steps=3, features=64, layers="every")
    >>> _, cache = model.run_with_cache(text(5), "layers.3.out")
    >>> edge = EdgeLogit(model, dictionary, head=1, target=2, source=5)
    >>> pairs = edge.pairs(cache["layers.3.out"].flatten(0, 1))            # token, term of S2, term of S5
    >>> pairs.shape
    torch.Size([64, 66, 66])
    >>> logits = edge.row(cache["layers.3.out"].flatten(0, 1))[:, 5]       # of layer 4, which reads it
    >>> torch.allclose(pairs.sum((1, 2)), logits, atol=1e-4)
    True
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from srmlab.dictionaries.dictionary import Dictionary
from srmlab.errors import UserError
from srmlab.models import LanguageModel


@dataclass(frozen=True)
class Terms:
    """States of one stream, taken apart."""

    codes: Tensor  # [N, F + 1] activations, and 1 for the centre
    error: Tensor  # [N, D]


class EdgeLogit:
    """The logit of one edge, in every layer: layers share their weights."""

    def __init__(
        self, model: LanguageModel, dictionary: Dictionary, head: int, target: int, source: int
    ) -> None:
        if model.queries_and_keys is None:
            raise UserError("pairs of features need a connection with queries and keys, such as attention")
        queries, keys = (matrix.detach().float() for matrix in model.queries_and_keys)  # [H, S, D, K]
        self.dictionary, self.target, self.source = dictionary, target, source
        self.query, self.keys = queries[head, target], keys[head]
        self.key = self.keys[source]
        self.table = self._directions(target) @ self.query @ (self._directions(source) @ self.key).T

    def _directions(self, stream: int) -> Tensor:
        """[F + 1, D] A stream's directions, and its centre."""
        d = self.dictionary
        return torch.cat((d.directions[stream], d.centre[stream][None])).detach()

    def row(self, states: Tensor) -> Tensor:
        """States [N, S, D] → the logits of all the target's sources [N, S]."""
        keys = torch.einsum("nsd,sdk->nsk", states.float(), self.keys)
        return torch.einsum("nk,nsk->ns", states[:, self.target].float() @ self.query, keys)

    def terms(self, states: Tensor, codes: Tensor | None = None) -> tuple[Terms, Terms]:
        """States [N, S, D], and the dictionary's codes of them if they are known → the terms of the target's
        and of the source's."""
        codes = self.dictionary.encode(states.float()).detach() if codes is None else codes
        found = []
        for stream in (self.target, self.source):
            own = torch.nn.functional.pad(codes[:, stream], (0, 1), value=1.0)
            found.append(Terms(own, states[:, stream].float() - own @ self._directions(stream)))
        return found[0], found[1]

    def pairs(self, states: Tensor) -> Tensor:
        """States [N, S, D] → what every pair of terms adds to the logit [N, F + 2, F + 2]."""
        target, source = self.terms(states)
        queries = self._each(target, self.target) @ self.query
        keys = self._each(source, self.source) @ self.key
        return queries @ keys.mT

    def _each(self, terms: Terms, stream: int) -> Tensor:
        """[N, F + 2, D] Every term as a vector."""
        parts = terms.codes[:, :, None] * self._directions(stream)
        return torch.cat((parts, terms.error[:, None]), 1)

    def total(self, terms: tuple[Terms, Terms], weights: Tensor) -> Tensor:
        """[F + 2, F + 2] The sum over tokens of weights [N] times pairs; without ever holding all pairs."""
        target, source = terms
        weighted = target.codes * weights[:, None]
        target_error = target.error @ self.query @ (self._directions(self.source) @ self.key).T  # [N, F + 1]
        source_error = source.error @ self.key @ (self._directions(self.target) @ self.query).T
        found = torch.empty(*(size + 1 for size in self.table.shape), device=weights.device)
        found[:-1, :-1] = (weighted.T @ source.codes) * self.table
        found[-1, :-1] = (target_error * source.codes * weights[:, None]).sum(0)
        found[:-1, -1] = (source_error * weighted).sum(0)
        both = ((target.error @ self.query) * (source.error @ self.key)).sum(1)
        found[-1, -1] = (both * weights).sum()
        return found

    def score(self, terms: tuple[Terms, Terms], pairs: Tensor | None = None) -> Tensor:
        """[N] What some pairs [n, 2] of features or centres add to the logit; by default all, so that only
        the errors are left out."""
        target, source = terms
        if pairs is None:
            return ((target.codes @ self.table) * source.codes).sum(1)
        i, j = pairs.T
        return (target.codes[:, i] * source.codes[:, j]) @ self.table[i, j]
