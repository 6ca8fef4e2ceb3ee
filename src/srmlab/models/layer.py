"""The layer function: one connection, one update, then the steps in order.

    c = Connection(z)
    y = RMSNorm(c + x)                      the update: eq. 1 adds it to the state before every step
    z = Step_i(z + y)   for i in the order, "ABC" for instance

All n layers of the model share these weights. The paper says that the update is sensitive to where its norm
is; `config.update` has the alternatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, nn

from srmlab.models.connection import CONNECTIONS
from srmlab.models.forward import Pass
from srmlab.models.ordering import LayerOrder
from srmlab.models.step import Step
from srmlab.models.streams import RMSNorm

if TYPE_CHECKING:
    from srmlab.models.srm_config import SRMConfig


UPDATES: dict[str, Callable[[RMSNorm, Tensor, Tensor], Tensor]] = {
    "norm(c + x)": lambda norm, c, x: norm(c + x),
    "norm(c) + x": lambda norm, c, x: norm(c) + x,
    "c + norm(x)": lambda norm, c, x: c + norm(x),
    "norm(c) + norm(x)": lambda norm, c, x: norm(c) + norm(x),
    "c + x": lambda _, c, x: c + x,
}


class Layer(nn.Module):
    def __init__(self, config: SRMConfig) -> None:
        super().__init__()
        S, D = config.streams, config.stream_dim
        self.connection = CONNECTIONS[config.connection](config)
        self.update = config.update
        self.norm = RMSNorm(config.norm_eps, (S, D) if config.norm_affine else None)
        self.steps = nn.ModuleList(Step(config) for _ in range(config.step_functions))

    def forward(self, z: Tensor, x: Tensor, order: LayerOrder, here: Pass) -> tuple[Tensor, Tensor]:
        """State z and token input x [S, B, T, D] → the next state, and the update y that led to it.

        z may be [S, 1, 1, D], one state for all tokens, as before the first layer: its connection is then
        computed once.
        """
        c = here.call("connection", self.connection, z)
        y = here.streams("update", UPDATES[self.update](self.norm, c, x))
        for i, step in enumerate(order):
            z = here.call(f"steps.{i}", self.steps[step], z, y)
        return here.streams("out", z), y
