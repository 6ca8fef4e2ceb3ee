"""The Stream Recursion Model: S latent streams, refined by one shared layer applied n times.

    x   = ToStreams(Embedding(tokens))            the input function; x is re-injected in every layer
    z_0 = a fixed random state, the same for every token
    z_t = Layer(z_{t-1}, x)     t = 1 … n         gradient through the last l layers only
    out = Unembedding(FromStreams(z_n))           the output function, linear in the streams

Sites, in the order of the computation (l counts layers from 0, i the steps of a layer):

    input.streams   pre.{i}.in|attn|mlp|out
    layers.{l}.connection.pattern|out   layers.{l}.update   layers.{l}.steps.{i}.in|attn|mlp|out
    layers.{l}.out post.{i}.in|attn|mlp|out   output.embedding   logits

`model.layer` holds the shared weights; `model.layers[l]` holds the sites of its l-th call.

Axes:  S stream   B batch   T token   D stream dim   E embedding   V vocabulary
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from srmlab.models.attention import Rotary
from srmlab.models.config import SRMConfig
from srmlab.models.connection import Connection
from srmlab.models.decoding import DecodingCache
from srmlab.models.layer import Layer
from srmlab.models.model import Flops, LanguageModel, document_mask, expect_recompiles
from srmlab.models.ordering import LayerOrder
from srmlab.models.sites import SILENT, Tap, callable_of
from srmlab.models.step import Step
from srmlab.models.streams import RMSNorm, StreamLinear, init_linear_


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


class SRM(LanguageModel[SRMConfig]):
    z0: Tensor

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
        self.order_generator = torch.Generator()  # draws random step orders in training
        self._add_sites()
        self.initialize()

    def hidden(
        self,
        tokens: Tensor,
        *,
        cache: DecodingCache | None = None,
        documents: Tensor | None = None,
        tap: Tap | None = None,
    ) -> Tensor:
        config = self.config
        tap = self.tap() if tap is None else tap
        slots = iter(cache) if cache else None
        mask = None
        if documents is not None:  # the same for all streams, which are folded into the batch
            mask = document_mask(documents).repeat(config.streams, 1, 1, 1)

        def call_step(step: nn.Module, z: Tensor, update: Tensor | None, name: str) -> Tensor:
            call = callable_of(step, tap, compiled=cache is None)
            return call(z, update, rotary, next(slots) if slots else None, mask, tap.at(name))

        def call_layer(z: Tensor, t: int) -> tuple[Tensor, Tensor]:
            past = [next(slots) for _ in orders[t]] if slots else None
            return self.layer(z, x, orders[t], rotary, past, mask, tap.at(f"layers.{t}"))

        # The input function
        x = tap("input.streams", self.input_function(tokens))
        rotary = self.rotary(cache.length if cache else 0, tokens.shape[1], like=x)
        for i, step in enumerate(self.pre):
            x = call_step(step, x, None, f"pre.{i}")

        # n layers, the last l of them with gradient
        orders = self.draw_orders()
        z = self.first_state(x, tap)
        y = x
        with torch.no_grad():
            for t in range(config.depth - config.gradient_depth):
                z, y = call_layer(z, t)
        for t in range(config.depth - config.gradient_depth, config.depth):
            z, y = call_layer(z, t)

        # The output function
        for i, step in enumerate(self.post):
            z = call_step(step, z, y if config.post_input == "state+update" else None, f"post.{i}")
        return tap("output.embedding", self.output_function(z))

    def first_state(self, x: Tensor, tap: Tap = SILENT) -> Tensor:
        """z_0: [S, 1, 1, D], one state for all tokens (spelled out for each when somebody looks), or x
        itself.
        """
        if self.config.z0 == "input":
            return x
        z = self.z0[:, None, None, :]
        return z if tap is SILENT else z.expand_as(x)

    def draw_orders(self) -> tuple[LayerOrder, ...]:
        """The step order of every layer for one pass."""
        order = self.config.step_order
        if order.random and self.training:
            return order.draw(self.config.depth, self.order_generator)
        return self.evaluation_orders

    @property
    def unembedding(self) -> Tensor:
        if self.config.tied:
            return self.input_function.embedding.weight
        return self.output_function.unembedding.weight

    @property
    def attention_calls(self) -> int:
        return (
            self.config.pre_steps + self.config.depth * self.config.calls_per_layer + self.config.post_steps
        )

    def compile(self, **options) -> None:
        """Compile the step and connection functions, each once for all layers: far quicker than one graph
        of everything.
        """
        expect_recompiles()
        for module in self.modules():
            if isinstance(module, Step | Connection):
                module.compile(**options)

    def flops_per_token(self, context: int) -> Flops:
        c = self.config
        S, D, inner = c.streams, c.stream_dim, c.token_heads * c.head_dim
        attended = (context + 1) / 2  # the mean number of tokens a causal query sees
        step = S * (4 * D * inner + 2 * D * c.mlp_dim + 2 * inner * attended)
        heads = c.stream_heads * c.head_dim if c.connection == "attention" else 0
        connection = 4 * S * D * heads + 2 * S * S * heads
        layer = connection + c.calls_per_layer * step
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
        self.evaluation_orders = config.step_order.draw(
            config.depth, torch.Generator().manual_seed(config.order_seed)
        )
        self.order_generator.manual_seed(config.order_seed)
        if self.z0.is_meta:
            return
        generator = torch.Generator(device=self.z0.device).manual_seed(config.init_seed)
        init_linear_(self.input_function.embedding.weight, config.embedding_dim, generator)
        for module in self.modules():
            if isinstance(module, StreamLinear):
                init_linear_(module.weight, module.fan_in, generator)
            elif isinstance(module, nn.Linear):
                init_linear_(module.weight, module.in_features, generator)
            elif isinstance(module, RMSNorm) and module.weight is not None:
                module.weight.fill_(1.0)
        if config.z0 in ("fixed", "learned"):
            nn.init.trunc_normal_(self.z0, std=1.0, a=-2.0, b=2.0, generator=generator)
        else:
            self.z0.zero_()

    def _add_sites(self) -> None:
        def add_step(name: str) -> None:
            for kind in ("in", "attn", "mlp", "out"):
                self.add_site(f"{name}.{kind}", "streams")

        config = self.config
        self.add_site("input.streams", "streams")
        for i in range(config.pre_steps):
            add_step(f"pre.{i}")
        for t in range(config.depth):
            if config.connection == "attention":
                self.add_site(f"layers.{t}.connection.pattern")
            self.add_site(f"layers.{t}.connection.out", "streams")
            self.add_site(f"layers.{t}.update", "streams")
            for i in range(config.calls_per_layer):
                add_step(f"layers.{t}.steps.{i}")
            self.add_site(f"layers.{t}.out", "streams")
        for i in range(config.post_steps):
            add_step(f"post.{i}")
        self.add_site("output.embedding")
        self.add_site("logits")
