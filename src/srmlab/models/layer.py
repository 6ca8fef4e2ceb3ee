"""The layer function: connection once, update once, then the steps in their order.

    c = Connection(z)
    y = RMSNorm(c + x)                      the update: eq. 1 adds it to the state before every step
    z = Step_i(z + y)   for i in the order, "ABC" for instance

One layer's weights serve all n layers of the model.
"""

from __future__ import annotations

from torch import Tensor, nn

from srmlab.models.config import SRMConfig
from srmlab.models.connection import build_connection
from srmlab.models.decoding import KeyValues
from srmlab.models.ordering import LayerOrder
from srmlab.models.sites import SILENT, Tap, callable_of
from srmlab.models.step import Step
from srmlab.models.streams import RMSNorm


class Layer(nn.Module):
    def __init__(self, config: SRMConfig) -> None:
        super().__init__()
        S, D = config.streams, config.stream_dim
        self.connection = build_connection(config)
        self.norm = RMSNorm(config.norm_eps, (S, D) if config.norm_affine else None)
        self.steps = nn.ModuleList(Step(config) for _ in range(config.step_functions))

    def forward(
        self,
        z: Tensor,
        x: Tensor,
        order: LayerOrder,
        rotary: tuple[Tensor, Tensor],
        past: list[KeyValues] | None = None,
        mask: Tensor | None = None,
        tap: Tap = SILENT,
    ) -> tuple[Tensor, Tensor]:
        """State z and token input x [S, B, T, D] → the next state, and the update y that led to it.

        z may be [S, 1, 1, D], one state for all tokens, as before the first layer: its connection is then
        computed once.
        """
        compiled = past is None  # a cache that grows would be compiled anew for every token
        c = callable_of(self.connection, tap, compiled=compiled)(z, tap.at("connection"))
        y = tap("update", self.norm(c + x))
        for i, step in enumerate(order):
            call = callable_of(self.steps[step], tap, compiled=compiled)
            z = call(z, y, rotary, past[i] if past else None, mask, tap.at(f"steps.{i}"))
        return tap("out", z), y
