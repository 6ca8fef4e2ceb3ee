"""An analysis: how long the state is at every point in depth."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from srmlab.analysis import Accumulator, Analysis, Mean, Measured, Request, Result, register


@dataclass(frozen=True, kw_only=True, eq=False)
class StateLength(Result):
    kind: ClassVar[str] = "state_length"

    length: Annotated[np.ndarray, Measured("point", "mean over tokens of the state's length")]


class LengthSums(Accumulator):
    makes = StateLength

    def __init__(self, request: Request) -> None:
        points = request.model.points  # every architecture says where its state can be read
        self.sites = [point.sites[-1] for point in points]
        self.means = {"length": Mean(len(points))}

    def see(self, name, value) -> None:
        lengths = value.flatten(2).norm(dim=-1)  # [B, T, …] → [B, T]
        self.sums["length"][:, self.sites.index(name)] = lengths.sum(1)


register(Analysis(StateLength, LengthSums))
