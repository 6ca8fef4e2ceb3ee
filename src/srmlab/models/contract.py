"""The interface every architecture implements: how a model describes itself, so that no other code needs to
check which one it is.

An architecture is a config (a frozen `ModelConfig`) and a class with `@register`, in one file. It must have

    hidden(tokens, here)          the computation; named values go through `here` (see `forward`)
    embedding, head               the token embedding, and the unembedding (None: tied to it)
    flops_per_token(context)      its FLOP count
    units                         the modules that are compiled, recomputed and sharded as one
    points                        where in depth its state can be read, and how (`read_out`)

and may define more: other first weights than the usual (`initialize`), several streams (`streams`,
`exchanges`), what its calls contribute (`calls`), running at another depth (`config.at_depth`), early exit
(`check_exit`), puzzles (`initial_state`), and what training minimises if that is not the cross-entropy
(`training_loss`). Sites and the slots of the KV cache are found by
running the computation once on the meta device.
`docs/extending.md` builds one from scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from srmlab.errors import UserError
from srmlab.models.config import ModelConfig
from srmlab.models.forward import Pass
from srmlab.models.loss import chunked_cross_entropy
from srmlab.models.puzzle import PuzzleParts
from srmlab.models.shapes import without_data
from srmlab.models.streams import RMSNorm, StreamLinear, init_linear_
from srmlab.models.text import WithText

Losses = dict[str, Tensor]  # "loss", and parts of it
Config = TypeVar("Config", bound=ModelConfig)


@dataclass(frozen=True)
class Flops:
    """Floating-point operations per token (a multiply-add is two), averaged over a context of causal
    attention.
    """

    forward: int
    training: int  # forward, and backward through what is differentiated

    @classmethod
    def of(cls, forward: float, differentiated: float | None = None) -> Flops:
        """From multiply-adds: of a forward pass, and of the part of it with a gradient, by default all. The
        backward pass takes twice as many as what it differentiates.
        """
        backward = 2 * (forward if differentiated is None else differentiated)
        return cls(round(2 * forward), round(2 * (forward + backward)))


@dataclass(frozen=True)
class Point:
    """A place in depth where the state of all streams can be read."""

    name: str
    sites: tuple[str, ...] = ()  # one with all streams [B, T, S, D], by default `name`; or one a stream
    needs: tuple[str, ...] = ()  # further sites that `finish` reads

    def __post_init__(self) -> None:
        object.__setattr__(self, "sites", self.sites or (self.name,))


@dataclass(frozen=True)
class Call:
    """One call of a part of the model, which moves a state: what it contributes is after − before."""

    site: str  # the state after it
    before: str | Tensor | None  # the state before it: a site or a constant; None: the site is the difference
    group: str  # calls of one group contribute together
    level: int  # where in depth
    given: str | None = None  # what it reads: a site
    parts: tuple[tuple[str, str], ...] = ()  # what it adds to that, before any norm: names and their sites

    def written(self, part: str) -> str | None:
        """The site of a part's contribution, or of the whole call's result ("step")."""
        return self.site if part == "step" else dict(self.parts).get(part)


@dataclass(frozen=True)
class Exchange:
    """What moves between the streams at one level of depth: sites."""

    pattern: str | None  # [B, T, H, target, source] how much each stream reads of each, if that is explicit
    heads: int
    message: str  # [B, T, S, D] what each stream is given
    update: str  # [B, T, S, D] what it makes of that and of the tokens
    state: str | Tensor | None = None  # what it reads: a site or, the same for every token, a constant
    shares: bool = True  # whether the pattern's weights are shares, which add up to 1 over sources


class Described(WithText, Generic[Config]):
    """How an architecture describes itself, with the usual defaults."""

    config: Config

    # --- what every architecture has -----------------------------------------------------------------------

    presets: ClassVar[Mapping[str, Callable[..., ModelConfig]]] = {}
    sweep_presets: ClassVar[Mapping[str, Callable[..., ModelConfig]]] = {}  # listed only when asked for
    preset_families: ClassVar[Mapping[str, Callable[..., ModelConfig]]] = {}  # presets with arguments
    units: ClassVar[tuple[type[nn.Module], ...]] = ()
    level_name: ClassVar[str] = "layers"  # what its depth is counted in
    # weights by the beginning of their names → a label; `*`: a number
    parts: ClassVar[Mapping[str, str]] = {}

    def hidden(self, tokens: Tensor, here: Pass) -> Tensor:
        """The embedding [B, T, E] that the unembedding turns into logits."""
        raise NotImplementedError

    embedding: nn.Embedding  # of the tokens
    head: nn.Linear | None  # the unembedding, if it is not the embedding's own matrix

    @property
    def unembedding(self) -> Tensor:
        """The matrix [V, E] behind the logits."""
        return self.embedding.weight if self.head is None else self.head.weight

    def flops_per_token(self, context: int) -> Flops:
        raise NotImplementedError

    def initialize(self) -> None:
        """Fill weights and buffers from the config's seed (after `to_empty`, for a model built on the meta
        device). One of your own begins with `draw_weights`, too.
        """
        self.draw_weights()

    @torch.no_grad()
    def draw_weights(self) -> torch.Generator:
        """The embedding and every linear map: std 1/sqrt(fan in); and what a puzzle model has beside its
        architecture. The generator, for what else is drawn.
        """
        generator = torch.Generator(device=self.device).manual_seed(self.config.init_seed)
        init_linear_(self.embedding.weight, self.embedding.embedding_dim, generator)
        for module in self.modules():
            if isinstance(module, StreamLinear):
                init_linear_(module.weight, module.fan_in, generator)
            elif isinstance(module, nn.Linear):
                init_linear_(module.weight, module.in_features, generator)
            elif isinstance(module, RMSNorm) and module.weight is not None:
                module.weight.fill_(1.0)
        if self.puzzle is not None:
            self.puzzle.initialize()
        return generator

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

    exit_rules: ClassVar[tuple[str, ...]] = ("change",)  # how `Exit` can decide, the usual first

    @property
    def exit_sites(self) -> tuple[str, ...]:
        """One for every level: the probability [B, T, 1] of stopping there, if a gate says so. The logits of
        a full pass do not depend on it.
        """
        return ()

    @property
    def route_sites(self) -> tuple[str, ...]:
        """One for every level, if tokens are routed: how much of it [B, T, 1] each takes; 0 where it was not
        computed for that token.
        """
        return ()

    def routed_flops(self, context: int, shares: Sequence[float]) -> float:
        """Forward FLOP per token of a pass that computed each level for these shares of the tokens."""
        raise NotImplementedError

    reuses_cache: ClassVar[bool] = False  # whether every level can read keys and values of the last

    def at_depth(self, depth: int, gradient_depth: int | None = None) -> Self:
        """A model of another depth on the same weights: nothing is copied, and nothing of this one changes.

        `gradient_depth` is how many of its levels have a gradient, by default as many as here.
        """
        with without_data():
            other = type(self)(self.config.at_depth(depth, gradient_depth))
        for theirs, mine in zip(other.parameters(), self.parameters(), strict=True):
            theirs.requires_grad_(mine.requires_grad)  # what is assigned would else take it from there
        other.load_state_dict(self.state_dict(keep_vars=True), assign=True)
        other._tokenizer, other.find_tokenizer = self._tokenizer, self.find_tokenizer
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
    def queries_and_keys(self) -> tuple[Tensor, Tensor] | None:
        """[H, S, D, K] each, if an exchange's pattern is the softmax over sources of (its state's
        target·query)·(source·key)."""
        return None

    @property
    def translations(self) -> Tensor | None:
        """[H, target, source, D, D], if an exchange's message to a target is the sum over heads and sources
        of pattern times (its state's source)·translation."""
        return None

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls that move the state, in their order; none if that is not defined."""
        return ()

    @property
    def call_groups(self) -> tuple[str, ...]:
        """The groups of `calls`, also those that no call of this order is in."""
        return tuple(dict.fromkeys(call.group for call in self.calls))

    @property
    def held_sites(self) -> tuple[str, ...]:
        """Patterns over tokens and over streams. With them and the norms held (`with_held_norms`), a pass is
        linear in what `free_sites` give; none if that is not so.
        """
        return ()

    @property
    def free_sites(self) -> tuple[str, ...]:
        """The tokens' input, and what every MLP adds, in the order of the computation."""
        return ()

    def with_held_norms(self) -> Self:
        """On the same weights, with gradient through all levels, and none through the scales of the norms."""
        other = self.at_depth(self.depth, self.depth)
        for module in other.modules():
            if isinstance(module, RMSNorm):
                module.held = True
        return other

    @property
    def input_site(self) -> str | None:
        """The site of the token input that every level sees again, if there is one."""
        return None

    @property
    def watched_sites(self) -> tuple[str, ...]:
        """What the log of a training run keeps the norms of."""
        return ("output.embedding",)

    # --- puzzles -------------------------------------------------------------------------------------------

    puzzle: PuzzleParts | None  # what a puzzle model has beside its architecture

    @property
    def initial_state(self) -> Tensor:
        """[S, D] The state before the first segment, the same at every position. One that has it begins from
        `here.state` in `hidden`, if that is given, leaves its last state there, and takes its input from
        `here.embed`.
        """
        raise UserError(
            f"{self.config.architecture} cannot carry its state over segments, as puzzles need; "
            "use srm, hrm or transformer"
        )

    # --- training ------------------------------------------------------------------------------------------

    def training_loss(self, tokens: Tensor, targets: Tensor, here: Pass, progress: float) -> Losses:  # noqa: ARG002
        """What a training step minimises ("loss") and parts of it to log, each one number without gradient.

        `progress`, from 0 to 1, is the share of training that is done: all that a schedule may depend on, so
        that a resumed run is the run that was not stopped.
        """
        return {"loss": chunked_cross_entropy(self.hidden(tokens, here), self.unembedding, targets)}

    @property
    def generators(self) -> dict[str, torch.Generator]:
        """Random generators that training draws from: part of the training state."""
        return {}

    def decays(self, name: str) -> bool:  # noqa: ARG002
        """Whether weight decay shrinks the weight of that name."""
        return True

    @property
    def uses_all_weights(self) -> bool:
        """Whether every training step has a gradient for every weight."""
        return True

    @property
    def weights_with_two_names(self) -> dict[str, str]:
        """Names of weights that are stored under another name."""
        return {}
