"""What all models share, whatever their architecture.

    model(tokens)                 logits [B, T, V]
    model(tokens, targets)        mean cross-entropy in nats, without ever holding all logits
    model(tokens, cache=cache)    logits of further tokens, after those the cache has read
    model(tokens, attention_mask=mask)    padded rows of unequal length: each gets the same logits as alone
    model(tokens, exit=0.05)      early exit, once the recursion has settled (see `exit`)
    model(tokens, targets, progress=0.5)    what training minimises half-way through it, and its parts
    model.num_parameters()        unique parameters; tied ones count once
    model.flops_per_token(512)    arithmetic of a forward pass and of a training step
    model.segment(boards)         logits of puzzles and the state to continue from (see `puzzle`)

and the methods of `Instrumented` (sites, hooks and caches) and of `WithText` (text in and out).

What an architecture must or may define is in `contract`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Self, Unpack

import torch
from torch import Tensor

from srmlab.errors import UserError, unknown
from srmlab.models.cache import DecodingCache
from srmlab.models.config import ModelConfig
from srmlab.models.contract import Config, Described
from srmlab.models.decoding import PaddedTokens, check_ids, check_range, check_targets
from srmlab.models.exit import Exit
from srmlab.models.forward import How, Pass
from srmlab.models.loss import chunked_cross_entropy, cross_entropy
from srmlab.models.puzzle import PuzzleParts, Segment
from srmlab.models.shapes import without_data
from srmlab.models.sites import SILENT, Recorder, Tap, uncompiled
from srmlab.models.transformer_lens import ReturnType, TransformerLensConfig, as_asked


@dataclass(frozen=True)
class Recording:
    """What a pass on the meta device shows of an architecture."""

    sites: tuple[str, ...]
    attention_calls: int
    cached_values: int  # keys and values kept of every token while decoding


class LanguageModel(Described[Config], Generic[Config]):
    """Any model of this package: call it for logits or a loss; hook, cache and generate with it."""

    def ready(self) -> None:
        """The last line of every `__init__`: finds the sites, then initialises the weights."""
        self.puzzle = None
        if not self.config.causal:
            assert self.initial_state.ndim == 2  # [S, D], or a refusal
            self.puzzle = PuzzleParts(self.config, self.embedding.embedding_dim)
        self.recording = recording(self)
        for name in self.recording.sites:
            self.add_site(name)
        if not self.unembedding.is_meta:
            self.initialize()

    @property
    def pattern_sites(self) -> list[str]:
        """How much tokens read of tokens, of every attention call: [B, streams, heads, T, keys] or without
        the streams."""
        return [name for name in self.site_names if name.endswith("attention.weights")]

    @property
    def attention_calls(self) -> int:
        """Attention calls over tokens in a forward pass: the number of slots of a KV cache."""
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
        tap = self.tap() if tap is None else tap
        model = self.for_pass(depth, gradient_depth, tap)
        if (wanted := Exit.of(exit)) is not None:
            self.check_exit()
            if wanted.by not in (None, *self.exit_rules):
                known = " or ".join(self.exit_rules)
                raise UserError(f"exit by {wanted.by!r}: {self.config.architecture} stops by {known}")
            if tap is not SILENT:
                raise UserError("early exit skips layers, and hooks need every site; use one or the other")
            if self.training:
                raise UserError("early exit needs model.eval(); to train, set another depth instead")
        real = None if attention_mask is None else attention_mask.to(tokens.device).bool()
        if cache is not None:
            self.check_reuse(cache.reuse, wanted)
            cache.begin(len(tokens), wanted is not None, model.depth)
            real = cache.with_padding(tokens, real)
        if real is not None and self.puzzle is not None:
            if not bool(real[:, 0].all()):
                raise UserError("a board begins at its first position: pad it on the right, not on the left")
            real = torch.cat((real.new_ones(len(real), self.config.puzzle_positions), real), dim=1)
        here = Pass(tap, cache, documents, real, wanted, self.config.causal)
        if self.puzzle is None:
            return model.hidden(tokens, here)
        if documents is not None:
            raise UserError("a board is one document: leave documents out")
        here.before = self.puzzle.before(len(tokens))
        return model.read_puzzle(tokens, here)[0]

    def for_pass(self, depth: int | None, gradient_depth: int | None, tap: Tap) -> Self:
        """This model; for a pass at another depth, or with another gradient, the same with another config."""
        if depth is not None and tap is not SILENT:
            raise UserError("hooks need every site, and another depth has others; hook model.at_depth(…)")
        if depth is None and gradient_depth is None:
            return self
        config = self.config.at_depth(self.depth if depth is None else depth, gradient_depth)
        other = object.__new__(type(self))  # not copy.copy, for which FSDP2 would build a model
        other.__dict__.update(self.__dict__ | {"config": config})
        return other

    def read_puzzle(self, tokens: Tensor, here: Pass) -> tuple[Tensor, Tensor]:
        """Of a puzzle model: the cells' embeddings [B, T, E], and q [B, 2]."""
        assert self.puzzle is not None
        here.places = self.puzzle.places
        hidden = self.hidden(tokens, here)
        return self.at_tokens(hidden), here("q", self.puzzle(hidden))

    def at_tokens(self, value: Tensor) -> Tensor:
        """A view of a site's value [B, position, …] at its tokens: before a board there are positions that
        are not cells.
        """
        return value[:, self.config.puzzle_positions :]

    def segment(
        self,
        tokens: Tensor,
        *,
        state: Tensor | None = None,
        puzzles: Tensor | None = None,
        before: Tensor | None = None,
        fresh: Tensor | None = None,
        depth: int | None = None,
    ) -> Segment:
        """One segment on boards [B, T]; `state` is what the last one left, None before the first.

        `puzzles` [B] says which puzzle each is, or `before` [B, 1, E] what is put before it; `fresh` [B]
        marks the boards whose first segment this is, where others have begun. With `depth` it is that of
        `at_depth(depth)`.
        """
        if self.puzzle is None:
            raise UserError("segments are for puzzle models: set causal = False")
        self.check_tokens(tokens)
        tap = self.tap()
        here = Pass(tap, causal=False)
        known = self.puzzle.before(len(tokens), puzzles) if before is None else self.puzzle.padded(before)
        begins = torch.full((len(tokens),), state is None, device=tokens.device) if fresh is None else fresh
        here.before, here.fresh, here.state = known, begins, state
        hidden, q = self.for_pass(depth, None, tap).read_puzzle(tokens, here)
        assert here.state is not None
        return Segment(tap("logits", hidden @ self.unembedding.T), q, here.state)

    def forward(
        self,
        tokens: Tensor | PaddedTokens | str | Sequence[str],
        targets: Tensor | None = None,
        *,
        progress: float | None = None,
        return_type: ReturnType | None = None,
        loss_per_token: bool = False,
        stop_at_layer: int | None = None,
        **how: Unpack[How],
    ) -> Any:
        """Logits [B, T, V], or with `targets` [B, T] their mean cross-entropy (−100 does not count). A model
        that knows its tokenizer reads text too, one or several of any lengths; and every model what
        `tokenizer(texts)` gives.

        `documents` [B, T] gives each token's document; attention then stays inside documents.
        `attention_mask` [B, T] is 0 at padding, which no token attends to and whose logits mean nothing; each
        row is one unbroken run of tokens. A cache remembers it: the mask is always that of `tokens` alone.
        With `exit`, the recursion stops where the state changes by less than this share of it. With `depth`
        or `gradient_depth` it is the pass of `at_depth(depth, gradient_depth)`. With `progress`, the share of
        training that is done, it is what training minimises and its parts (see `training_loss`).

        As in TransformerLens: `return_type` "loss" is that of the tokens themselves, each predicted from
        those before it ([B, T − 1] with `loss_per_token`), "both" is (logits, loss). `stop_at_layer` gives
        the state [B, T, S, D] after the layers before it; −1 means the last layer, 0 gives the tokens' input.
        """
        if not isinstance(tokens, Tensor):
            tokens, how["attention_mask"] = self.read_text(tokens, how.get("attention_mask"))
        given = check_options(how | {"targets": targets, "progress": progress})
        if return_type is not None or stop_at_layer is not None or loss_per_token:
            return as_asked(self, tokens, how, given, return_type, loss_per_token, stop_at_layer)
        if torch.compiler.is_compiling() and (self.listening or given & {"exit", "depth", "gradient_depth"}):
            return uncompiled(self.forward, tokens, targets, progress=progress, **how)
        self.check_tokens(tokens, targets, **how)
        targets = None if targets is None else targets.long()  # torch's own cross-entropy takes no int32
        tap = self.tap()
        if progress is not None:
            self.check_next_tokens()
            if targets is None or given & {"cache", "exit", "attention_mask"}:
                raise UserError("progress is for training: give targets, without cache, exit and padding")
            model = self.for_pass(how.get("depth"), how.get("gradient_depth"), tap)
            return model.training_loss(tokens, targets, Pass(tap, documents=how.get("documents")), progress)
        try:
            hidden = self.output_embedding(tokens, **how, tap=tap)
        except IndexError:  # of an embedding, on a CPU
            check_range(tokens, self.config.vocab_size)
            raise
        if targets is None:
            return tap("logits", hidden @ self.unembedding.T)
        return self.loss(hidden, targets, tap)

    def loss(self, hidden: Tensor, targets: Tensor, tap: Tap) -> Tensor:
        """The mean cross-entropy of `targets` [B, T] by output embeddings [B, T, E]; all logits are there at
        once only if somebody looks at them.
        """
        logits = tap("logits", hidden @ self.unembedding.T) if tap.wants("logits") else None
        try:
            if logits is not None:
                return cross_entropy(logits, targets)
            return chunked_cross_entropy(hidden, self.unembedding, targets)
        except (IndexError, RuntimeError):  # of a target that is not in the vocabulary, on a CPU
            check_targets(targets, self.config.vocab_size)
            raise

    def next_token_logits(
        self,
        tokens: Tensor,
        cache: DecodingCache | None = None,
        attention_mask: Tensor | None = None,
        *,
        exit: float | Exit | None = None,
    ) -> Tensor:
        """The logits [B, V] after the last token only; padding is on the left."""
        self.check_next_tokens()
        self.check_tokens(tokens, cache=cache, attention_mask=attention_mask)
        tap = self.tap()
        how: dict[str, Any] = {"cache": cache, "attention_mask": attention_mask, "exit": exit}
        if tap is not SILENT:  # a listener at "logits" expects every position
            return self(tokens, **how)[:, -1]
        return self.output_embedding(tokens, **how, tap=tap)[:, -1] @ self.unembedding.T

    def new_cache(self, capacity: int | None = None, *, reuse: bool = False) -> DecodingCache:
        """An empty cache for decoding, by default as long as the context.

        With `reuse` it takes less memory. With exit, a token's keys and values are stored once for all levels
        that share them: the same result, more slowly. Without exit, for models that can do so, it keeps those
        of the last level only, and every level reads them: another result.
        """
        self.check_next_tokens()
        context = self.config.context
        if capacity is not None and not 1 <= capacity <= context:
            raise UserError(f"capacity = {capacity}: must be between 1 and the context of {context}")
        return DecodingCache(context if capacity is None else capacity, reuse)

    def check_next_tokens(self) -> None:
        """Refuse to predict tokens from those before them where attention goes in both directions."""
        if self.puzzle is not None:
            raise UserError(
                "a puzzle model reads whole boards and has no next token; use `srmlab solve` or model.segment"
            )

    def check_reuse(self, reuse: bool, exit: float | Exit | None) -> None:
        """Whether a cache can be read with `reuse`."""
        if reuse and exit is None and not self.reuses_cache:
            name = self.config.architecture
            raise UserError(f"{name} reuses its cache with early exit only: set exit too, or leave reuse out")

    def compile(self, **options: Any) -> None:
        """Compile the units, each once for all its calls: much faster than one graph of everything."""
        import torch._dynamo  # here: it takes as long as all of torch

        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
        for module in self.modules():
            if isinstance(module, self.units):
                module.compile(**options)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """eval() and no gradient while open; restores the mode afterwards."""
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

    def check_tokens(self, tokens: Tensor, targets: Tensor | None = None, **how: Unpack[How]) -> None:
        """Shapes only: nothing here reads a value, so nothing waits for a GPU or breaks a graph."""
        documents, cache = how.get("documents"), how.get("cache")
        check_ids(tokens)
        if targets is not None and targets.dtype not in (torch.int64, torch.int32):
            raise UserError(f"targets of {targets.dtype}: ids are whole numbers; use targets.long()")
        likes = {"targets": targets, "documents": documents, "attention_mask": how.get("attention_mask")}
        for name, like in likes.items():
            if like is not None and like.shape != tokens.shape:
                raise UserError(
                    f"{name} of shape {tuple(like.shape)}: need the shape of tokens, {tuple(tokens.shape)}"
                )
        if cache is not None:
            if documents is not None:
                raise UserError("documents and a cache cannot be combined; decode one document at a time")
            cache.room_for(*tokens.shape)
        elif tokens.shape[1] > self.config.context - self.config.puzzle_positions:
            before = f" after {self.config.puzzle_positions}" if self.config.puzzle_positions else ""
            raise UserError(
                f"{tokens.shape[1]} tokens{before} exceed the context of {self.config.context}; cut the input"
            )


LISTED = (*sorted(How.__annotations__), "return_type", "stop_at_layer", "targets")  # options of a pass
OF_VERBS = ("names_filter", "fwd_hooks", "bwd_hooks", "device", "detach", "remove_batch_dim")


def check_options(options: Mapping[str, Any]) -> set[str]:
    """The names of those that are given; one that a pass does not have, or that is misspelt, is refused."""
    known = [*LISTED, "loss_per_token", "progress"]
    if others := set(options) - set(known):
        listed = f"there are {', '.join(LISTED)}"
        raise unknown("option of a pass", min(others), [*known, *OF_VERBS], listed)
    return {name for name, value in options.items() if value is not None}


# One function is compiled with and without gradient, for the first layer, for every batch shape and for
# every model of the process. Past torch's own limit of 8 it would run uncompiled.
RECOMPILE_LIMIT = 64

RECORDINGS: dict[Any, Recording] = {}
_outlines = False


def recording(model: LanguageModel) -> Recording:
    """One pass over one token on the meta device, where nothing is computed; kept for every config and the
    classes of its parts: a connection that is written anew, as in a notebook, may have other sites.
    """
    if _outlines:
        return Recording((), 0, 0)
    key = type(model), model.config, frozenset(map(type, model.modules()))
    if key not in RECORDINGS:
        RECORDINGS[key] = _record(type(model), model.config)
    return RECORDINGS[key]


def outlined(kind: type[LanguageModel], config: ModelConfig) -> LanguageModel:
    """The model on the meta device, without sites."""
    global _outlines
    before, _outlines = _outlines, True
    try:
        with without_data():
            return kind(config).eval()  # pyright: ignore[reportCallIssue]
    finally:
        _outlines = before


@torch.no_grad()
def _record(kind: type[LanguageModel], config: ModelConfig) -> Recording:
    names: dict[str, None] = {}
    tokens = 1 if config.causal else config.context - config.puzzle_positions  # a board is read whole
    cache = DecodingCache(capacity=1)
    model = outlined(kind, config)
    model.tap = lambda: Recorder(names)
    with without_data():
        model(torch.zeros(1, tokens, dtype=torch.long), cache=cache if config.causal else None)
    values = sum(kept.numel() for slot in cache for kept in slot.filled())
    return Recording(tuple(names), len(cache.slots), values)
