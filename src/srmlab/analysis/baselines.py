"""The baselines under the same instrument, as far as its measures are defined on them.

Drift    HRM: the low and the high net are the step groups, high cycles the layers; each net has one state.
         GPT-2: attention and MLP are the groups, blocks the layers; a contribution is what they add.
Lens     HRM: the states z_L and z_H after every high cycle, read by the unembedding. The output reads z_H
alone, so
         there are no other streams to hold at their mean.
         GPT-2: the residual stream after every block, through the final norm.
Depth    HRM: more or fewer high cycles. GPT-2: fewer blocks (its weights differ from block to block).

Routing, alignment, ablation and attribution need streams and a connection function and are not defined here.

    >>> import srmlab, srmlab.analysis, torch
    >>> tokens = [torch.arange(64).view(2, 32)]
    >>> srmlab.analysis.drift(srmlab.build(srmlab.preset("hrm-nano")), tokens).groups
    ('low', 'high')
    >>> srmlab.analysis.drift(srmlab.build(srmlab.preset("gpt2-nano")), tokens).cosine.shape
    (2, 5, 1)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from srmlab.models import GPT2, HRM, LanguageModel


class NetContributions:
    """HRM: the low and the high net, over high cycles."""

    groups: Sequence[str] = ("low", "high")
    streams: Sequence[str] = ("z",)

    def __init__(self, model: HRM) -> None:
        config = model.config
        self.model = model
        self.layers = config.high_cycles
        self.boundary: int | None = config.high_cycles - 1 or None  # gradient flows in the last cycle only
        self.roles: dict[
            str, tuple[int, int, bool]
        ] = {}  # site → group, cycle, whether it ends the group's cycle
        for h in range(config.high_cycles):
            for l in range(config.low_cycles):
                self.roles[f"cycles.{h}.low.{l}.out"] = (0, h, l == config.low_cycles - 1)
            self.roles[f"cycles.{h}.high.out"] = (1, h, True)
        self.sites: Sequence[str] = list(self.roles)
        self.start: list[Tensor] = []

    def see(self, name: str, value: Tensor) -> Iterator[tuple[int, int, Tensor | None]]:
        group, cycle, last = self.roles[name]
        if name == self.sites[0]:
            self.start = [self.model.low0.float(), self.model.high0.float()]
        if last:  # the changes of a cycle's calls add up to its last state less its first
            yield group, cycle, (value.float() - self.start[group])[None]
            self.start[group] = value.float()


class BlockContributions:
    """GPT-2: what attention and MLP add, over blocks."""

    groups: Sequence[str] = ("attn", "mlp")
    streams: Sequence[str] = ("residual",)
    boundary: int | None = None

    def __init__(self, model: GPT2) -> None:
        self.layers = model.config.blocks
        self.roles = {
            f"blocks.{b}.{kind}": (g, b) for b in range(self.layers) for g, kind in enumerate(self.groups)
        }
        self.sites: Sequence[str] = list(self.roles)

    def see(self, name: str, value: Tensor) -> Iterator[tuple[int, int, Tensor | None]]:
        yield *self.roles[name], value.float()[None]


def baseline_contributions(model: LanguageModel) -> NetContributions | BlockContributions:
    if isinstance(model, HRM):
        return NetContributions(model)
    assert isinstance(model, GPT2)
    return BlockContributions(model)


class StateDecoder:
    """HRM: z_L and z_H after every high cycle. GPT-2: the residual stream after every block, normed."""

    def __init__(self, model: LanguageModel) -> None:
        self.norm = None
        self.streams: Sequence[str]
        self.points: Sequence[str]
        if isinstance(model, HRM):
            cycles = range(model.config.high_cycles)
            last = model.config.low_cycles - 1
            self.streams = ("L", "H")
            self.places = {f"cycles.{h}.low.{last}.out": (h, 0) for h in cycles}
            self.places |= {f"cycles.{h}.high.out": (h, 1) for h in cycles}
            self.points = [f"cycles.{h}" for h in cycles]
        else:
            assert isinstance(model, GPT2)
            self.norm = model.norm
            self.streams = ("residual",)
            self.places = {f"blocks.{b}.out": (b, 0) for b in range(model.config.blocks)}
            self.points = list(self.places)
        self.sites: Sequence[str] = list(self.places)
        self.unembedding = model.unembedding.detach().float()

    def decode(
        self,
        name: str,
        value: Tensor,
        chosen: Tensor,
        documents: Tensor | None,  # noqa: ARG002
    ) -> list[tuple[tuple[str, int, int], Tensor]]:
        point, stream = self.places[name]
        state = value.flatten(0, 1)[chosen]
        embedding = state if self.norm is None else self.norm(state)
        found = [(("raw", point, stream), embedding), (("corrected", point, stream), embedding)]
        if stream == len(self.streams) - 1:  # the one the output reads
            found.append((("full", point, -1), embedding))
        return found


def baseline_decoder(model: LanguageModel) -> StateDecoder:
    return StateDecoder(model)
