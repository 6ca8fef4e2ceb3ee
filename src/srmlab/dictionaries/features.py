"""What the features of a dictionary are: max-activating examples, and the tokens each promotes.

For every feature: how often it fires, where in the text it is strongest (at most once per sequence), with its
activation at every token around that, and the tokens of this text whose logits its direction raises and
lowers most.
The output function is linear, so a direction d of stream s adds U·W_s·d to the logits: exactly, for the final
states (`layers="last"`); for earlier ones it is what the direction would add if it were read out right away.
Logits are relative to the vocabulary mean.

    >>> import srmlab, srmlab.dictionaries, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> tokens = torch.arange(4 * 32).view(4, 32)
    >>> dictionary = srmlab.dictionaries.learn(model, lambda step: tokens + step, steps=3, features=64, k=4)
    >>> found = srmlab.dictionaries.features(model, dictionary, [tokens], examples=3)
    >>> found.strength.shape, found.raised.shape        # stream, feature, example; stream, feature, choice
    ((8, 64, 3), (8, 64, 8))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.capture import Accumulator, Batches, Placed, capture
from srmlab.analysis.readout import Readout
from srmlab.analysis.result import Array, Axes, Evidence, Result, require
from srmlab.dictionaries.dictionary import Dictionary, check
from srmlab.errors import UserError
from srmlab.models import LanguageModel

BEFORE, AFTER = 16, 4  # tokens shown around the strongest
CHOICES = 8  # tokens raised and lowered most
CHOICE = "stream feature choice"
EXAMPLES = 8  # of every feature

Decode = Callable[[int], str]
Progress = Callable[[int], None] | None  # gets how many batches are read


@dataclass(frozen=True, kw_only=True, eq=False)
class Features(Result):
    """How often each feature fires, where it is strongest, and the tokens it promotes."""

    kind: ClassVar[str] = "features"
    drawn: ClassVar[bool] = False
    columns: ClassVar[tuple[str, ...]] = ("fired", "strength")

    points: tuple[str, ...]
    fired: Annotated[Array, Axes("stream feature", "tokens at which the feature is in use at any point")]
    strength: Annotated[Array, Axes("stream feature example", "activation at its peak; 0: no such example")]
    context: Annotated[Array, Axes("stream feature example place", "token ids; −1 beyond the sequence")]
    activation: Annotated[Array, Axes("stream feature example place", "activation at each token")]
    raised: Annotated[Array, Axes(CHOICE, "token ids, the most raised logit first")]
    raised_by: Annotated[Array, Axes(CHOICE, "logits above the mean, for an activation of 1")]
    lowered: Annotated[Array, Axes(CHOICE, "token ids, the most lowered logit first")]
    lowered_by: Annotated[Array, Axes(CHOICE, "logits above the mean, for an activation of 1")]

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool((np.diff(self.strength) <= 0).all()), "examples come with the strongest first")

    @property
    def frequency(self) -> Array:
        """[stream feature] The share of tokens at which it is in use."""
        return self.fired / self.evidence.tokens

    def ranking(self, stream: int) -> list[int]:
        """A stream's features that fire, the strongest peak first."""
        order = np.argsort(-self.strength[stream, :, 0], kind="stable")
        return [int(f) for f in order if self.fired[stream, f] > 0]

    def headline(self) -> str:
        alive = (self.fired > 0).sum()
        middle = f"the median one at {np.median(self.frequency):.2%} of tokens"
        return f"{alive:,} of {self.fired.size:,} features fire, {middle}"

    def summary(self, decode: Decode | None = None, count: int = 3) -> str:
        """The strongest features of every stream. `decode` turns one token id into text."""
        name = decode or (lambda token: f"#{token}")
        lines = [f"Features ({self.evidence})", f"  {self.headline()}"]
        for s in range(len(self.fired)):
            for f in self.ranking(s)[:count]:
                raised = " ".join(repr(name(int(token))) for token in self.raised[s, f, :5])
                lines.append(f"  S{s} feature {f}: {self.frequency[s, f]:.2%} of tokens, raises {raised}")
                lines.append(f"    {self.quote(s, f, 0, name)}")
        return "\n".join(lines)

    def quote(self, stream: int, feature: int, example: int, decode: Decode) -> str:
        """An example as text, its strongest token in brackets."""
        at = stream, feature, example
        tokens, peak = self.context[at], self.activation[at].argmax()
        words = (
            f"[{decode(int(token))}]" if i == peak else decode(int(token))
            for i, token in enumerate(tokens)
            if token >= 0
        )
        return " ".join("".join(words).split())


def features(
    model: LanguageModel,
    dictionary: Dictionary,
    batches: Batches,
    examples: int = EXAMPLES,
    progress: Progress = None,
) -> Features:
    """The strongest examples of every feature of a dictionary or transcoder, and the tokens whose logits it
    raises."""
    return features_of(model, [dictionary], batches, examples, progress)[0]


def features_of(
    model: LanguageModel,
    dictionaries: Iterable[Dictionary],
    batches: Batches,
    examples: int = EXAMPLES,
    progress: Progress = None,
) -> list[Features]:
    """The features of several dictionaries or transcoders, from the same passes of the model."""
    if examples < 1:
        raise UserError(f"examples = {examples}: give 1 or more")
    searches = [Search(check(model, one), one.to(model.device), examples) for one in dictionaries]
    return capture(model, batches, *searches, progress=progress)


class Search(Accumulator):
    """The strongest examples so far, one of a sequence at most."""

    def __init__(self, model: LanguageModel, dictionary: Dictionary, examples: int) -> None:
        self.model, self.dictionary = model, dictionary
        self.sites, self.means = dictionary.config.points, {}
        S, F = dictionary.config.streams, dictionary.config.features
        shape, device = (S, F, examples), model.device
        self.strength = torch.zeros(shape, device=device)
        self.context = torch.full((*shape, BEFORE + 1 + AFTER), -1, device=device)
        self.activation = torch.zeros(*shape, BEFORE + 1 + AFTER, device=device)
        self.seen = torch.zeros(model.config.vocab_size, dtype=torch.bool, device=device)  # in the text
        self.fired = torch.zeros(S, F, dtype=torch.int64, device=device)

    def begin(self, batch: Placed) -> None:  # noqa: ARG002
        self.states: list[Tensor] = []

    def see(self, name: str, value: Tensor) -> None:  # noqa: ARG002
        self.states.append(value)

    def end(self, batch: Placed, embedding: Tensor) -> None:  # noqa: ARG002
        for row, sequence in enumerate(batch.tokens):
            codes = self.dictionary.encode(self.states[0][row])  # [T, S, F]
            for later in self.states[1:]:
                codes = torch.maximum(codes, self.dictionary.encode(later[row]))
            self.add(sequence, codes.transpose(0, 1))

    def add(self, sequence: Tensor, codes: Tensor) -> None:
        """One sequence [T], with its codes [S, T, F]."""
        self.seen[sequence] = True
        self.fired += (codes > 0).sum(1)
        strength, at = codes.max(1)  # [S, F]
        place = at[..., None] + torch.arange(BEFORE + 1 + AFTER, device=at.device)  # in the padded sequence
        padded = torch.nn.functional.pad(sequence, (BEFORE, AFTER), value=-1)
        around = torch.nn.functional.pad(codes.mT, (BEFORE, AFTER)).gather(-1, place)  # [S, F, places]
        self.strength, best = torch.cat((self.strength, strength[..., None]), -1).topk(
            self.strength.shape[-1]
        )
        index = best[..., None].expand(*best.shape, place.shape[-1])
        self.context = torch.cat((self.context, padded[place][..., None, :]), -2).gather(-2, index)
        self.activation = torch.cat((self.activation, around[..., None, :]), -2).gather(-2, index)

    def result(self, evidence: Evidence) -> Features:
        raised, lowered = spoken_for(self.model, self.dictionary, self.seen)
        arrays = {
            "fired": self.fired,
            "strength": self.strength.double(),
            "context": self.context,
            "activation": self.activation.double(),
            "raised": raised[1],
            "raised_by": raised[0].double(),
            "lowered": lowered[1],
            "lowered_by": lowered[0].double(),
        }
        numbers: dict[str, Any] = {name: value.cpu().numpy() for name, value in arrays.items()}
        return Features(evidence=evidence, points=self.dictionary.config.points, **numbers)


def spoken_for(model: LanguageModel, dictionary: Dictionary, among: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The logits that each direction raises most, and those it lowers most: by how much and of which tokens,
    each [S, F, choice]. `among` [V] says which tokens may be named: one that never occurs has any logit."""
    readout = Readout(model)
    unembedding = readout.unembedding - readout.unembedding.mean(0)
    choices = min(CHOICES, int(among.sum()))
    sides: tuple[list, list] = ([], [])
    for part in readout.parts(dictionary.directions.detach()):  # [F, E]
        logits = part @ unembedding.T
        for sign, side in zip((1, -1), sides, strict=True):
            values, tokens = (sign * logits).masked_fill(~among, -torch.inf).topk(choices)
            side.append((sign * values, tokens))
    return [(torch.stack([v for v, _ in side]), torch.stack([t for _, t in side])) for side in sides]
