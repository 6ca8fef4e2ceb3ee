"""Model configs: a frozen dataclass per architecture, validated when it is created.

    >>> from srmlab.models import SRMConfig
    >>> config = SRMConfig(streams=4, stream_dim=32, mlp_dim=64, token_heads=2, head_dim=16)
    >>> config.replace(order="ABCCBA").calls_per_layer
    6

A config that exists can be built. Invalid ones are refused here, in one line that names the field, its value
and the fix; nothing downstream checks again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from srmlab.errors import UserError
from srmlab.models.fields import LATER, check_fields, known_fields, require, saved_fields

NANO: dict[str, Any] = {"vocab_size": 512, "context": 256}  # of presets for a CPU: a small BPE, short windows
SUDOKU: dict[str, Any] = {  # of presets for puzzles: 9 × 9 cells, after a position for which puzzle it is
    "vocab_size": 11,
    "context": 82,
    "tied": False,
    "causal": False,
    "puzzle_positions": 1,
}
SUDOKU_NANO: dict[str, Any] = SUDOKU | {"learned_positions": True}  # of those for a CPU: learned far faster


@dataclass(frozen=True)
class Sizes:
    """The sizes that tables and other tools ask for, under their names."""

    width: int
    heads: int
    layers: int
    streams: int = 1
    stream_width: int | None = None  # of one stream, if that is not all of it
    mlp: int = 0
    order: str = "–"  # how the parts follow each other within a layer
    depth: str = ""  # how often they are applied, and how much of it is in the gradient


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What every architecture shares: a vocabulary and the context length it is trained on.

    A subclass names its `architecture`, and defines `sizes`, `shape` (one phrase) and `drawing`.
    """

    architecture: ClassVar[str]

    vocab_size: int = 50257  # number of token ids
    context: int = 1024  # longest sequence, in tokens
    tied: bool = True  # the unembedding shares the embedding's weights
    init_seed: int = 0  # seed of the initial weights (and z_0)

    # a puzzle model: see `puzzle`
    causal: bool = field(default=True, metadata=LATER)  # False: attention in both directions, for puzzles
    puzzle_positions: int = field(default=0, metadata=LATER)  # prefix positions for the puzzle embedding
    puzzle_ids: int = field(default=1, metadata=LATER)  # number of puzzle embeddings
    learned_positions: bool = field(default=False, metadata=LATER)
    """Puzzle models: learned position embeddings instead of rotary positions."""

    def __post_init__(self) -> None:
        check_fields(self)
        self.require_positive("vocab_size", "context", "puzzle_ids")
        self.require_seed("init_seed")
        fits = 0 <= self.puzzle_positions < (1 if self.causal else self.context)
        fix = f"must be less than context = {self.context}, and 0 in a causal model"
        require(self, "puzzle_positions", fits, fix)
        fits = not (self.causal and self.learned_positions)
        require(self, "learned_positions", fits, "is for puzzles; set causal = False")

    def require_positive(self, *names: str) -> None:
        for name in names:
            require(self, name, getattr(self, name) >= 1, "must be at least 1")

    def require_not_negative(self, *names: str) -> None:
        for name in names:
            require(self, name, getattr(self, name) >= 0, "must be 0 or more")

    def require_seed(self, name: str) -> None:
        fits = -(2**63) <= getattr(self, name) < 2**63  # as torch's generators
        require(self, name, fits, "must be from −2^63 to 2^63 − 1")

    def require_attention(self, head_dim: int, rope_theta: float, norm_eps: float) -> None:
        require(self, "head_dim", head_dim % 2 == 0, f"must be even for RoPE; use {head_dim + 1}")
        require(self, "rope_theta", rope_theta > 1, "must be greater than 1")
        require(self, "norm_eps", norm_eps > 0, "must be positive")

    @property
    def sizes(self) -> Sizes:
        raise NotImplementedError

    @property
    def shape(self) -> str:
        """The sizes in one phrase."""
        return f"{self.sizes.layers} layers × {self.sizes.width}"

    @property
    def drawing(self) -> str:
        """The computation in a few lines of text, at most 80 columns wide."""
        return self.shape

    @property
    def output_line(self) -> str:
        """The end of a drawing."""
        return f"logits {self.vocab_size}" + (" (tied)" if self.tied else "")

    def at_depth(self, depth: int, gradient_depth: int | None = None) -> Self:  # noqa: ARG002
        """The same weights run for another number of levels, with gradient through the last `gradient_depth`,
        by default as many as here. Where the gradient cannot be cut, `check_gradient_depth` refuses.
        """
        raise UserError(
            f"{self.architecture} cannot run at another depth: each of its levels has weights of its own"
        )

    def check_gradient_depth(self, asked: int | None, depth: int, has: int | None = None) -> None:
        """Refuse any gradient but that of an architecture that cannot cut it: through the last `has` of
        `depth` levels, by default all.
        """
        has = depth if has is None else has
        if asked not in (None, has):
            raise UserError(
                f"gradient_depth = {asked}: the gradient of {self.architecture} goes through {has} of "
                f"{depth} levels and cannot be cut elsewhere; leave gradient_depth out"
            )

    def seeded(self, seed: int) -> Self:
        """The same model with other random numbers in it."""
        return self.replace(init_seed=seed)

    def replace(self, **changes: Any) -> Self:
        """This config with some fields changed, checked again."""
        return dataclasses.replace(self, **known_fields(type(self), changes))

    def attended(self, context: float) -> float:
        """The mean number of positions that one of `context` positions attends to."""
        return (context + 1) / 2 if self.causal else context

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        fields = {name: getattr(self, name) for name in saved_fields(self)}
        return {"architecture": self.architecture, **fields}
