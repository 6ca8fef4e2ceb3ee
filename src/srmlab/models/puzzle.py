"""Puzzle models: an architecture that reads a whole board, and works on it in segments.

    state = None
    for _ in range(16):
        out = model.segment(boards, state=state)        # boards [B, cells]
        state = out.state.detach()
    out.logits.argmax(-1)                               # the answers [B, cells]

`config.causal = False` makes any architecture that has an `initial_state` such a model. Attention is then
bidirectional, and these are added to the architecture:

    rows     an embedding for every puzzle, zero at the start, put before the board as the first of
             `puzzle_positions` positions; the others are zero. ARC has thousands of puzzles; all sudokus are
             one. Not a parameter: a training step touches the rows of its batch alone, by the sign of their
             gradient.
    places   with `learned_positions`, an embedding for every position, added to the input, instead of rotary
             positions: those are relative, so that a cell would first have to work out its row and box.
    q        two numbers read at position 0: is it better to halt, or to continue? Initialised to weight 0 and
             bias −5.

A segment is one forward pass from the state that the last one left. The first begins from `initial_state`,
the same for every position. HRM and TRM are trained this way (`srmlab.training.segments`).

Axes:  B board   T cell   N position before the board   S stream   D stream dim   E embedding   V value
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srmlab.models.streams import init_linear_

if TYPE_CHECKING:
    from srmlab.models.config import ModelConfig

Q_BIAS = -5.0  # neither halts nor continues, until something is learned
PLACES_SEED = 0x506C6163  # else the places would begin as the values do, drawn from the same seed


@dataclass(frozen=True)
class Segment:
    """What one segment gives."""

    logits: Tensor  # [B, T, V] of the cells
    q: Tensor  # [B, 2] in favour of halting, and of continuing, before a sigmoid
    state: Tensor  # [S, B, N + T, D] what the next begins from


class PuzzleParts(nn.Module):
    """What a puzzle model has beside its architecture."""

    rows: Tensor  # [puzzle, 1, E]; [puzzle, 0, E] if nothing is put before a board
    places: Tensor | None  # [context, E]

    def __init__(self, config: ModelConfig, width: int) -> None:
        super().__init__()
        self.positions = config.puzzle_positions
        self.register_buffer("rows", torch.zeros(config.puzzle_ids, min(1, self.positions), width))
        self.places = nn.Parameter(torch.zeros(config.context, width)) if config.learned_positions else None
        self.seed = PLACES_SEED ^ config.init_seed
        self.weight = nn.Parameter(torch.zeros(2, width))
        self.bias = nn.Parameter(torch.zeros(2))

    @torch.no_grad()
    def initialize(self) -> None:
        self.rows.zero_()
        self.weight.zero_()
        self.bias.fill_(Q_BIAS)
        if self.places is not None:
            generator = torch.Generator(device=self.places.device).manual_seed(self.seed)
            init_linear_(self.places, self.places.shape[1], generator)

    def before(self, boards: int, puzzles: Tensor | None = None) -> Tensor:
        """[B, N, E] What is put before each board; without `puzzles` [B] it is that of the first puzzle."""
        return self.padded(self.rows[:1].expand(boards, -1, -1) if puzzles is None else self.rows[puzzles])

    def padded(self, rows: Tensor) -> Tensor:
        """[B, N, E] Rows [B, 1, E] at the first position, and nothing at the others."""
        return F.pad(rows, (0, 0, 0, self.positions - rows.shape[1]))

    def forward(self, hidden: Tensor) -> Tensor:
        """The Q head, on position 0 of [B, N + T, E]."""
        return F.linear(hidden[:, 0], self.weight, self.bias)


# --- how likely a value is ----------------------------------------------------------------------------------


def log_stablemax(logits: Tensor) -> Tensor:
    """log(s / Σ s) in float64, with s(x) = x + 1 for x ≥ 0 and 1 / (1 − x) below: a softmax that does not
    saturate.

    >>> log_stablemax(torch.tensor([3.0, 0.0, -1.0])).exp()
    tensor([0.7273, 0.1818, 0.0909], dtype=torch.float64)
    """
    x = logits.double()
    s = torch.where(x >= 0, x + 1, 1 / (1 - x.clamp(max=0)))
    return torch.log(s / s.sum(-1, keepdim=True))


def log_softmax(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
