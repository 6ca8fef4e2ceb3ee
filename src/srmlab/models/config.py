"""What a model is made of: one frozen dataclass per architecture, checked when it is built.

    >>> config = SRMConfig(streams=4, stream_dim=32, mlp_dim=64, token_heads=2, head_dim=16)
    >>> config.replace(order="ABCCBA").calls_per_layer
    6

A config that exists can be built. What cannot work is refused here, in one line that names the field, its
value and the fix; nothing downstream checks again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from srmlab.models.fields import ConfigError, check_fields, known_fields, require
from srmlab.models.ordering import StepOrder

Z0 = Literal["fixed", "learned", "zero", "input"]
PostInput = Literal["state", "state+update"]
ConnectionKind = Literal["attention", "addition", "none"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What every architecture shares: a vocabulary and the context length it is trained on."""

    architecture: ClassVar[str]

    vocab_size: int = 50257
    context: int = 1024
    tied: bool = True  # the unembedding is the embedding's matrix
    init_seed: int = 0  # weights (and z_0) are a function of the config alone

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("vocab_size", "context"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")

    def replace(self, **changes: Any) -> Self:
        """This config with some fields changed, checked again."""
        return dataclasses.replace(self, **known_fields(type(self), changes))

    def to_dict(self) -> dict[str, Any]:
        return {"architecture": self.architecture, **dataclasses.asdict(self)}


@dataclass(frozen=True, kw_only=True)
class SRMConfig(ModelConfig):
    """The Stream Recursion Model. The defaults are the paper's SRM-med."""

    architecture: ClassVar[str] = "srm"

    # the input and output functions
    embedding_dim: int = 512  # E, the intermediate embedding
    embedding_scale: bool = True  # multiply the embedding by sqrt(E), so that x starts with unit variance

    # the streams
    streams: int = 8  # S
    stream_dim: int = 512  # D
    z0: Z0 = "fixed"  # the state before the first layer

    # the layer function
    connection: ConnectionKind = "attention"  # how streams meet; "addition" is HRM's way, without weights
    stream_heads: int = 4  # heads of the connection function
    step_functions: int = 3  # m, named A, B, C …
    order: str = "ABC"  # the steps of a layer; "random:6" draws six step functions anew for every layer
    order_seed: int = 0  # for random orders
    depth: int = 8  # n, how often the one layer is applied
    gradient_depth: int = 4  # l, gradient flows through the last l layers only

    # the step functions
    token_heads: int = 8
    head_dim: int = 64  # of token-wise and stream-wise heads alike
    mlp_dim: int = 3072
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    norm_affine: bool = False  # a learned weight per stream and dimension in every norm

    # whole extra step functions after the input function and before the output function
    pre_steps: int = 0
    post_steps: int = 0
    post_input: PostInput = "state"  # what a post-step reads: z, or z + y with the last layer's update y

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (
            "embedding_dim",
            "streams",
            "stream_dim",
            "stream_heads",
            "step_functions",
            "depth",
            "token_heads",
            "head_dim",
            "mlp_dim",
        ):
            require(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        for name in ("pre_steps", "post_steps"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "must be 0 or more")
        _check_attention(self.head_dim, self.rope_theta, self.norm_eps)
        require(
            1 <= self.gradient_depth <= self.depth,
            "gradient_depth",
            self.gradient_depth,
            f"must be between 1 and depth = {self.depth}",
        )
        require(
            self.z0 != "learned" or self.gradient_depth == self.depth,
            "z0",
            self.z0,
            f"a learned z_0 gets no gradient through {self.gradient_depth} of {self.depth} layers; "
            f'set gradient_depth = {self.depth}, or z0 = "fixed"',
        )
        try:
            StepOrder.parse(self.order, self.step_functions)
        except ValueError as error:
            raise ConfigError(str(error)) from None

    @property
    def step_order(self) -> StepOrder:
        return StepOrder.parse(self.order, self.step_functions)

    @property
    def calls_per_layer(self) -> int:
        """How many steps one layer takes (the paper's layer steps)."""
        return self.step_order.length

    @property
    def width(self) -> int:
        """The size of all streams together, S·D."""
        return self.streams * self.stream_dim


@dataclass(frozen=True, kw_only=True)
class HRMConfig(ModelConfig):
    """The Hierarchical Reasoning Model for language, and the Tiny Recursive Model as one setting of it.

    Two nets of post-norm blocks take turns: z_L = L(z_L + z_H + x) `low_cycles` times, then z_H = H(z_H +
    z_L); all that `high_cycles` times. With `gradient = "last-call"` (HRM) only the last call of each net
    is differentiated, with "last-cycle" (TRM) the whole last high cycle. With `shared_net` (TRM) one net
    plays both parts.
    """

    architecture: ClassVar[str] = "hrm"

    dim: int = 768
    heads: int = 12
    head_dim: int = 64
    mlp_dim: int = 3072
    low_blocks: int = 6
    high_blocks: int = 4
    low_cycles: int = 4
    high_cycles: int = 3
    shared_net: bool = False
    gradient: Literal["last-call", "last-cycle"] = "last-call"
    embedding_scale: bool = True
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = (
            "dim",
            "heads",
            "head_dim",
            "mlp_dim",
            "low_blocks",
            "high_blocks",
            "low_cycles",
            "high_cycles",
        )
        for name in sizes:
            require(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        _check_attention(self.head_dim, self.rope_theta, self.norm_eps)
        require(
            not self.shared_net or self.low_blocks == self.high_blocks,
            "shared_net",
            self.shared_net,
            f"one net has one depth; set low_blocks = high_blocks (they are {self.low_blocks} and "
            f"{self.high_blocks})",
        )


@dataclass(frozen=True, kw_only=True)
class GPT2Config(ModelConfig):
    """GPT-2, with Hugging Face's default sizes."""

    architecture: ClassVar[str] = "gpt2"

    dim: int = 768
    blocks: int = 12
    heads: int = 12
    mlp_dim: int = 3072
    dropout: float = 0.1  # embedding, attention and residual dropout, in training only
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ["dim", "blocks", "heads", "mlp_dim"]:
            require(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        require(self.dim % self.heads == 0, "heads", self.heads, f"must divide dim = {self.dim}")
        require(0.0 <= self.dropout < 1.0, "dropout", self.dropout, "must be in [0, 1)")
        require(self.norm_eps > 0, "norm_eps", self.norm_eps, "must be positive")


ARCHITECTURES: dict[str, type[ModelConfig]] = {c.architecture: c for c in (SRMConfig, HRMConfig, GPT2Config)}


def config_from_dict(fields: dict[str, Any]) -> ModelConfig:
    """The inverse of `ModelConfig.to_dict`."""
    fields = dict(fields)
    architecture = fields.pop("architecture", None)
    if architecture not in ARCHITECTURES:
        raise ConfigError(f"architecture = {architecture!r}: must be one of {', '.join(ARCHITECTURES)}")
    kind = ARCHITECTURES[architecture]
    return kind(**known_fields(kind, fields))


def _check_attention(head_dim: int, rope_theta: float, norm_eps: float) -> None:
    require(head_dim % 2 == 0, "head_dim", head_dim, f"must be even for RoPE; use {head_dim + 1}")
    require(rope_theta > 1, "rope_theta", rope_theta, "must be greater than 1")
    require(norm_eps > 0, "norm_eps", norm_eps, "must be positive")
