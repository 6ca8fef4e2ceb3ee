"""What is inside a model, in a few numbers that any architecture has, next to those of untrained twins.

    collapse   cosine similarity between the final states of different tokens
    streams    cosine similarity between the final states of a token's streams, if there are several
    drift      cosine distance between what the last two levels contribute; where every token is in all levels
    change     how much the last level changes the state, relative to its norm
    losses     nats, if the model stopped after each level: the logit lens by level. For a recurrent model up
               to twice its depth, where `changes` show whether it settles
    gates      what an exit gate knows, after each level but the last

    >>> import srmlab, torch
    >>> from srmlab.data import Batch
    >>> model = srmlab.build(srmlab.preset("ouro-nano", blocks=1, vocab_size=64))
    >>> tokens = torch.arange(32).view(2, 16)
    >>> found = inside(model, [Batch(tokens, tokens.roll(-1, 1))], twins=2)
    >>> len(found.losses), len(found.gates), found.streams                  # 4 loops, run for 8
    (8, 3, None)

An exit gate is tested on held-out tokens: within every window, does it continue where there is more to gain?
That is the rank correlation, over the window's tokens, of 1 − λ with the loss here minus that at the last
level; next to it, the same with the gates shuffled within the window, and with the prediction's entropy, for
which no gate has to be trained. A gate that is the same for all tokens has 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.bootstrap import correlation, ranks
from srmlab.analysis.capture import capture
from srmlab.analysis.depth import deepened
from srmlab.analysis.drift import Drift
from srmlab.analysis.null import Beside
from srmlab.analysis.null import twins as twins_of
from srmlab.analysis.registry import ANALYSES, Request
from srmlab.analysis.spending import levels_of
from srmlab.analysis.stream_similarity import StreamSimilarity
from srmlab.analysis.student import Interval, interval
from srmlab.analysis.token_similarity import TokenSimilarity
from srmlab.data import Batch
from srmlab.models import LanguageModel


@dataclass(frozen=True)
class Gate:
    """What a gate knows after one level: rank correlations within windows, with intervals over windows."""

    level: int
    gain: Interval  # nats that the levels after it are worth
    knows: Interval  # of going on with that gain
    shuffled: Interval  # of the goings-on of other tokens
    entropy: Interval  # of the prediction's entropy


@dataclass(frozen=True)
class Inside:
    depth: int  # as trained
    collapse: Beside
    streams: Beside | None
    drift: Beside | None
    change: Beside
    losses: tuple[float, ...]  # by level
    changes: tuple[float, ...]  # by level, from the second on
    gates: tuple[Gate, ...]


def inside(model: LanguageModel, batches: Sequence[Batch], twins: int) -> Inside:
    """The numbers of a model, next to those of this many untrained twins."""
    own = numbers(model, batches)
    others = [numbers(twin, batches) for _, twin in twins_of(model, twins)]

    def beside(name: str, unit: str) -> Beside:
        return Beside(name, unit, own[name], tuple(other[name] for other in others))

    losses, changes = by_level(deepened(model, None), batches)
    return Inside(
        depth=model.depth,
        collapse=beside("collapse", "cosine"),
        streams=beside("streams", "cosine") if "streams" in own else None,
        drift=beside("drift", "cosine distance") if "drift" in own else None,
        change=beside("change", "share of the state's length"),
        losses=losses,
        changes=changes,
        gates=tuple(exit_gates(model, batches)) if model.exit_sites else (),
    )


def numbers(model: LanguageModel, batches: Sequence[Batch]) -> dict[str, float]:
    """Those that are set beside twins, where they are defined."""
    _, changes = by_level(model, batches)
    request = Request(model, model, batches, {})
    asked = [ANALYSES[name] for name in ("token_similarity", "stream_similarity", "drift")]
    sums = [one.accumulator(request) for one in asked if one.defined_on(model)]
    found = {"change": changes[-1] if changes else math.nan}
    for result in capture(model, batches, *sums, bootstrap=False):
        if isinstance(result, TokenSimilarity):
            found["collapse"] = result.last
        elif isinstance(result, StreamSimilarity):
            found["streams"] = result.last
        elif isinstance(result, Drift) and len(result.profile):
            found["drift"] = float(result.profile[-1])
    return found


@torch.no_grad()
def by_level(model: LanguageModel, batches: Sequence[Batch]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The loss if the model stopped after each level; by how much each but the first changes the state."""
    losses: list[Tensor] = []  # [levels, tokens] of every batch
    changes: list[Tensor] = []
    with model.evaluating():
        for batch in batches:
            batch = batch.to(model.device)
            read = levels_of(model, batch, ("change",))
            losses.append(read["loss"][:, batch.counted].double())
            changes.append(read["change"][1:].flatten(1).double())
    return tuple(torch.cat(losses, 1).mean(1).tolist()), tuple(torch.cat(changes, 1).mean(1).tolist())


# --- what an exit gate knows --------------------------------------------------------------------------------


@torch.no_grad()
def exit_gates(model: LanguageModel, batches: Sequence[Batch]) -> list[Gate]:
    """One for every level but the last."""
    found: list[list[list[float]]] = []  # by window and level: gain, knows, shuffled, entropy
    generator = torch.Generator().manual_seed(0)
    with model.evaluating():
        for batch in batches:
            batch = batch.to(model.device)
            loss, entropy, stop = read_gates(model, batch)
            for row, counted in enumerate(batch.counted.cpu()):
                if int(counted.sum()) < 3:
                    continue
                gain = loss[:-1, row, counted] - loss[-1, row, counted]  # [levels, tokens]
                on, unsure = 1 - stop[:-1, row, counted], entropy[:-1, row, counted]
                mixed = on[:, torch.randperm(on.shape[1], generator=generator)]
                found.append(
                    [
                        [float(gained.mean()), *(rank_correlation(score, gained) for score in scores)]
                        for gained, *scores in zip(gain, on, mixed, unsure, strict=True)
                    ]
                )
    by_level = np.array(found).reshape(-1, model.depth - 1, 4).transpose(1, 2, 0)  # [level, quantity, window]
    return [Gate(level + 1, *map(interval, values)) for level, values in enumerate(by_level)]


def read_gates(model: LanguageModel, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """[levels, B, T] each: the loss and the prediction's entropy after every level, and the gate."""
    points = model.points[: model.depth]
    sites = [site for point in points for site in (*point.sites, *point.needs)]
    _, cache = model.run_with_cache(batch.tokens, [*sites, *model.exit_sites], documents=batch.documents)
    losses, entropies = [], []
    for point in points:
        embedding = model.read_out(model.finish(point, cache, batch.documents))
        loss, entropy = torch.zeros(2, *batch.tokens.shape)
        for row, targets in enumerate(batch.targets):  # one at a time: a vocabulary is wide
            log_p = (embedding[row] @ model.unembedding.T).float().log_softmax(-1)
            loss[row] = -log_p.gather(-1, targets.clamp(min=0)[:, None])[:, 0]
            entropy[row] = -(log_p.exp() * log_p).sum(-1)
        losses.append(loss)
        entropies.append(entropy)
    gates = [cache[site].squeeze(-1).float().cpu() for site in model.exit_sites]
    return torch.stack(losses), torch.stack(entropies), torch.stack(gates)


def rank_correlation(x: Tensor, y: Tensor) -> float:
    """Spearman's, of two vectors; 0 where one of them is constant.

    >>> round(rank_correlation(torch.tensor([1.0, 2.0, 30.0]), torch.tensor([0.1, 0.5, 0.4])), 6)
    0.5
    """
    return float(np.nan_to_num(correlation(ranks(x).numpy(), ranks(y).numpy())))
