"""Interventions: streams held at their mean, at zero or at another token's state, and edges between streams
cut.

    >>> import srm, torch
    >>> model = srm.build(srm.preset("srm-nano", vocab_size=257)).eval()
    >>> baseline = Baseline.of(model, torch.arange(6))
    >>> silence = Ablation(stream=5, mode="mean", first=7, last=7)
    >>> outcome = evaluate(model, baseline, Intervention(ablations=(silence,)))
    >>> outcome.kl.shape                          # KL(full ‖ changed) in bits, one a token
    torch.Size([6])

An ablation replaces one stream's state after each layer of a range. A cut sets one weight of the connection's
pattern to zero: the target then reads nothing from that source through that head (the other weights stay as
they are).

Nothing here changes the model: an intervention is a list of hooks, open for one forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from srm.errors import UserError
from srm.explorer.capture import layer_sites
from srm.explorer.readout import kl_bits
from srm.models import SRM, HookPoint
from srm.models.sites import HookFunction

Mode = Literal["mean", "zero", "resample"]
RESAMPLE_SEED = 0


@dataclass(frozen=True)
class Ablation:
    """Stream `stream` replaced after layers `first` … `last`, counted from 0, both included."""

    stream: int
    mode: Mode
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
class Intervention:
    ablations: tuple[Ablation, ...] = ()
    cuts: tuple[Cut, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ablations or self.cuts)

    def check(self, model: SRM, tokens: int) -> None:
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

    def to_dict(self) -> dict[str, Any]:
        return {"ablations": [vars(a) for a in self.ablations], "cuts": [vars(c) for c in self.cuts]}


def _within(what: str, value: int, size: int) -> None:
    if not 0 <= value < size:
        raise UserError(f"{what} {value} is not in 0…{size - 1}")


@dataclass(frozen=True)
class Baseline:
    """A prompt without intervention: what an outcome is compared with, and where the means come from."""

    tokens: Tensor  # [T]
    log_probs: Tensor  # [T, V]
    states: Tensor  # [L, T, S, D] after every layer
    mean: Tensor  # [L, S, D] over the evaluation tokens, or over this prompt

    @classmethod
    @torch.inference_mode()
    def of(cls, model: SRM, tokens: Tensor, reference: Tensor | None = None) -> Baseline:
        names = layer_sites(model)
        logits, cache = model.run_with_cache(tokens[None], names_filter=names)
        states = torch.stack([cache[name][0] for name in names])
        mean = states.float().mean(1) if reference is None else reference
        return cls(tokens, torch.log_softmax(logits[0].float(), -1), states, mean.to(states))


@dataclass(frozen=True)
class Outcome:
    """The same prompt with the intervention."""

    log_probs: Tensor  # [T, V]
    kl: Tensor  # [T] KL(full ‖ changed), bits


@torch.inference_mode()
def evaluate(model: SRM, baseline: Baseline, intervention: Intervention) -> Outcome:
    """One forward pass with the intervention, against the baseline."""
    intervention.check(model, len(baseline.tokens))
    logits = model.run_with_hooks(baseline.tokens[None], fwd_hooks=hooks_of(model, baseline, intervention))
    changed = torch.log_softmax(logits[0].float(), -1)
    return Outcome(changed, kl_bits(baseline.log_probs, changed))


def hooks_of(model: SRM, baseline: Baseline, intervention: Intervention) -> list[tuple[str, HookFunction]]:
    """The intervention as (site, function) pairs for `model.hooks`."""
    sites = layer_sites(model)
    hooks: list[tuple[str, HookFunction]] = []
    for layer in range(model.config.depth):
        here = [a for a in intervention.ablations if a.first <= layer <= a.last]
        if here:
            hooks.append((sites[layer], _replace(here, baseline, layer)))
        cuts = [c for c in intervention.cuts if c.layer == layer]
        if cuts:
            hooks.append((f"layers.{layer}.connection.pattern", _cut(cuts)))
    return hooks


def _replace(ablations: list[Ablation], baseline: Baseline, layer: int) -> HookFunction:
    def hook(z: Tensor, _: HookPoint) -> Tensor:  # [1, T, S, D]
        z = z.clone()
        for a in ablations:
            if a.mode == "mean":
                z[:, :, a.stream] = baseline.mean[layer, a.stream]
            elif a.mode == "zero":
                z[:, :, a.stream] = 0
            else:
                other = other_tokens(len(baseline.tokens)).to(z.device)
                z[:, :, a.stream] = baseline.states[layer, other, a.stream]
        return z

    return hook


def _cut(cuts: list[Cut]) -> HookFunction:
    def hook(pattern: Tensor, _: HookPoint) -> Tensor:  # [1, T, H, target, source]
        pattern = pattern.clone()
        for c in cuts:
            tokens = slice(None) if c.token is None else c.token
            pattern[:, tokens, c.head, c.target, c.source] = 0
        return pattern

    return hook


def other_tokens(count: int) -> Tensor:
    """For every token another one, by a fixed draw: token i of a random cycle gets the state of its
    successor.
    """
    cycle = torch.randperm(count, generator=torch.Generator().manual_seed(RESAMPLE_SEED))
    other = torch.empty_like(cycle)
    other[cycle] = cycle.roll(-1)
    return other
