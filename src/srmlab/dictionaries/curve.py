"""Sparsity curves: active features (L0) against variance explained and loss recovered.

There are two nulls. `shuffled`: the loss recovered when every feature writes another's direction.
`untrained`: the variance that as many features explain in an untrained model (it has no loss to recover). A
null that was not measured is NaN.

>>> import srmlab, srmlab.dictionaries, torch
>>> model = srmlab.build(srmlab.preset("srm-nano"))
>>> tokens = torch.arange(4 * 32).view(4, 32)
>>> learned = [
...     srmlab.dictionaries.learn(model, lambda step: tokens + step, steps=2, features=64, k=k, seed=seed)
...     for k in (2, 4) for seed in (0, 1)
... ]
>>> found = srmlab.dictionaries.curve(
...     [srmlab.dictionaries.quality(model, dictionary, [tokens]) for dictionary in learned], seeds=2
... )
>>> found.recovered.shape                                    # entry, seed
(2, 2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from srmlab.analysis.result import Array, Axes, Result, derived, plus_minus
from srmlab.dictionaries.quality import Quality
from srmlab.dictionaries.transcoder_quality import TranscoderQuality
from srmlab.errors import UserError

AnyQuality = Quality | TranscoderQuality


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve(Result):
    """Dictionaries or transcoders at several sparsities, side by side."""

    kind: ClassVar[str] = "sparsity"

    of: str  # what was learned: "states", or what transcoders write
    activations: tuple[str, ...]  # of each entry
    ks: tuple[int, ...]  # of each entry
    active: Annotated[Array, Axes("entry seed", "features in use, mean over tokens")]
    explained: Annotated[Array, Axes("entry seed", "share of variance")]
    recovered: Annotated[Array, Axes("entry seed", "share of the loss, all replaced")]
    dead: Annotated[Array, Axes("entry seed", "share of features that never fire")]
    shuffled: Annotated[Array, Axes("entry seed", "share of the loss, every feature writing another's")]
    untrained: Annotated[Array, Axes("entry seed", "share of variance, of an untrained twin")]

    @derived("entry", "share of the loss")
    def mean_recovered(self) -> Array:
        return self.recovered.mean(1)

    def spread(self, name: str) -> Array:
        """[entry] The standard error over seeds; NaN of one alone."""
        values: Array = getattr(self, name)
        count = values.shape[1]
        return values.std(1, ddof=1) / count**0.5 if count > 1 else np.full(len(values), np.nan)

    def headline(self) -> str:
        several = f"{len(self.ks)} sparsities of {self.of}"
        if np.isnan(self.mean_recovered).all():
            return f"{several}: no loss to recover"
        best = int(np.nanargmax(self.mean_recovered))
        return (
            f"{several}: up to {self.mean_recovered[best]:.1%} of the loss "
            f"recovered, with {self.active[best].mean():.1f} active ({self.activations[best]})"
        )

    def summary(self) -> str:
        count = self.active.shape[1]
        lines = [
            f"Sparsity of dictionaries of {self.of} ({count} seed{'s' * (count > 1)} each; {self.evidence})"
        ]
        for e, (activation, k) in enumerate(zip(self.activations, self.ks, strict=True)):

            def told(name: str, form: str = ".1%", e: int = e) -> str:
                return plus_minus(float(getattr(self, name)[e].mean()), float(self.spread(name)[e]), form)

            beside = f" (untrained {told('untrained')})" if np.isfinite(self.untrained[e]).all() else ""
            null = f" (shuffled {told('shuffled')})" if np.isfinite(self.shuffled[e]).all() else ""
            lines.append(
                f"  {activation} k = {k}: {told('active', '.2f')} active, {told('explained')} of variance "
                f"explained{beside}, {told('recovered')} of the loss recovered{null}, {told('dead')} dead"
            )
        return "\n".join(lines)


def curve(
    found: Sequence[AnyQuality],
    seeds: int,
    of: str = "states",
    *,
    shuffled: Sequence[AnyQuality] = (),
    untrained: Sequence[AnyQuality] = (),
) -> Curve:
    """The curve through what was measured: entry by entry, and each entry's seeds together; the nulls in the
    same order."""
    every = [*found, *shuffled, *untrained]
    if not found or len(found) % seeds or len({str(one.evidence) for one in every}) > 1:
        raise UserError("a curve needs every entry measured on one text, with as many seeds each")
    if any(len(null) not in (0, len(found)) for null in (shuffled, untrained)):
        raise UserError("a null of a curve needs as many entries and seeds as the curve it is compared with")
    entries = [found[i : i + seeds] for i in range(0, len(found), seeds)]

    def table(name: str, of: Sequence[AnyQuality] = found) -> Array:
        values = [float(getattr(one, name)) for one in of] or [float("nan")] * len(found)
        return np.array(values).reshape(-1, seeds)

    return Curve(
        evidence=found[0].evidence,
        of=of,
        activations=tuple(entry[0].activation for entry in entries),
        ks=tuple(entry[0].k for entry in entries),
        active=table("mean_active"),
        explained=table("mean_explained"),
        recovered=table("all_recovered"),
        dead=table("dead"),
        shuffled=table("all_recovered", shuffled),
        untrained=table("mean_explained", untrained),
    )
