"""An analysis: how long the state is at every point in depth."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch

from srmlab.analysis import Accumulator, Analysis, Mean, Measured, Request, Result, register


@dataclass(frozen=True, kw_only=True, eq=False)
class StateLength(Result):
    kind: ClassVar[str] = "state_length"

    length: Annotated[np.ndarray, Measured("point", "mean over tokens of the state's length")]


class LengthSums(Accumulator):
    def __init__(self, request: Request) -> None:
        points = request.model.points  # every architecture says where its state can be read
        self.place = {point.sites[-1]: p for p, point in enumerate(points)}
        self.sites = list(self.place)
        self.means = {"length": Mean(len(points))}

    def begin(self, batch) -> None:
        self.sums = torch.zeros(len(batch.tokens), len(self.place))

    def see(self, name, value) -> None:
        self.sums[:, self.place[name]] = value.flatten(2).norm(dim=-1).sum(1)  # [B, T, …] → [B]

    def end(self, batch, embedding) -> None:  # noqa: ARG002
        self.means["length"].add(batch, self.sums)

    def result(self, evidence) -> StateLength:
        return StateLength(evidence=evidence, **self.numbers())


register(Analysis(StateLength, LengthSums))
