"""What routing is worth: the loss with the pattern replaced by a less informative one.

    uniform     every stream reads every stream equally, 1/S
    shuffled    every token gets the pattern of another token in the batch: the mean wiring stays, what
                depends on the token is lost

in all layers at once. If shuffling costs nothing, the pattern is a constant of the model.

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> found = srmlab.analysis.routing_controls(model, [torch.arange(64).view(2, 32)])
    >>> found.controls, found.kl.shape
    (('uniform', 'shuffled'), (2,))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from srmlab.analysis.capture import Accumulator, Batches, Mean, Placed, capture
from srmlab.analysis.readout import BITS, add_changes, changes_by
from srmlab.analysis.registry import Analysis, has_stream_attention, pattern_sites, register
from srmlab.analysis.result import Array, Measured, Result, plus_minus
from srmlab.models import HookPoint, LanguageModel

Hook = Callable[[Tensor, HookPoint], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class RoutingControls(Result):
    """What the loss becomes with uniform or shuffled patterns; made by `routing_controls`."""

    kind: ClassVar[str] = "routing_controls"

    controls: tuple[str, ...]
    kl: Annotated[Array, Measured("control", "nats, KL(full ‖ control), mean over tokens")]
    loss_change: Annotated[Array, Measured("control", "nats, loss of control − full, mean over targets")]

    def headline(self) -> str:
        costs = (
            f"{name} {change:+.3f}" for name, change in zip(self.controls, self.loss_change, strict=True)
        )
        return f"loss with another pattern: {', '.join(costs)} nats"

    def summary(self) -> str:
        lines = [f"Other patterns in place of the model's own ({self.evidence})"]
        for i, name in enumerate(self.controls):
            change, error = self.text("loss_change", "+.3f", (i,)), self.standard_error("kl")[i]
            kl = plus_minus(self.kl[i] * BITS, error * BITS)
            lines.append(f"  {name}: the loss changes by {change} nats, KL {kl} bits")
        return "\n".join(lines)


def uniform(pattern: Tensor, hook: HookPoint) -> Tensor:  # noqa: ARG001
    return torch.full_like(pattern, 1 / pattern.shape[-1])


def shuffled(seed: int) -> Hook:
    """The patterns of all tokens of a batch, dealt out again; the same way in every layer."""

    def deal(pattern: Tensor, hook: HookPoint) -> Tensor:  # noqa: ARG001
        rows = pattern.flatten(0, 1)  # [B·T, H, target, source]
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
        return rows[order.to(rows.device)].view_as(pattern)

    return deal


class ControlSums(Accumulator):
    makes = RoutingControls

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.patterns = pattern_sites(model, "routing_controls")
        self.known = {"controls": ("uniform", "shuffled")}
        self.means = {"kl": Mean(2), "loss_change": Mean(2, over="targets")}

    def end(self, batch: Placed, embedding: Tensor) -> None:
        hooks = [(self.patterns, hook) for hook in (uniform, shuffled(batch.index))]
        changes = changes_by(self.model, batch, embedding, hooks)
        add_changes(self.means, batch, embedding, changes, self.model.unembedding.detach().float())


def routing_controls(model: LanguageModel, batches: Batches) -> RoutingControls:
    """The loss with a uniform pattern, and with every token's pattern given to another."""
    return capture(model, batches, ControlSums(model))[0]


register(
    Analysis(
        RoutingControls, lambda request: ControlSums(request.model), has_stream_attention, needs="outputs"
    )
)
