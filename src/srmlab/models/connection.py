"""The connection function: attention across the streams of one token (the paper's stream-wise attention).

Every stream has its own query, key, value and output matrices. What stream s takes from stream r at a token
is pattern[s, r] times r's value, translated by s's output matrix: the pattern is the learned wiring between
streams. There is no mask and no position: any stream may read any other, and tokens do not interact here.

It learns a gate (the pattern, at every token) times a translation (value and output matrices). The others
ablate parts of that, for comparison:

    gate          the attention pattern, with states passed on untranslated
    translation   value and output matrices, a learned pattern that is the same for every token
    mixing        a learned matrix [S, S] and nothing else, as in hyper-connections
    addition      the sum of the other streams, as in HRM; no weights
    none          nothing

Your own is a subclass with a name:

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

from srmlab.models import kernels
from srmlab.models.streams import StreamLinear

if TYPE_CHECKING:
    from srmlab.models.forward import Pass
    from srmlab.models.srm_config import SRMConfig


class Connection(nn.Module):
    """z [S, B, T, D] → c [S, B, T, D], handed over as "out"."""

    formula: ClassVar[str] = "connection(z)"  # what a drawing says of it
    has_pattern: ClassVar[bool] = False  # whether it hands over a "pattern" [B, T, H, target, source]

    def __init__(self, config: SRMConfig) -> None:
        super().__init__()
        self.config = config
        self.inner = config.stream_heads * config.head_dim  # of queries, keys or values, all heads together

    def forward(self, z: Tensor, here: Pass) -> Tensor:
        raise NotImplementedError

    def initialize(self) -> None:
        """Initialise weights that are not in a `StreamLinear`, which initialises itself."""

    def multiply_adds(self) -> int:
        """The arithmetic of one token."""
        return 0

    def queries_and_keys(self) -> tuple[Tensor, Tensor] | None:
        """[H, S, D, K] each, if the pattern is the softmax over sources of z_target·query·(z_source·key)."""
        return None

    def translations(self) -> Tensor | None:
        """[H, target, source, D, D], if c_target is the sum over heads and sources of pattern times
        z_source·translation."""
        return None

    def _by_head(self, weight: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Matrices side by side [S, D, parts·H·K] → each by head, [H, S, D, K]."""
        S, D, _ = weight.shape
        return weight.view(S, D, parts, self.config.stream_heads, -1).permute(2, 3, 0, 1, 4).unbind(0)


def translated(value: Tensor, out: Tensor) -> Tensor:
    """Value matrices [H, source, D, K], output matrices [target, H·K, D] → [H, target, source, D, D]."""
    out = out.view(len(out), len(value), -1, out.shape[-1]).transpose(0, 1)  # [H, target, K, D]
    return value[:, None] @ out[:, :, None]


CONNECTIONS: dict[str, type[Connection]] = {}
Kind = TypeVar("Kind", bound=type[Connection])


def connection(name: str) -> Callable[[Kind], Kind]:
    """Register a class as a value of `SRMConfig.connection`, in place of any other of that name."""

    def enter(kind: Kind) -> Kind:
        CONNECTIONS[name] = kind
        return kind

    return enter


@connection("attention")
class StreamAttention(Connection):
    has_pattern = True

    def __init__(self, config: SRMConfig) -> None:
        super().__init__(config)
        self.qkv = StreamLinear(config.streams, config.stream_dim, 3 * self.inner)
        self.out = StreamLinear(config.streams, self.inner, config.stream_dim)  # sums over heads

    def forward(self, z: Tensor, here: Pass) -> Tensor:
        S, B, T, _ = z.shape
        H, K = self.config.stream_heads, self.config.head_dim
        qkv = self.qkv(z).view(S, B * T, -1)
        if not here.wants("pattern") and kernels.streams_by_hand(qkv):
            return here.streams("out", self.out(kernels.stream_attention(qkv, H).view(S, B, T, H * K)))
        q, k, v = qkv.view(S, B * T, 3, H, K).permute(2, 1, 3, 0, 4).unbind(0)  # each [B·T, H, S, K]
        if here.wants("pattern"):
            pattern = torch.softmax(q @ k.transpose(-1, -2) * K**-0.5, dim=-1)  # [B·T, H, target, source]
            pattern = here("pattern", pattern.view(B, T, H, S, S)).view(B * T, H, S, S)
            mixed = pattern @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v)
        mixed = mixed.permute(2, 0, 1, 3).reshape(S, B, T, H * K)  # [B·T, H, S, K] → [S, B, T, H·K]
        return here.streams("out", self.out(mixed))

    def queries_and_keys(self) -> tuple[Tensor, Tensor]:
        query, key, _ = self._by_head(self.qkv.weight, 3)
        return query * self.config.head_dim**-0.5, key

    def translations(self) -> Tensor:
        _, _, value = self._by_head(self.qkv.weight, 3)
        return translated(value, self.out.weight)

    def multiply_adds(self) -> int:
        S, D = self.config.streams, self.config.stream_dim
        return (4 * S * D + 2 * S**2) * self.inner


@connection("gate")
class GateOnly(Connection):
    """Attention decides how much of each stream to take; states are passed on untranslated."""

    formula = "pattern(z) · z"
    has_pattern = True

    def __init__(self, config: SRMConfig) -> None:
        super().__init__(config)
        self.qk = StreamLinear(config.streams, config.stream_dim, 2 * self.inner)

    def forward(self, z: Tensor, here: Pass) -> Tensor:
        S, B, T, D = z.shape
        H, K = self.config.stream_heads, self.config.head_dim
        q, k = self.qk(z).view(S, B * T, 2, H, K).permute(2, 1, 3, 0, 4).unbind(0)  # [B·T, H, S, K]
        pattern = torch.softmax(q @ k.transpose(-1, -2) * K**-0.5, dim=-1)
        pattern = here("pattern", pattern.view(B, T, H, S, S)).view(B * T, H, S, S)
        mixed = pattern.mean(1) @ z.reshape(S, B * T, D).transpose(0, 1)  # [B·T, S, D]
        return here.streams("out", mixed.transpose(0, 1).reshape(S, B, T, D))

    def queries_and_keys(self) -> tuple[Tensor, Tensor]:
        query, key = self._by_head(self.qk.weight, 2)
        return query * self.config.head_dim**-0.5, key

    def translations(self) -> Tensor:
        c = self.config
        same = torch.eye(c.stream_dim, device=self.qk.weight.device, dtype=self.qk.weight.dtype)
        return (same / c.stream_heads).expand(c.stream_heads, c.streams, c.streams, -1, -1)

    def multiply_adds(self) -> int:
        S, D = self.config.streams, self.config.stream_dim
        return 2 * S * D * self.inner + S**2 * (self.inner + D)


@connection("translation")
class TranslationOnly(Connection):
    """Every stream translates what it gives and takes; how much it takes is the same at every token."""

    formula = "out(pattern · value(z))"
    has_pattern = True

    def __init__(self, config: SRMConfig) -> None:
        super().__init__(config)
        S, D = config.streams, config.stream_dim
        self.gates = nn.Parameter(torch.empty(config.stream_heads, S, S))
        self.value = StreamLinear(S, D, self.inner)
        self.out = StreamLinear(S, self.inner, D)

    def initialize(self) -> None:
        self.gates.zero_()  # equal

    def forward(self, z: Tensor, here: Pass) -> Tensor:
        S, B, T, _ = z.shape
        H, K = self.config.stream_heads, self.config.head_dim
        pattern = torch.softmax(self.gates, dim=-1)  # [H, target, source]
        pattern = here("pattern", pattern.expand(B, T, H, S, S)).reshape(B * T, H, S, S)
        value = self.value(z).view(S, B * T, H, K).permute(1, 2, 0, 3)  # [B·T, H, S, K]
        mixed = (pattern @ value).permute(2, 0, 1, 3).reshape(S, B, T, H * K)
        return here.streams("out", self.out(mixed))

    def translations(self) -> Tensor:
        (value,) = self._by_head(self.value.weight, 1)
        return translated(value, self.out.weight)

    def multiply_adds(self) -> int:
        S, D = self.config.streams, self.config.stream_dim
        return (2 * S * D + S**2) * self.inner


@connection("mixing")
class Mixing(Connection):
    """A learned matrix of S × S numbers, the same for every token and dimension. It starts as addition."""

    formula = "M · z"

    def __init__(self, config: SRMConfig) -> None:
        super().__init__(config)
        self.matrix = nn.Parameter(torch.empty(config.streams, config.streams))

    def initialize(self) -> None:
        self.matrix.fill_(1 / math.sqrt(max(1, len(self.matrix) - 1))).fill_diagonal_(0)

    def forward(self, z: Tensor, here: Pass) -> Tensor:
        return here.streams("out", (self.matrix @ z.flatten(1)).view_as(z))

    def multiply_adds(self) -> int:
        return self.config.streams**2 * self.config.stream_dim


@connection("addition")
class Addition(Connection):
    """HRM's connection for any number of streams: each receives the sum of the others, untranslated.

    Divided by sqrt(S − 1), the sum has the size of one state, and with two streams it is HRM's own.
    """

    formula = "sum of the others"

    def forward(self, z: Tensor, here: Pass) -> Tensor:
        others = z.sum(0, keepdim=True) - z
        return here.streams("out", others / math.sqrt(max(1, z.shape[0] - 1)))


@connection("none")
class NoConnection(Connection):
    """Streams that do not interact before the output function."""

    formula = "0"

    def forward(self, z: Tensor, here: Pass) -> Tensor:
        return here.streams("out", torch.zeros_like(z))
