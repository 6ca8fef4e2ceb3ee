"""The Stream Recursion Model: S latent streams, refined by one shared layer applied n times.

    x   = ToStreams(Embedding(tokens))            the input function; x is re-injected in every layer
    z_0 = a fixed random state, the same for every token
    z_t = Layer(z_{t-1}, x)     t = 1 … n         gradient through the last l layers only
    out = Unembedding(FromStreams(z_n))           the output function, linear in the streams

Sites, in the order of the computation (l counts layers from 0, i the steps of a layer):

    input.streams   pre.{i}.in|attn|mlp|out
    layers.{l}.connection.pattern|out   layers.{l}.update   layers.{l}.steps.{i}.in|attn|mlp|out
    layers.{l}.out post.{i}.in|attn|mlp|out   output.embedding   logits

and inside every step: attention.q|k|v|weights|z   neurons.pre|post

`model.layer` holds the shared weights; `model.layers[l]` holds the sites of its l-th call.

Axes:  S stream   B batch   T token   D stream dim   E embedding   V vocabulary
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from srmlab.errors import UserError
from srmlab.models.attention import Rotary
from srmlab.models.config import LATER, NANO, ModelConfig, Sizes
from srmlab.models.connection import CONNECTIONS, Connection
from srmlab.models.exit import until_settled
from srmlab.models.fields import ConfigError, require
from srmlab.models.forward import Pass, gradient
from srmlab.models.layer import Layer
from srmlab.models.model import Call, Exchange, Flops, LanguageModel, Point
from srmlab.models.ordering import LETTERS, LayerOrder, StepOrder
from srmlab.models.registry import register
from srmlab.models.step import Step
from srmlab.models.streams import RMSNorm, StreamLinear, init_linear_

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
    streams: int = 8  # S
    stream_dim: int = 512  # D
    z0: Z0 = "fixed"  # the state before the first layer

    # the layer function
    connection: str = "attention"  # how streams meet: one of CONNECTIONS; "addition" is HRM's way
    stream_heads: int = 4  # heads of the connection function
    step_functions: int = 3  # m, named A, B, C …
    order: str = "ABC"  # the steps of a layer; "random:6" draws six step functions for every layer
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

    update: Update = field(default="norm(c + x)", metadata=LATER)  # the paper's, or its norm in another place

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("embedding_dim", "streams", "stream_dim", "stream_heads", "step_functions")
        self.require_positive("depth", "token_heads", "head_dim", "mlp_dim")
        kinds = " or ".join(map(repr, CONNECTIONS))
        require(self.connection in CONNECTIONS, "connection", self.connection, f"must be {kinds}")
        for name in ("pre_steps", "post_steps"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "must be 0 or more")
        self.require_attention(self.head_dim, self.rope_theta, self.norm_eps)
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
                f"out  z → embedding {self.embedding_dim} → logits {self.vocab_size}"
                + (" (tied)" if self.tied else ""),
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


class InputFunction(nn.Module):
    """Tokens → embedding → all streams: [B, T] → [S, B, T, D]."""

    def __init__(self, config: SRMConfig) -> None:
        super().__init__()
        self.streams = config.streams
        self.scale = math.sqrt(config.embedding_dim) if config.embedding_scale else 1.0
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_dim)
        self.to_streams = nn.Linear(config.embedding_dim, config.width, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.to_streams(self.embedding(tokens) * self.scale)  # [B, T, S·D]
        return x.unflatten(-1, (self.streams, -1)).permute(2, 0, 1, 3).contiguous()


class OutputFunction(nn.Module):
    """All streams → embedding, linear: [S, B, T, D] → [B, T, E]. The unembedding follows."""

    def __init__(self, config: SRMConfig) -> None:
        super().__init__()
        self.from_streams = nn.Linear(config.width, config.embedding_dim, bias=False)
        if not config.tied:
            self.unembedding = nn.Linear(config.embedding_dim, config.vocab_size, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        return self.from_streams(z.permute(1, 2, 0, 3).flatten(2))


@register
class SRM(LanguageModel[SRMConfig]):
    z0: Tensor

    presets: ClassVar = {
        "srm-base": srm_base,
        "srm-med": srm_med,
        "srm-large": srm_large,
        "srm-nano": srm_nano,
    }
    preset_families: ClassVar = {"srm-sweep": srm_sweep}
    sweep_presets: ClassVar = {
        f"srm-sweep-{kind}-{s}": partial(srm_sweep, kind, s)
        for kind in get_args(SweepSet)
        for s in SWEEP_STREAMS
    }
    units = (Step, Connection)
    parts: ClassVar = {
        "input_function.embedding": "embedding",
        "input_function.to_streams": "to streams",
        "pre.*": "pre-step {i}",
        "layer.connection": "connection",
        "layer.norm": "update norm",
        "layer.steps.*": "step {letter}",
        "post.*": "post-step {i}",
        "output_function.from_streams": "from streams",
        "output_function.unembedding": "unembedding",
    }

    def __init__(self, config: SRMConfig) -> None:
        super().__init__()
        self.config = config
        self.input_function = InputFunction(config)
        self.pre = nn.ModuleList(Step(config) for _ in range(config.pre_steps))
        self.layer = Layer(config)
        self.post = nn.ModuleList(Step(config) for _ in range(config.post_steps))
        self.output_function = OutputFunction(config)
        self.rotary = Rotary(config.head_dim, config.context, config.rope_theta)
        z0 = torch.zeros(config.streams, config.stream_dim)
        if config.z0 == "learned":
            self.z0 = nn.Parameter(z0)
        else:
            self.register_buffer("z0", z0)
        self.order_generator = torch.Generator(device="cpu")  # draws random step orders in training
        self.order_generator.manual_seed(config.order_seed)
        self.evaluation_orders = config.step_order.draw(
            config.depth, torch.Generator(device="cpu").manual_seed(config.order_seed)
        )
        self.ready()

    def hidden(self, tokens: Tensor, here: Pass) -> Tensor:
        config: SRMConfig = here.config or self.config
        x = here.streams("input.streams", self.input_function(tokens))
        here.rotary = self.rotary(here.start, tokens.shape[1], like=x)
        here.fold_streams(config.streams)
        for i, step in enumerate(self.pre):
            x = here.call(f"pre.{i}", step, x, None)

        orders = self.draw_orders(config.depth)

        def layer(t: int, z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            with gradient(t >= config.depth - config.gradient_depth):
                return here.call(f"layers.{t}", self.layer, z, x, orders[t])

        z, y = self.first_state(x, here), x
        if here.exit is not None:
            z, y = until_settled(layer, z, x, config.depth, here)
        else:
            for t in range(config.depth):
                z, y = layer(t, z, x)

        for i, step in enumerate(self.post):
            z = here.call(f"post.{i}", step, z, y if config.post_input == "state+update" else None)
        return here("output.embedding", self.output_function(z))

    def first_state(self, x: Tensor, here: Pass | None = None) -> Tensor:
        """z_0: [S, 1, 1, D], one state for all tokens (spelled out for each when somebody looks), or x
        itself.
        """
        if self.config.z0 == "input":
            return x
        z = self.z0[:, None, None, :]
        return z if here is None or here.silent else z.expand_as(x)

    def draw_orders(self, depth: int | None = None) -> tuple[LayerOrder, ...]:
        """The step order of every layer for one pass."""
        order, depth = self.config.step_order, depth or self.config.depth
        if order.random and self.training:
            return order.draw(depth, self.order_generator)
        if depth == self.config.depth:
            return self.evaluation_orders
        return order.draw(depth, torch.Generator(device="cpu").manual_seed(self.config.order_seed))

    @property
    def embedding(self) -> nn.Embedding:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.input_function.embedding

    @property
    def unembedding(self) -> Tensor:
        return self.embedding.weight if self.config.tied else self.output_function.unembedding.weight

    # --- what it says of itself ----------------------------------------------------------------------------

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(f"S{s}" for s in range(self.config.streams))

    @property
    def stream_dim(self) -> int:
        return self.config.stream_dim

    @property
    def token_independent(self) -> tuple[int, ...]:
        return () if self.config.z0 == "input" else (0,)  # z_0 is the same for every token

    @property
    def points(self) -> tuple[Point, ...]:
        """After every layer, and after every post-step."""
        config = self.config
        reads_update = config.post_steps and config.post_input == "state+update"
        layers = [
            Point(f"layers.{t}.out", (f"layers.{t}.out",), (f"layers.{t}.update",) if reads_update else ())
            for t in range(config.depth)
        ]
        post = [Point(f"post.{i}.out", (f"post.{i}.out",)) for i in range(config.post_steps)]
        return (*layers, *post)

    @property
    def depth(self) -> int:
        return self.config.depth

    @property
    def gradient_from(self) -> int | None:
        return self.config.depth - self.config.gradient_depth or None

    recurrent = True

    def check_exit(self) -> None:
        if len(set(self.evaluation_orders)) > 1:
            raise UserError(
                f"exit with order = {self.config.order!r}: a layer that is not computed cannot take the keys "
                "and values of one that calls other steps; use a model with a fixed order"
            )

    def finish(self, point: Point, values: Mapping[str, Tensor], documents: Tensor | None = None) -> Tensor:
        """Through the post-steps. A step keeps to its stream, so to keep one stream and run them is to run
        them and keep it.
        """
        z = self.state_at(point, values).permute(2, 0, 1, 3)
        update = values[point.needs[0]].permute(2, 0, 1, 3) if point.needs else None
        here = Pass(documents=documents)
        here.rotary = self.rotary(0, z.shape[2], like=z)
        here.fold_streams(len(z))
        for step in self.post:
            z = step(z, update, here)
        return z.permute(1, 2, 0, 3)

    def read_out(self, state: Tensor) -> Tensor:
        return self.output_function.from_streams(state.flatten(-2))

    def read_stream(self, state: Tensor, stream: int) -> Tensor:
        return state @ self.stream_readout[stream]

    @property
    def stream_readout(self) -> Tensor:
        """[S, D, E] The output function by stream."""
        weight = self.output_function.from_streams.weight  # [E, S·D]
        return weight.view(-1, self.config.streams, self.config.stream_dim).permute(1, 2, 0)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        has_pattern = CONNECTIONS[self.config.connection].has_pattern
        return tuple(
            Exchange(
                pattern=f"layers.{t}.connection.pattern" if has_pattern else None,
                heads=self.config.stream_heads,
                message=f"layers.{t}.connection.out",
                update=f"layers.{t}.update",
            )
            for t in range(self.config.depth)
        )

    @property
    def calls(self) -> tuple[Call, ...]:
        found: list[Call] = []
        before: str | Tensor = self.input_site if self.config.z0 == "input" else self.z0
        for t, order in enumerate(self.evaluation_orders):
            for i, step in enumerate(order):
                site = f"layers.{t}.steps.{i}.out"
                found.append(Call(site, before, LETTERS[step], t))
                before = site
        return tuple(found)

    @property
    def call_groups(self) -> tuple[str, ...]:
        return tuple(LETTERS[: self.config.step_functions])

    @property
    def input_site(self) -> str:
        return f"pre.{self.config.pre_steps - 1}.out" if self.config.pre_steps else "input.streams"

    @property
    def watched_sites(self) -> tuple[str, ...]:
        last = self.config.depth - 1
        return self.exchanges[last].message, f"layers.{last}.out"

    @property
    def generators(self) -> dict[str, torch.Generator]:
        return {"order_generator": self.order_generator}

    @property
    def uses_all_weights(self) -> bool:
        return not self.config.step_order.random  # a draw may leave a step function out

    def flops_per_token(self, context: int) -> Flops:
        c = self.config
        S, D, inner = c.streams, c.stream_dim, c.token_heads * c.head_dim
        attended = (context + 1) / 2  # the mean number of tokens a causal query sees
        step = S * (4 * D * inner + 2 * D * c.mlp_dim + 2 * inner * attended)
        layer = self.layer.connection.multiply_adds() + c.calls_per_layer * step
        outside = (
            (c.pre_steps + c.post_steps) * step
            + 2 * c.embedding_dim * c.width
            + c.embedding_dim * c.vocab_size
        )
        forward = outside + c.depth * layer
        backward = 2 * (outside + c.gradient_depth * layer)
        return Flops(round(2 * forward), round(2 * (forward + backward)))

    @torch.no_grad()
    def initialize(self) -> None:
        config = self.config
        self.order_generator.manual_seed(config.order_seed)
        generator = torch.Generator(device=self.z0.device).manual_seed(config.init_seed)
        init_linear_(self.input_function.embedding.weight, config.embedding_dim, generator)
        for module in self.modules():
            if isinstance(module, StreamLinear):
                init_linear_(module.weight, module.fan_in, generator)
            elif isinstance(module, nn.Linear):
                init_linear_(module.weight, module.in_features, generator)
            elif isinstance(module, RMSNorm) and module.weight is not None:
                module.weight.fill_(1.0)
        self.layer.connection.initialize()
        if config.z0 in ("fixed", "learned"):
            nn.init.trunc_normal_(self.z0, std=1.0, a=-2.0, b=2.0, generator=generator)
        else:
            self.z0.zero_()
