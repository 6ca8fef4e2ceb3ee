"""Interventions: streams held at their mean, at zero or at another token's state, edges between streams cut,
and features of a dictionary held at a value.

    >>> import srmlab, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano", vocab_size=257)).eval()
    >>> baseline = Baseline.of(model, torch.arange(6))
    >>> silence = Ablation(stream=5, mode="mean", first=7, last=7)
    >>> outcome = evaluate(model, baseline, Intervention(ablations=(silence,)))
    >>> outcome.kl.shape                          # KL(full ‖ changed) in bits, one a token
    torch.Size([6])

An ablation replaces one stream's state after each layer of a range. A cut sets one weight of the connection's
pattern to zero: the target then reads nothing from that source through that head (the other weights stay as
they are). A feature is held at all points that its dictionary was learned from.

Nothing here changes the model: an intervention is a list of hooks, open for one forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from srmlab.analysis.ablation import BITS, By
from srmlab.analysis.interventions import Hook, cut_edges, replace_streams
from srmlab.analysis.readout import kl_divergence
from srmlab.analysis.states import StateMeans, state_means
from srmlab.dictionaries import Dictionary, hold_features
from srmlab.errors import UserError
from srmlab.models import SRM


@dataclass(frozen=True)
class Ablation:
    """Stream `stream` replaced after layers `first` … `last`, counted from 0, both included."""

    stream: int
    mode: By
    first: int
    last: int


@dataclass(frozen=True)
class Cut:
    """One weight of the pattern set to zero, at one token or (None) at all."""

    layer: int
    head: int
    target: int
    source: int
    token: int | None = None


@dataclass(frozen=True)
class Hold:
    """One feature of a stream's dictionary held at a value; 0 silences it."""

    stream: int
    feature: int
    value: float = 0.0


@dataclass(frozen=True)
class Intervention:
    ablations: tuple[Ablation, ...] = ()
    cuts: tuple[Cut, ...] = ()
    holds: tuple[Hold, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ablations or self.cuts or self.holds)

    def check(self, model: SRM, tokens: int, dictionary: Dictionary | None = None) -> None:
        """Refuse what the model does not have, in one line."""
        config = model.config
        for a in self.ablations:
            _within("stream", a.stream, config.streams)
            _within("first layer", a.first, config.depth)
            _within("last layer", a.last, config.depth)
            if a.first > a.last:
                raise UserError(f"layers {a.first}–{a.last} are no range: swap them")
        for c in self.cuts:
            _within("layer", c.layer, config.depth)
            _within("head", c.head, config.stream_heads)
            _within("target stream", c.target, config.streams)
            _within("source stream", c.source, config.streams)
            if c.token is not None:
                _within("token", c.token, tokens)
        if self.holds and dictionary is None:
            raise UserError(
                "there is no dictionary of these weights to hold features of: srmlab dictionary RUN"
            )
        for h in self.holds:
            _within("stream", h.stream, config.streams)
            _within("feature", h.feature, dictionary.config.features if dictionary else 0)

    def to_dict(self) -> dict[str, Any]:
        return {name: [vars(one) for one in getattr(self, name)] for name in ("ablations", "cuts", "holds")}


def _within(what: str, value: int, size: int) -> None:
    if not 0 <= value < size:
        raise UserError(f"{what} {value} is not in 0…{size - 1}")


@dataclass(frozen=True)
class Baseline:
    """A prompt without intervention: what an outcome is compared with, and where the means come from."""

    tokens: Tensor  # [T]
    log_probs: Tensor  # [T, V]
    means: StateMeans  # over the evaluation tokens, or over this prompt

    @classmethod
    @torch.inference_mode()
    def of(cls, model: SRM, tokens: Tensor, reference: StateMeans | None = None) -> Baseline:
        means = reference or state_means(model, [tokens[None]])
        return cls(tokens, torch.log_softmax(model(tokens[None])[0].float(), -1), means)


@dataclass(frozen=True)
class Outcome:
    """The same prompt with the intervention."""

    log_probs: Tensor  # [T, V]
    kl: Tensor  # [T] KL(full ‖ changed), bits


@torch.inference_mode()
def evaluate(
    model: SRM, baseline: Baseline, intervention: Intervention, dictionary: Dictionary | None = None
) -> Outcome:
    """One forward pass with the intervention, against the baseline."""
    intervention.check(model, len(baseline.tokens), dictionary)
    hooks = hooks_of(model, baseline.means, intervention, dictionary)
    logits = model.run_with_hooks(baseline.tokens[None], fwd_hooks=hooks)
    changed = torch.log_softmax(logits[0].float(), -1)
    return Outcome(changed, kl_divergence(baseline.log_probs, changed) * BITS)


def hooks_of(
    model: SRM, means: StateMeans, intervention: Intervention, dictionary: Dictionary | None = None
) -> list[Hook]:
    """The intervention as (site, function) pairs for `model.hooks`."""
    cuts = [(c.layer, c.head, c.target, c.source, c.token) for c in intervention.cuts]
    hooks = cut_edges(cuts, renormalise=False)
    final = model.config.depth - 1
    for a in intervention.ablations:
        if a.first < final:
            inner = range(a.first, min(a.last + 1, final))
            hooks += replace_streams(model, [a.stream], inner, a.mode, means)
        if a.last == final:  # the state that the output function reads
            hooks += replace_streams(model, [a.stream], "last", a.mode, means)
    if intervention.holds and dictionary is not None:
        hooks += hold_features(dictionary, [(h.stream, h.feature, h.value) for h in intervention.holds])
    return hooks
