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
from typing import ClassVar

import torch
from torch import Tensor, nn

from srmlab.errors import UserError
from srmlab.models.attention import Rotary
from srmlab.models.connection import CONNECTIONS, Connection
from srmlab.models.contract import Call, Exchange, Flops, Point
from srmlab.models.exit import State, recurse
from srmlab.models.forward import Pass
from srmlab.models.layer import Layer
from srmlab.models.model import LanguageModel
from srmlab.models.ordering import LETTERS, LayerOrder
from srmlab.models.registry import register
from srmlab.models.srm_config import PRESETS, SWEEP_PRESETS, SRMConfig, srm_sweep
from srmlab.models.step import Step


class InputFunction(nn.Module):
    """Tokens → embedding → all streams: [B, T] → [S, B, T, D]."""

    def __init__(self, config: SRMConfig) -> None:
        super().__init__()
        self.streams = config.streams
        self.scale = math.sqrt(config.embedding_dim) if config.embedding_scale else 1.0
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_dim)
        self.to_streams = nn.Linear(config.embedding_dim, config.width, bias=False)

    def forward(self, tokens: Tensor, here: Pass) -> Tensor:
        x = self.to_streams(here.embed(self.embedding, tokens) * self.scale)  # [B, T, S·D]
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
    """The Stream Recursion Model: S streams, refined by one shared layer applied n times."""

    z0: Tensor

    presets: ClassVar = PRESETS
    preset_families: ClassVar = {"srm-sweep": srm_sweep}
    sweep_presets: ClassVar = SWEEP_PRESETS
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
        turns = not config.learned_positions
        self.rotary = Rotary(config.head_dim, config.context, config.rope_theta, turns=turns)
        z0 = torch.zeros(config.streams, config.stream_dim)
        if config.z0 == "learned":
            self.z0 = nn.Parameter(z0)
        else:
            self.register_buffer("z0", z0)
        self.order_generator = torch.Generator(device="cpu")  # draws random step orders in training
        self.order_generator.manual_seed(config.order_seed)
        self.evaluation_orders = config.step_order.draw(config.depth, config.order_seed)
        self.ready()

    def hidden(self, tokens: Tensor, here: Pass) -> Tensor:
        config = self.config
        x = here.streams("input.streams", self.input_function(tokens, here))
        here.rotary = self.rotary(here.start, x.shape[2], like=x)
        here.fold_streams(config.streams)
        for i, step in enumerate(self.pre):
            x = here.call(f"pre.{i}", step, x, None)

        orders = self.draw_orders()

        def layer(t: int, state: State, x: Tensor) -> State:
            with here.gradient(t >= config.depth - config.gradient_depth):
                return here.call(f"layers.{t}", self.layer, state[0], x, orders[t])

        z, y = recurse(layer, (self.first_state(x, here),), x, config.depth, here)
        here.state = z

        for i, step in enumerate(self.post):
            z = here.call(f"post.{i}", step, z, y if config.post_input == "state+update" else None)
        return here("output.embedding", self.output_function(z))

    def first_state(self, x: Tensor, here: Pass | None = None) -> Tensor:
        """z_0: [S, 1, 1, D], one state for all tokens (spelled out for each when somebody looks), or x
        itself; of a puzzle's later segment, the state that was left.
        """
        if here is not None and here.state is not None:
            return here.state
        if self.config.z0 == "input":
            return x
        z = self.z0[:, None, None, :]
        return z if here is None or here.silent else z.expand_as(x)

    def draw_orders(self) -> tuple[LayerOrder, ...]:
        """The step order of every layer for one pass."""
        order, depth = self.config.step_order, self.config.depth
        if order.random and self.training:
            return order.draw(depth, self.order_generator)
        if depth == len(self.evaluation_orders):  # no generator is made inside a compiled graph
            return self.evaluation_orders
        return order.draw(depth, self.config.order_seed)

    @property
    def initial_state(self) -> Tensor:
        if self.config.z0 not in ("fixed", "zero"):
            raise UserError(f'z0 = {self.config.z0!r}: a puzzle begins from a constant state; use "fixed"')
        return self.z0

    @property
    def embedding(self) -> nn.Embedding:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.input_function.embedding

    @property
    def unembedding(self) -> Tensor:
        return self.embedding.weight if self.config.tied else self.output_function.unembedding.weight

    # --- how it describes itself ----------------------------------------------------------------------------

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
            Point(f"layers.{t}.out", needs=(f"layers.{t}.update",) if reads_update else ())
            for t in range(config.depth)
        ]
        post = [Point(f"post.{i}.out") for i in range(config.post_steps)]
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
        here = Pass(documents=documents, causal=self.config.causal)
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
    def first_read(self) -> str | Tensor:
        """What the first layer reads: a site, or the constant z_0."""
        return self.input_site if self.config.z0 == "input" else self.z0

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        has_pattern = CONNECTIONS[self.config.connection].has_pattern
        return tuple(
            Exchange(
                pattern=f"layers.{t}.connection.pattern" if has_pattern else None,
                heads=self.config.stream_heads,
                message=f"layers.{t}.connection.out",
                update=f"layers.{t}.update",
                state=f"layers.{t - 1}.out" if t else self.first_read,
            )
            for t in range(self.config.depth)
        )

    @property
    def queries_and_keys(self) -> tuple[Tensor, Tensor] | None:
        return self.layer.connection.queries_and_keys()

    @property
    def translations(self) -> Tensor | None:
        return self.layer.connection.translations()

    @property
    def calls(self) -> tuple[Call, ...]:
        found: list[Call] = []
        before = self.first_read
        for t, order in enumerate(self.evaluation_orders):
            for i, step in enumerate(order):
                name = f"layers.{t}.steps.{i}"
                parts = (("attention", f"{name}.attn"), ("mlp", f"{name}.mlp"))
                found.append(Call(f"{name}.out", before, LETTERS[step], t, f"{name}.in", parts))
                before = f"{name}.out"
        return tuple(found)

    @property
    def call_groups(self) -> tuple[str, ...]:
        return tuple(LETTERS[: self.config.step_functions])

    @property
    def held_sites(self) -> tuple[str, ...]:
        return tuple(self.select_sites(lambda n: n.endswith((".attention.weights", ".connection.pattern"))))

    @property
    def free_sites(self) -> tuple[str, ...]:
        return ("input.streams", *self.select_sites(lambda n: n.endswith(".mlp")))

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
        step = S * (4 * D * inner + 2 * D * c.mlp_dim + 2 * inner * c.attended(context))
        layer = self.layer.connection.multiply_adds() + c.calls_per_layer * step
        outside = (
            (c.pre_steps + c.post_steps) * step
            + 2 * c.embedding_dim * c.width
            + c.embedding_dim * c.vocab_size
        )
        return Flops.of(outside + c.depth * layer, outside + c.gradient_depth * layer)

    @torch.no_grad()
    def initialize(self) -> None:
        config = self.config
        self.order_generator.manual_seed(config.order_seed)
        generator = self.draw_weights()
        self.layer.connection.initialize()
        if config.z0 in ("fixed", "learned"):
            nn.init.trunc_normal_(self.z0, std=1.0, a=-2.0, b=2.0, generator=generator)
        else:
            self.z0.zero_()
