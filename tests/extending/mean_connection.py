"""A connection function without weights: every stream receives the mean of all streams."""

from torch import Tensor

from srmlab.models import Connection, Pass, connection


@connection("mean")
class MeanConnection(Connection):
    formula = "mean of all streams"

    def forward(self, z: Tensor, here: Pass) -> Tensor:
        return here.streams("out", z.mean(0, keepdim=True).expand_as(z))  # [S, B, T, D]
