"""The config of the Stream Recursion Model, and the paper's presets."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal, get_args

from srmlab.errors import OWN
from srmlab.models.config import LATER, NANO, SUDOKU_NANO, ModelConfig, Sizes
from srmlab.models.connection import CONNECTIONS
from srmlab.models.fields import ConfigError, require
from srmlab.models.ordering import LETTERS, StepOrder

Z0 = Literal["fixed", "learned", "zero", "input"]
PostInput = Literal["state", "state+update"]
Update = Literal["norm(c + x)", "norm(c) + x", "c + norm(x)", "norm(c) + norm(x)", "c + x"]
SweepSet = Literal["parameter", "width", "stream"]
SWEEP_STREAMS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class SRMConfig(ModelConfig):
    """The Stream Recursion Model. The defaults are the paper's SRM-med."""

    architecture: ClassVar[str] = "srm"

    # the input and output functions
    embedding_dim: int = 512  # E, the intermediate embedding
    embedding_scale: bool = True  # multiply the embedding by sqrt(E), so that x starts with unit variance

    # the streams
    streams: int = 8  # S, the number of streams
    stream_dim: int = 512  # D, the width of one stream
    z0: Z0 = "fixed"  # the state before the first layer

    # the layer function
    connection: str = "attention"  # attention, gate, translation, mixing, addition (HRM's) or none
    stream_heads: int = 4  # heads of the connection function
    step_functions: int = 3  # m, the number of step functions A, B, C …
    order: str = "ABC"  # the steps of a layer; "random:6" draws six step functions for every layer
    order_seed: int = 0  # seed of random orders
    depth: int = 8  # n, how many times the layer is applied
    gradient_depth: int = 4  # l, gradient flows through the last l layers only

    # the step functions
    token_heads: int = 8  # attention heads of a step function
    head_dim: int = 64  # size of token-wise and stream-wise heads
    mlp_dim: int = 3072  # hidden width of a step function's MLP
    rope_theta: float = 10_000.0  # base of the rotary positions
    norm_eps: float = 1e-5  # epsilon of RMSNorm
    norm_affine: bool = False  # a learned weight per stream and dimension in every norm

    pre_steps: int = 0  # extra step functions after the input function
    post_steps: int = 0  # extra step functions before the output function
    post_input: PostInput = "state"  # what a post-step reads: z, or z + y with the last layer's update y

    update: Update = field(default="norm(c + x)", metadata=LATER)  # the paper's, or with its norm elsewhere

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("embedding_dim", "streams", "stream_dim", "stream_heads", "step_functions")
        self.require_positive("depth", "token_heads", "head_dim", "mlp_dim")
        kinds = " or ".join(map(repr, CONNECTIONS))
        require(self, "connection", self.connection in CONNECTIONS, f"must be {kinds}; {OWN}")
        self.require_not_negative("pre_steps", "post_steps")
        self.require_seed("order_seed")
        self.require_attention(self.head_dim, self.rope_theta, self.norm_eps)
        l, n = self.gradient_depth, self.depth
        require(self, "gradient_depth", 1 <= l <= n, f"must be between 1 and depth = {n}")
        fix = f"a learned z_0 gets no gradient through {l} of {n} layers"
        fix += f'; set gradient_depth = {n}, or z0 = "fixed"'
        require(self, "z0", self.z0 != "learned" or l == n, fix)
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

    @property
    def sizes(self) -> Sizes:
        order = f"{self.pre_steps}+{self.order}" if self.pre_steps else self.order
        return Sizes(
            width=self.width,
            heads=self.streams * self.token_heads,
            layers=self.depth,
            streams=self.streams,
            stream_width=self.stream_dim,
            mlp=self.mlp_dim,
            order=f"{order}+{self.post_steps}" if self.post_steps else order,
            depth=f"{self.depth}/{self.gradient_depth}",
        )

    @property
    def shape(self) -> str:
        extra = "".join(
            f" +{count} {kind}-step"
            for kind, count in (("pre", self.pre_steps), ("post", self.post_steps))
            if count
        )
        return (
            f"{self.streams} streams × {self.stream_dim}, MLP {self.mlp_dim}, {self.order}{extra}, "
            f"{self.depth} layers ({self.gradient_depth} in the gradient)"
        )

    @property
    def drawing(self) -> str:
        calls = self.step_order.calls
        letters = [LETTERS[i] for i in calls] if calls else ["?"] * self.calls_per_layer
        names = ", ".join(LETTERS[: self.step_functions])
        heads = f"{self.stream_heads} heads of {self.head_dim} across the streams of a token"
        learned = CONNECTIONS[self.connection].has_pattern
        z0 = {"fixed": "a fixed random state", "learned": "a learned state", "zero": "zero", "input": "x"}
        gradient = "all" if self.gradient_depth == self.depth else f"the last {self.gradient_depth}"
        return "\n".join(
            [
                f"x    tokens → embedding {self.embedding_dim} → {self.streams} streams × {self.stream_dim}",
                *(f"     x = P{i}(x)" for i in range(self.pre_steps)),
                f"z₀   {z0[self.z0]}",
                f"{self.depth} times one layer; gradient through {gradient}",
                f"     c = {CONNECTIONS[self.connection].formula:<22}{heads if learned else ''}".rstrip(),
                f"     y = {self.update.replace('norm', 'RMSNorm')}",
                *(f"     z = {letter}(z + y)" for letter in letters),
                *([f"     ? is one of {names}, drawn for every step of every layer"] if not calls else []),
                *(
                    f"     z = Q{i}({'z' if self.post_input == 'state' else 'z + y'})"
                    for i in range(self.post_steps)
                ),
                f"out  z → embedding {self.embedding_dim} → {self.output_line}",
                "",
                "Every stream has a block of its own in each step function:",
                "     RMSNorm(u + attention(u) + MLP(u))",
                f"     attention over tokens {self.token_heads} × {self.head_dim}, MLP {self.mlp_dim}, GELU",
            ]
        )

    def at_depth(self, depth: int, gradient_depth: int | None = None) -> SRMConfig:
        usual = depth if self.z0 == "learned" else min(self.gradient_depth, depth)
        return self.replace(depth=depth, gradient_depth=usual if gradient_depth is None else gradient_depth)

    def seeded(self, seed: int) -> SRMConfig:
        return self.replace(init_seed=seed, order_seed=seed)


def srm_base() -> SRMConfig:
    """The paper's 68M model: many narrow streams."""
    return SRMConfig(
        streams=32, stream_dim=128, mlp_dim=768, token_heads=2, stream_heads=4, order="ABCABC", post_steps=1
    )


def srm_med() -> SRMConfig:
    """The paper's 134M model: few wide streams."""
    return SRMConfig(streams=8, stream_dim=512, mlp_dim=3072, token_heads=8, stream_heads=4, order="ABC")


def srm_large() -> SRMConfig:
    """The paper's 454M model."""
    return SRMConfig(
        streams=16,
        stream_dim=512,
        mlp_dim=3072,
        token_heads=8,
        stream_heads=8,
        step_functions=6,
        order="ABCDEF",
    )


def srm_nano() -> SRMConfig:
    """Eight streams that learn to write words in five minutes on two cores."""
    return SRMConfig(
        **NANO,
        embedding_dim=128,
        streams=8,
        stream_dim=32,
        mlp_dim=128,
        token_heads=1,
        stream_heads=2,
        head_dim=32,
    )


def srm_sudoku() -> SRMConfig:
    """Eight streams for 9 × 9 sudokus, 6.3M: more than TRM with its MLP, fewer than TRM with attention."""
    return SRMConfig(
        **SUDOKU_NANO,
        embedding_dim=512,
        streams=8,
        stream_dim=192,
        mlp_dim=768,
        token_heads=3,
        stream_heads=3,
        step_functions=1,
        order="A",
    )


def srm_maze() -> SRMConfig:
    """The same for mazes of 30 × 30 cells."""
    return srm_sudoku().replace(vocab_size=6, context=901)


def srm_arc() -> SRMConfig:
    """The same for ARC, on boards of 30 × 30 cells; set `puzzle_ids` to the data's."""
    return srm_maze().replace(vocab_size=12)


def srm_sudoku_nano() -> SRMConfig:
    """Four streams that learn 4 × 4 sudokus in minutes on two cores."""
    return SRMConfig(
        **SUDOKU_NANO,
        embedding_dim=64,
        streams=4,
        stream_dim=32,
        mlp_dim=64,
        token_heads=2,
        stream_heads=2,
        head_dim=16,
        step_functions=1,
        order="A",
        depth=4,
        gradient_depth=2,
    )


def srm_sweep(set: SweepSet, streams: int, stream_dim: int | None = None) -> SRMConfig:
    """One cell of the paper's stream-size sweep (its figure "num streams"), untied as its table counts.

    parameter  S·D = 4096, MLP 768, 2 heads: the parameter count is the same at every S
    width      S·D = 4096, S·heads = 64, S·MLP = 24576: the model's width is the same at every S
    stream     D, MLP 768 and 2 heads are the same at every S. The paper's text says D = 256, but its
               parameter counts are those of D = 128, the default here; stream_dim=256 for the text's
    """
    if set not in get_args(SweepSet):
        raise ConfigError(f"set = {set!r}: must be one of {', '.join(get_args(SweepSet))}")
    if streams not in SWEEP_STREAMS:
        raise ConfigError(f"streams = {streams}: the sweep has {', '.join(map(str, SWEEP_STREAMS))}")
    width = set == "width"
    return SRMConfig(
        streams=streams,
        stream_dim=stream_dim or (128 if set == "stream" else 4096 // streams),
        mlp_dim=24576 // streams if width else 768,
        token_heads=64 // streams if width else 2,
        stream_heads=4,
        order="ABCABC",
        tied=False,
    )


PRESETS = {
    "srm-base": srm_base,
    "srm-med": srm_med,
    "srm-large": srm_large,
    "srm-nano": srm_nano,
    "srm-sudoku": srm_sudoku,
    "srm-maze": srm_maze,
    "srm-arc": srm_arc,
    "srm-sudoku-nano": srm_sudoku_nano,
}
SWEEP_PRESETS = {
    f"srm-sweep-{kind}-{s}": partial(srm_sweep, kind, s) for kind in get_args(SweepSet) for s in SWEEP_STREAMS
}
