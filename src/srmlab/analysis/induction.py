"""Induction: does a head attend to what followed the same token earlier, and does the model copy it?

A random sequence of tokens is repeated once. In the second copy only the first one helps. The score of a head
is its attention weight, at a token of the second copy, on the token that followed it in the first; `uniform`
is the score of uniform attention over all earlier tokens. The gain is how much lower the loss per token is in
the second copy than in the first, in nats.

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> found = srmlab.analysis.induction(model, [torch.arange(64).view(2, 32)])
    >>> found.score.shape                                        # attention call, head (of all streams)
    (24, 8)
    >>> bool(found.strongest < 0.5)                              # it is untrained
    True

Each window of the text gives one sequence, seeded by the window's tokens: the same text gives the same
sequences. The model does not read the text itself, so a survey does not include this analysis; untrained
twins (`srmlab.analysis.null.twins`) are measured like the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.capture import Accumulator, Batches, Mean, Placed, capture
from srmlab.analysis.result import Array, Evidence, Measured, Result, derived
from srmlab.errors import UserError
from srmlab.models import HookPoint, LanguageModel
from srmlab.models.loss import token_losses

LONGEST = 32  # tokens of one copy


@dataclass(frozen=True, kw_only=True, eq=False)
class Induction(Result):
    """How much each head reads what came next before; made by `induction`."""

    kind: ClassVar[str] = "induction"

    calls: tuple[str, ...]  # the sites of the patterns
    length: int  # tokens of one copy
    uniform: float  # the score of attention that reads all alike
    score: Annotated[Array, Measured("call head", "mean attention weight on what came next before")]
    gain: Annotated[Array, Measured("", "nats that a token's loss is lower in the second copy")]

    @derived("", "attention weight")
    def strongest(self) -> float:
        """The score of the strongest head."""
        return float(self.score.max())

    @property
    def ranking(self) -> list[tuple[int, int]]:
        """(call, head) from the greatest score to the least."""
        order = np.argsort(-self.score, axis=None, kind="stable")
        return [(int(i) // self.score.shape[1], int(i) % self.score.shape[1]) for i in order]

    def headline(self) -> str:
        strongest, gain = self.text("strongest", ".2f"), self.text("gain", "+.2f")
        return f"strongest head {strongest}, uniform {self.uniform:.3f}; second copy {gain} nats easier"

    def summary(self) -> str:
        lines = [
            f"Induction on {self.length} random tokens, repeated once ({self.evidence.sequences} sequences)",
            f"  a token's loss is {self.text('gain', '+.3f')} nats lower in the second copy",
            f"  a head with uniform attention would score {self.uniform:.3f}",
        ]
        lines += [
            f"  {self.text('score', '.3f', at)}  {self.calls[at[0]]}, head {at[1]}" for at in self.ranking[:5]
        ]
        return "\n".join(lines)


class InductionSums(Accumulator):
    makes = Induction
    reads = False  # but random sequences in its place

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.means = {"score": Mean(len(model.pattern_sites), model.config.sizes.heads), "gain": Mean()}

    def end(self, batch: Placed, embedding: Tensor) -> None:  # noqa: ARG002
        tokens = repeated(batch.tokens, self.model.config.vocab_size)
        n = tokens.shape[1] // 2
        uniform = float(np.mean([1 / (n + i + 1) for i in range(n - 1)])) if n > 1 else float("nan")
        self.known = {"calls": tuple(self.model.pattern_sites), "length": n, "uniform": uniform}
        if n < 2:
            return
        scores: list[Tensor] = []

        def see(pattern: Tensor, hook: HookPoint) -> None:  # noqa: ARG001
            later = pattern.flatten(1, -3)[:, :, n : 2 * n - 1]  # [B, heads, second copy but its end, keys]
            scores.append(later.diagonal(offset=1, dim1=-2, dim2=-1).float().sum(-1))

        with self.model.hooks([(self.model.pattern_sites, see)]):
            read = self.model.output_embedding(tokens)
        losses = token_losses(read[:, :-1], self.model.unembedding, tokens[:, 1:])  # [B, 2n − 1]
        count = torch.full((len(tokens),), n - 1)
        self.means["score"].add(batch, torch.stack(scores, 1), count)
        self.means["gain"].add(batch, losses[:, : n - 1].sum(1) - losses[:, n:].sum(1), count)

    def result(self, evidence: Evidence) -> Induction:
        if self.means["gain"].total == 0:
            raise UserError("induction repeats half a window's length: give windows of at least four tokens")
        return super().result(evidence)


def repeated(windows: Tensor, vocabulary: int) -> Tensor:
    """[B, 2n] For every window [B, T] a random sequence without a token that comes twice, and it again."""
    n = min(windows.shape[1] // 2, LONGEST, vocabulary)
    rows = []
    for window in windows.cpu():
        seed = int((window * torch.arange(1, len(window) + 1)).sum()) % 2**31
        drawn = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(seed))[:n]
        rows.append(torch.cat((drawn, drawn)))
    return torch.stack(rows).to(windows.device)


def induction(model: LanguageModel, batches: Batches) -> Induction:
    """The induction score of every head, and how much easier a second copy is."""
    if not model.config.causal:
        raise UserError("induction needs a model that reads from left to right; this one reads whole boards")
    return capture(model, batches, InductionSums(model))[0]
