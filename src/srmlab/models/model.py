"""The contract every architecture keeps: what a model says of itself, so that nobody else asks which it is.

    model(tokens)                 logits [B, T, V]
    model(tokens, targets)        mean cross-entropy in nats, without ever holding all logits
    model(tokens, cache=cache)    logits of further tokens, after those the cache has read
    model(tokens, attention_mask=mask)    rows of unequal length, padded: each has the logits it has alone
    model(tokens, exit=0.05)      stopping where the recursion has settled (see `exit`)
    model.num_parameters()        unique parameters; tied ones count once
    model.flops_per_token(512)    arithmetic of a forward pass and of a training step

and the verbs of `Instrumented`: sites, hooks and caches.

An architecture is a config (a frozen `ModelConfig`) and a class with `@register`, in one file. It must have

    hidden(tokens, here)          the computation; named values go through `here` (see `forward`)
    embedding, unembedding        the table of the tokens, and the matrix [V, E] behind the logits
    flops_per_token(context)      its arithmetic
    initialize()                  weights and buffers from the config's seed
    units                         the modules that are compiled, recomputed and sharded as one
    points                        where in depth its state can be read, and how (`read_out`)

and may say more: other streams than one (`streams`, `exchanges`), what its calls contribute (`calls`), that
it can be run at another depth (`config.at_depth`) and stop early (`check_exit`). Sites and the slots of the
decoding cache are found by running the computation once on the meta device. `docs/extending.md` builds one
from scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, get_args

import torch
import torch._dynamo
from torch import Tensor, nn

from srmlab.errors import UserError
from srmlab.models.cache import DecodingCache
from srmlab.models.config import ModelConfig
from srmlab.models.exit import Exit
from srmlab.models.forward import Pass
from srmlab.models.loss import chunked_cross_entropy, cross_entropy
from srmlab.models.sites import SILENT, HookPoint, Instrumented, Recorder, Tap, uncompiled

Config = TypeVar("Config", bound=ModelConfig)
ReturnType = Literal["logits", "loss", "both"]


@dataclass(frozen=True)
class TransformerLensConfig:
    """Sizes in TransformerLens' words."""

    n_layers: int
    d_model: int  # of all streams together
    n_heads: int  # of all streams together
    d_mlp: int | None
    n_ctx: int
    d_vocab: int
    model_name: str
    device: torch.device
    dtype: torch.dtype


@dataclass(frozen=True)
class Flops:
    """Floating-point operations per token (a multiply-add is two), averaged over a context of causal
    attention.
    """

    forward: int
    training: int  # forward, and backward through what is differentiated


@dataclass(frozen=True)
class Point:
    """A place in depth where the state of all streams can be read."""

    name: str
    sites: tuple[str, ...]  # one with all streams [B, T, S, D], or one a stream [B, T, D]
    needs: tuple[str, ...] = ()  # further sites that `finish` reads


@dataclass(frozen=True)
class Call:
    """One call of a part of the model, which moves a state: what it contributes is after − before."""

    site: str  # the state after it
    before: str | Tensor | None  # the state before it: a site or a constant; None: the site is the difference
    group: str  # calls of one group contribute together
    level: int  # where in depth


@dataclass(frozen=True)
class Exchange:
    """What moves between the streams at one level of depth: sites."""

    pattern: str | None  # [B, T, H, target, source] how much each stream reads of each, if that is explicit
    heads: int
    message: str  # [B, T, S, D] what each stream is given
    update: str  # [B, T, S, D] what it makes of that and of the tokens


@dataclass(frozen=True)
class Recording:
    """What a pass on the meta device shows of an architecture."""

    sites: tuple[str, ...]
    attention_calls: int
    cached_values: int  # keys and values kept of every token while decoding


class LanguageModel(Instrumented, Generic[Config]):
    config: Config

    # --- what every architecture has -----------------------------------------------------------------------

    presets: ClassVar[Mapping[str, Callable[..., ModelConfig]]] = {}
    sweep_presets: ClassVar[Mapping[str, Callable[..., ModelConfig]]] = {}  # listed only when asked for
    preset_families: ClassVar[Mapping[str, Callable[..., ModelConfig]]] = {}  # presets with arguments
    units: ClassVar[tuple[type[nn.Module], ...]] = ()
    level_name: ClassVar[str] = "layers"  # what its depth is counted in
    parts: ClassVar[
        Mapping[str, str]
    ] = {}  # weights by the beginning of their names → a label; `*`: a number

    def hidden(self, tokens: Tensor, here: Pass) -> Tensor:
        """The embedding [B, T, E] that the unembedding turns into logits."""
        raise NotImplementedError

    embedding: nn.Embedding  # of the tokens

    @property
    def unembedding(self) -> Tensor:
        """The matrix [V, E] behind the logits."""
        raise NotImplementedError

    def flops_per_token(self, context: int) -> Flops:
        raise NotImplementedError

    def initialize(self) -> None:
        """Fill weights and buffers from the config's seed (after `to_empty`, for a model built on the meta
        device).
        """
        raise NotImplementedError

    # --- depth: where the state can be read, and how -------------------------------------------------------

    @property
    def points(self) -> tuple[Point, ...]:
        """In order of depth. The last is what the output reads; the first `depth` are the levels."""
        raise NotImplementedError

    @property
    def depth(self) -> int:
        """How many levels there are: layers, cycles or blocks."""
        return len(self.points)

    @property
    def gradient_from(self) -> int | None:
        """The first level that is trained with gradient, if that is not all of them."""
        return None

    recurrent: ClassVar[bool] = False  # whether levels share weights, so that it can run deeper than trained

    def check_exit(self) -> None:
        """Refuse early exit where it is not defined; one that has it reads `here.exit` in `hidden`."""
        raise UserError(f"{self.config.architecture} has no early exit; leave exit out")

    def at_depth(self, depth: int, gradient_depth: int | None = None) -> Self:
        """A model of another depth on the same weights: nothing is copied, and nothing of this one changes.

        `gradient_depth` is how many of its levels have a gradient, by default as many as here.
        """
        with torch.device("meta"):
            other = type(self)(self.config.at_depth(depth, gradient_depth))
        other.load_state_dict(self.state_dict(keep_vars=True), assign=True)
        return other.eval()

    def state_at(self, point: Point, values: Mapping[str, Tensor]) -> Tensor:
        """[B, T, S, D] The streams at a point, from the values of its sites."""
        found = [values[site] for site in point.sites]
        return found[0] if found[0].ndim == 4 else torch.stack(found, dim=2)

    def finish(self, point: Point, values: Mapping[str, Tensor], documents: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """[B, T, S, D] The state that the output would read if the model stopped after a level."""
        return self.state_at(point, values)

    def read_out(self, state: Tensor) -> Tensor:
        """A state [..., S, D] → the embedding [..., E] that the unembedding reads."""
        return self.read_stream(state[..., -1, :], len(self.streams) - 1)

    def read_stream(self, state: Tensor, stream: int) -> Tensor:  # noqa: ARG002
        """One stream alone [..., D] → the embedding [..., E]."""
        return state

    # --- streams: how many, and what moves between them ----------------------------------------------------

    @property
    def streams(self) -> tuple[str, ...]:
        return ("residual",)

    @property
    def stream_dim(self) -> int:
        return self.unembedding.shape[1]

    @property
    def stream_readout(self) -> Tensor | None:
        """[S, D, E] What `read_out` does to each stream, if it is linear and adds up over the streams."""
        return None

    @property
    def token_independent(self) -> tuple[int, ...]:
        """Levels whose exchange cannot depend on the token."""
        return ()

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """One for every level at which streams exchange something; none if they never do."""
        return ()

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls that move the state, in their order; none if that is not defined."""
        return ()

    @property
    def call_groups(self) -> tuple[str, ...]:
        """The groups of `calls`, also those that no call of this order is in."""
        return tuple(dict.fromkeys(call.group for call in self.calls))

    @property
    def input_site(self) -> str | None:
        """The site of the token input that every level sees again, if there is one."""
        return None

    @property
    def watched_sites(self) -> tuple[str, ...]:
        """What the log of a training run keeps the norms of."""
        return ("output.embedding",)

    # --- training ------------------------------------------------------------------------------------------

    @property
    def generators(self) -> dict[str, torch.Generator]:
        """Random generators that training draws from: part of the training state."""
        return {}

    @property
    def uses_all_weights(self) -> bool:
        """Whether every training step has a gradient for every weight."""
        return True

    @property
    def weights_with_two_names(self) -> dict[str, str]:
        """Names of weights that are stored under another name."""
        return {}

    # --- from here on the same for all ---------------------------------------------------------------------

    def ready(self) -> None:
        """The last line of every `__init__`: finds the sites, then fills the weights."""
        for name in self.recording.sites:
            self.add_site(name)
        if not self.unembedding.is_meta:
            self.initialize()

    @property
    def recording(self) -> Recording:
        return recording(type(self), self.config)

    @property
    def attention_calls(self) -> int:
        """How often a forward pass attends over tokens: the slots of a decoding cache."""
        return self.recording.attention_calls

    def output_embedding(
        self,
        tokens: Tensor,
        *,
        cache: DecodingCache | None = None,
        documents: Tensor | None = None,
        attention_mask: Tensor | None = None,
        exit: float | Exit | None = None,
        depth: int | None = None,
        gradient_depth: int | None = None,
        tap: Tap | None = None,
    ) -> Tensor:
        """The embedding [B, T, E] that the unembedding turns into logits."""
        config = None if depth is None else self.config.at_depth(depth, gradient_depth)
        tap = self.tap() if tap is None else tap
        if config is not None and tap is not SILENT:
            raise UserError("hooks need every site, and another depth has others; hook model.at_depth(…)")
        if (wanted := Exit.of(exit)) is not None:
            self.check_exit()
            if tap is not SILENT:
                raise UserError("exit leaves out layers, and hooks need every site; use one or the other")
            if self.training:
                raise UserError("exit is for a model in eval(); train at another depth instead")
        real = None if attention_mask is None else attention_mask.to(tokens.device).bool()
        if cache is not None:
            cache.begin(wanted is not None)
            real = cache.with_padding(tokens, real)
        return self.hidden(tokens, Pass(tap, cache, documents, real, wanted, config))

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        *,
        cache: DecodingCache | None = None,
        documents: Tensor | None = None,
        attention_mask: Tensor | None = None,
        exit: float | Exit | None = None,
        depth: int | None = None,
        gradient_depth: int | None = None,
        return_type: ReturnType | None = None,
        loss_per_token: bool = False,
        stop_at_layer: int | None = None,
    ) -> Any:
        """Logits [B, T, V], or with `targets` [B, T] their mean cross-entropy (−100 does not count).

        `documents` [B, T] gives each token's document; attention then stays inside documents.
        `attention_mask` [B, T] is 0 at padding, which no token looks at and whose logits mean nothing; each
        row is one unbroken run of tokens. A cache remembers it: the mask is always that of `tokens` alone.
        With `exit`, the recursion stops where the state changes by less than this share of it. With `depth`
        it is the pass of `at_depth(depth, gradient_depth)`.

        As in TransformerLens: `return_type` "loss" is that of the tokens themselves, each predicted from
        those before it ([B, T − 1] with `loss_per_token`), "both" is (logits, loss). `stop_at_layer` gives
        the state [B, T, S, D] that this layer would read; −1 means the last.
        """
        if return_type is not None or stop_at_layer is not None:
            passed = partial(self.forward, tokens, documents=documents, attention_mask=attention_mask)
            if targets is not None or cache is not None or exit is not None or depth is not None:
                raise UserError("targets, cache, exit and depth go without return_type and stop_at_layer")
            if stop_at_layer is not None:
                return state_before(self, stop_at_layer, passed)
            return as_asked(passed(), tokens, attention_mask, return_type, loss_per_token)
        how: dict[str, Any] = {"cache": cache, "documents": documents, "attention_mask": attention_mask}
        how |= {"exit": exit, "depth": depth, "gradient_depth": gradient_depth}
        if torch.compiler.is_compiling() and (self.listening or exit is not None or depth is not None):
            return uncompiled(self.forward, tokens, targets, **how)
        self.check_tokens(tokens, cache, documents, targets, attention_mask)
        tap = self.tap()
        hidden = self.output_embedding(tokens, **how, tap=tap)
        if targets is None:
            return tap("logits", hidden @ self.unembedding.T)
        if tap.wants("logits"):
            return cross_entropy(tap("logits", hidden @ self.unembedding.T), targets)
        return chunked_cross_entropy(hidden, self.unembedding, targets)

    def next_token_logits(
        self,
        tokens: Tensor,
        cache: DecodingCache | None = None,
        attention_mask: Tensor | None = None,
        *,
        exit: float | Exit | None = None,
    ) -> Tensor:
        """The logits [B, V] after the last token only; padding is on the left."""
        self.check_tokens(tokens, cache, attention_mask=attention_mask)
        tap = self.tap()
        how: dict[str, Any] = {"cache": cache, "attention_mask": attention_mask, "exit": exit}
        if tap is not SILENT:  # a listener at "logits" expects every position
            return self(tokens, **how)[:, -1]
        return self.output_embedding(tokens, **how, tap=tap)[:, -1] @ self.unembedding.T

    def new_cache(self, capacity: int | None = None) -> DecodingCache:
        """An empty cache for decoding, by default as long as the context."""
        context = self.config.context
        if capacity is not None and not 1 <= capacity <= context:
            raise UserError(f"capacity = {capacity}: must be between 1 and the context of {context}")
        return DecodingCache(context if capacity is None else capacity)

    def compile(self, **options: Any) -> None:
        """Compile the units, each once for all its calls: far quicker than one graph of everything."""
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
        for module in self.modules():
            if isinstance(module, self.units):
                module.compile(**options)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """eval() and no gradient, and afterwards as it was."""
        was = self.training
        self.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.train(was)

    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def cfg(self) -> TransformerLensConfig:
        sizes = self.config.sizes
        return TransformerLensConfig(
            n_layers=self.depth,
            d_model=len(self.streams) * self.stream_dim,
            n_heads=sizes.heads,
            d_mlp=sizes.mlp,
            n_ctx=self.config.context,
            d_vocab=self.config.vocab_size,
            model_name=self.config.architecture,
            device=self.device,
            dtype=self.unembedding.dtype,
        )

    @property
    def device(self) -> torch.device:
        return self.unembedding.device

    def check_tokens(
        self,
        tokens: Tensor,
        cache: DecodingCache | None = None,
        documents: Tensor | None = None,
        targets: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> None:
        """Shapes only: nothing here reads a value, so nothing waits for a GPU or breaks a graph."""
        if not isinstance(tokens, Tensor):
            raise UserError(f"tokens are a tensor [batch, token] of ids, not {type(tokens).__name__}")
        if tokens.ndim != 2 or tokens.numel() == 0:
            raise UserError(
                f"tokens of shape {tuple(tokens.shape)}: need [batch, token] with at least one token"
            )
        likes = {"targets": targets, "documents": documents, "attention_mask": attention_mask}
        for name, like in likes.items():
            if like is not None and like.shape != tokens.shape:
                raise UserError(
                    f"{name} of shape {tuple(like.shape)}: need the shape of tokens, {tuple(tokens.shape)}"
                )
        if cache is not None:
            if documents is not None:
                raise UserError("documents and cache do not go together; decode one document at a time")
            cache.room_for(tokens.shape[1])
        elif tokens.shape[1] > self.config.context:
            raise UserError(
                f"{tokens.shape[1]} tokens exceed the context of {self.config.context}; cut the input"
            )


class Stopped(Exception):
    """The pass has come as far as it was asked to."""


def state_before(model: LanguageModel, level: int, run: Callable[[], Any]) -> Tensor:
    """[B, T, S, D] What a level would read, without running it."""
    if not -model.depth <= level <= model.depth:
        raise UserError(f"stop_at_layer = {level}: there are {model.depth} {model.level_name}")
    before = level % model.depth if level < 0 else level
    first = model.site_names[0]
    point = Point(first, (first,)) if before == 0 else model.points[before - 1]
    values: dict[str, Tensor] = {}

    def keep(value: Tensor, hook: HookPoint) -> None:
        values[hook.name] = value
        if len(values) == len(point.sites):
            raise Stopped

    with suppress(Stopped), model.hooks([(point.sites, keep)]):
        run()
    state = values[first] if before == 0 else model.state_at(point, values)
    return state if state.ndim == 4 else state[:, :, None]


def as_asked(
    logits: Tensor, tokens: Tensor, mask: Tensor | None, return_type: str | None, per_token: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """Logits, the loss of the tokens that follow, or both, as TransformerLens' `return_type` says."""
    if return_type not in get_args(ReturnType):
        raise UserError(f"return_type = {return_type!r}: must be one of {', '.join(get_args(ReturnType))}")
    if return_type == "logits":
        return logits
    targets = tokens[:, 1:]
    if mask is not None:  # what padding predicts, and padding itself, do not count
        targets = targets.masked_fill((mask[:, :-1] * mask[:, 1:]).to(targets.device) == 0, -100)
    flat = logits[:, :-1].flatten(0, 1), targets.flatten()
    losses = nn.functional.cross_entropy(*flat, reduction="none" if per_token else "mean")
    loss = losses.view(targets.shape) if per_token else losses
    return loss if return_type == "loss" else (logits, loss)


# One function is compiled with and without gradient, for the first layer, for every batch shape and for
# every model of the process. Past torch's own limit of 8 it would run uncompiled.
RECOMPILE_LIMIT = 64

_RECORDINGS: dict[tuple[type[LanguageModel], ModelConfig], Recording] = {}


def recording(kind: type[LanguageModel], config: ModelConfig) -> Recording:
    """One pass over one token on the meta device, where nothing is computed; kept for every config."""
    key = kind, config
    if key not in _RECORDINGS:
        _RECORDINGS[key] = Recording((), 0, 0)  # for the model that is built here
        try:
            _RECORDINGS[key] = _record(kind, config)
        except BaseException:
            del _RECORDINGS[key]
            raise
    return _RECORDINGS[key]


@torch.no_grad()
def _record(kind: type[LanguageModel], config: ModelConfig) -> Recording:
    names: list[str] = []
    cache = DecodingCache(capacity=1)
    with torch.device("meta"):
        model = kind(config).eval()  # pyright: ignore[reportCallIssue]
        model.tap = lambda: Recorder(names)
        model(torch.zeros(1, 1, dtype=torch.long), cache=cache)
    values = sum(kept.numel() for slot in cache for kept in (slot.keys, slot.values) if kept is not None)
    return Recording(tuple(names), len(cache.slots), values)
