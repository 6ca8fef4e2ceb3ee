"""The connection function: attention across the streams of one token (the paper's stream-wise attention).

Every stream has its own query, key, value and output matrices. What stream s takes from stream r at a token
is pattern[s, r] times r's value, translated by s's output matrix: the pattern is the learned wiring between
streams. There is no mask and no position: any stream may read any other, and tokens never meet here.

Two that learn nothing stand beside it, to compare with: `Addition`, HRM's way, and `NoConnection`. One of
your own is a subclass with a name:

    @connection("mean")
    class Mean(Connection):
        def forward(self, z, here):
            return here.streams("out", z.mean(0, keepdim=True).expand_as(z))

and `SRMConfig(connection="mean")` uses it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srmlab.models.streams import StreamLinear

if TYPE_CHECKING:
    from srmlab.models.forward import Pass
    from srmlab.models.srm import SRMConfig


class Connection(nn.Module):
    """z [S, B, T, D] → c [S, B, T, D], handed over as "out"."""

    formula: ClassVar[str] = "connection(z)"  # what a drawing says of it
    has_pattern: ClassVar[bool] = False  # whether it hands over a "pattern" [B, T, H, target, source]

    def __init__(self, config: SRMConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, z: Tensor, here: Pass) -> Tensor:
        raise NotImplementedError

    def multiply_adds(self) -> int:
        """The arithmetic of one token."""
        return 0


CONNECTIONS: dict[str, type[Connection]] = {}
Kind = TypeVar("Kind", bound=type[Connection])


def connection(name: str) -> Callable[[Kind], Kind]:
    """Enter a class as a value of `SRMConfig.connection`."""

    def enter(kind: Kind) -> Kind:
        CONNECTIONS[name] = kind
        return kind

    return enter


@connection("attention")
class StreamAttention(Connection):
    has_pattern = True

    def __init__(self, config: SRMConfig) -> None:
        super().__init__(config)
        S, D, inner = config.streams, config.stream_dim, config.stream_heads * config.head_dim
        self.qkv = StreamLinear(S, D, 3 * inner)
        self.out = StreamLinear(S, inner, D)  # the sum over heads is in here

    def forward(self, z: Tensor, here: Pass) -> Tensor:
        S, B, T, _ = z.shape
        H, K = self.config.stream_heads, self.config.head_dim
        qkv = self.qkv(z).view(S, B * T, 3, H, K).permute(2, 1, 3, 0, 4)  # [3, B·T, H, S, K]
        q, k, v = qkv.unbind(0)
        if here.wants("pattern"):
            pattern = torch.softmax(q @ k.transpose(-1, -2) * K**-0.5, dim=-1)  # [B·T, H, target, source]
            pattern = here("pattern", pattern.view(B, T, H, S, S)).view(B * T, H, S, S)
            mixed = pattern @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v)
        mixed = mixed.permute(2, 0, 1, 3).reshape(S, B, T, H * K)  # [B·T, H, S, K] → [S, B, T, H·K]
        return here.streams("out", self.out(mixed))

    def multiply_adds(self) -> int:
        c = self.config
        inner = c.stream_heads * c.head_dim
        return 4 * c.streams * c.stream_dim * inner + 2 * c.streams**2 * inner


@connection("addition")
class Addition(Connection):
    """HRM's connection for any number of streams: each is given the sum of the others, untranslated.

    Divided by sqrt(S − 1), the sum has the size of one state, and with two streams it is HRM's own.
    """

    formula = "sum of the others"

    def forward(self, z: Tensor, here: Pass) -> Tensor:
        others = z.sum(0, keepdim=True) - z
        return here.streams("out", others / math.sqrt(max(1, z.shape[0] - 1)))


@connection("none")
class NoConnection(Connection):
    """Streams that never meet before the output function."""

    formula = "0"

    def forward(self, z: Tensor, here: Pass) -> Tensor:
        return here.streams("out", torch.zeros_like(z))
