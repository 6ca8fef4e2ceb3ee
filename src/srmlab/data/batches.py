"""Batches as a pure function of (seed, step): there is no loader, and so no loader state to save or lose.

The token stream is cut into windows of context + 1 tokens, `context` apart: the last token of one is the
first of the next, so no token is a target twice (what is left at the end, less than a window, is not used).
An epoch visits every window once in a shuffled order; the sequence of epochs is one endless list of windows,
of which step n takes entries n·B … n·B + B − 1. Which rows of those a process computes is decided last, so
the global batch is the same for any number of ranks and micro-batches.

The shuffle is a permutation computed entry by entry, not stored: a keyed Feistel network over the smallest
power of two that holds all windows, walked again while it lands beyond the last window. Billions of windows
cost no memory, and resuming at step 100,000 costs nothing.

    >>> tokens = Tokens([np.arange(100)], vocab_size=100, end_of_text=99)
    >>> batches = Batches(tokens, context=9, batch_size=4, seed=0)
    >>> batch = batches.batch(step=7)
    >>> bool((batch.tokens + 1 == batch.targets).all())
    True
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from srmlab.data.errors import DataError
from srmlab.data.shards import Tokens
from srmlab.errors import UserError

if TYPE_CHECKING:
    import torch  # imported on use: preparing text does without

ROUNDS = 8  # Luby and Rackoff need four with ideal round functions; ours are hashes, so twice that


@dataclass(frozen=True, eq=False)
class Batch:
    """Windows of text: what a model reads, and what it is to predict."""

    tokens: torch.Tensor  # [B, T] ids
    targets: torch.Tensor  # [B, T] the token after each; −100 where none counts
    documents: torch.Tensor | None = None  # [B, T] the document of each; None: attention may cross documents

    @property
    def counted(self) -> torch.Tensor:
        """[B, T], True where there is a target."""
        from srmlab.models.loss import IGNORE

        return self.targets != IGNORE

    def to(self, device: torch.device | str) -> Batch:
        documents = None if self.documents is None else self.documents.to(device)
        return Batch(self.tokens.to(device), self.targets.to(device), documents)


def as_batch(given: Any) -> Batch:
    """A `Batch`, whichever way it was given: tokens [B, T] alone, a pair of tokens and targets, these and
    documents, or a `Batch`. Of tokens alone, the targets are the next tokens.

    >>> import torch
    >>> as_batch(torch.tensor([[5, 6, 7]])).targets
    tensor([[   6,    7, -100]])
    """
    import torch

    from srmlab.models.loss import IGNORE

    if isinstance(given, Batch):
        return given
    parts = tuple(given) if isinstance(given, tuple | list) else (given,)
    if not 1 <= len(parts) <= 3 or not all(isinstance(part, torch.Tensor) for part in parts):
        raise UserError(
            "a batch is a tensor [batch, token] of token ids (of a text: model.to_tokens(text)), or a pair "
            "of tokens and targets, or these and documents"
        )
    tokens, *rest = parts
    if tokens.ndim != 2:
        raise UserError(f"a batch of shape {tuple(tokens.shape)}: need [batch, token] token ids")
    if not rest:
        rest = [torch.cat((tokens[:, 1:], torch.full_like(tokens[:, :1], IGNORE)), dim=1)]
    return Batch(tokens, *rest)


@dataclass(frozen=True)
class Batches:
    """The batches of a training, by step."""

    tokens: Tokens
    context: int
    batch_size: int  # of the global batch: all ranks, all micro-batches
    seed: int = 0
    marks: tuple[int, ...] | None = None  # only answers are targets, as `answers_only` says
    document_mask: bool = False  # attention stays within documents

    def __post_init__(self) -> None:
        _check(self)

    @property
    def num_windows(self) -> int:
        return num_windows(self.tokens, self.context)

    def epoch(self, step: int) -> float:
        """How many times the corpus has been seen before `step`."""
        return step * self.batch_size / self.num_windows

    def windows(
        self, step: int, rank: int = 0, world: int = 1, micro: int = 0, accumulate: int = 1
    ) -> np.ndarray:
        """The numbers of the windows in these rows, [b] int64; window w begins at token w·context."""
        if self.batch_size % (world * accumulate):
            raise DataError(
                f"batch_size {self.batch_size} does not divide among {world} ranks × {accumulate} "
                f"micro-batches: choose a multiple of {world * accumulate}"
            )
        if not (0 <= rank < world and 0 <= micro < accumulate and step >= 0):
            raise ValueError(f"no such part: {step=} {rank=} {world=} {micro=} {accumulate=}")
        rows = self.batch_size // (world * accumulate)
        first = step * self.batch_size + (micro * world + rank) * rows
        entries = np.arange(first, first + rows, dtype=np.int64)
        epochs, places = entries // self.num_windows, entries % self.num_windows
        found = np.empty_like(entries)
        for epoch in np.unique(epochs):
            now = epochs == epoch
            found[now] = permute(places[now], self.num_windows, self.seed, int(epoch))
        return found

    def batch(self, step: int, rank: int = 0, world: int = 1, micro: int = 0, accumulate: int = 1) -> Batch:
        """A process's part of a micro-batch: batch_size / (world · accumulate) rows of `context` tokens."""
        windows = self.windows(step, rank, world, micro, accumulate)
        return _read_windows(self.tokens, self.context, windows, self.marks, self.document_mask)


@dataclass(frozen=True)
class EvaluationBatches:
    """Windows in the order of the text, as batches that can be read again and again; the last may be smaller.

    With `spread` they lie evenly over all of the text: the head of a text in order of date, or of subject, is
    not a sample of it.
    """

    tokens: Tokens
    context: int
    batch_size: int
    limit_tokens: int | None = None  # no more targets than these
    marks: tuple[int, ...] | None = None  # only answers are targets, as `answers_only` says
    document_mask: bool = False  # attention stays within documents
    spread: bool = False  # evenly over the text rather than from its beginning

    def __post_init__(self) -> None:
        _check(self)
        if self.limit_tokens is not None and self.limit_tokens < self.context:
            raise DataError(
                f"{self.limit_tokens} tokens are fewer than one window: give {self.context} or more"
            )

    @property
    def windows(self) -> int:
        """How many there are."""
        every = num_windows(self.tokens, self.context)
        return every if self.limit_tokens is None else min(every, self.limit_tokens // self.context)

    @property
    def places(self) -> np.ndarray:
        """The numbers of the windows; `spread` ones are the middles of equal parts of the text."""
        if not self.spread:
            return np.arange(self.windows)
        every = num_windows(self.tokens, self.context)
        return (2 * np.arange(self.windows) + 1) * every // (2 * self.windows)

    def __len__(self) -> int:
        """How many batches."""
        return -(-self.windows // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        places = self.places
        for first in range(0, self.windows, self.batch_size):
            windows = places[first : first + self.batch_size]
            yield _read_windows(self.tokens, self.context, windows, self.marks, self.document_mask)


def document_ids(inputs: torch.Tensor, end_of_text: int) -> torch.Tensor:
    """The document of every position, [b, T] int64, from 0 in each row; end-of-text belongs to what it ends.

    Attention stays within documents where `ids[:, :, None] == ids[:, None, :]`.

    >>> import torch
    >>> document_ids(torch.tensor([[5, 6, 0, 7, 0, 8]]), end_of_text=0)
    tensor([[0, 0, 0, 1, 1, 2]])
    """
    ends = (inputs == end_of_text).long()
    return ends.cumsum(dim=-1) - ends


def answers_only(
    inputs: torch.Tensor, targets: torch.Tensor, marks: tuple[int, ...], end_of_text: int
) -> torch.Tensor:
    """The targets [b, T] that answer a question, end-of-text included; the others become −100.

    An answer is what follows one of `marks` (the ids before an answer) in its document. It counts only if the
    end of another document stands before it in the window: behind half a question there is no right answer.

    >>> import torch
    >>> inputs = torch.tensor([[4, 61, 7, 0, 2, 3, 61, 5]])
    >>> answers_only(inputs, torch.tensor([[61, 7, 0, 2, 3, 61, 5, 0]]), marks=(61,), end_of_text=0)
    tensor([[-100, -100, -100, -100, -100, -100,    5,    0]])
    """
    import torch

    from srmlab.models.loss import IGNORE

    marked = torch.isin(inputs, torch.tensor(marks)).long().cumsum(dim=-1)  # marks so far in the window …
    earlier = torch.where(inputs == end_of_text, marked, 0).cummax(dim=-1).values  # … in earlier documents
    whole = document_ids(inputs, end_of_text) > 0
    return torch.where(whole & (marked > earlier), targets, IGNORE)


def num_windows(tokens: Tokens, context: int) -> int:
    """How many windows of a context there are in a text, each token predicted once."""
    return max(0, len(tokens) - 1) // context


def permute(places: np.ndarray, count: int, seed: int, epoch: int) -> np.ndarray:
    """Entries `places` of the shuffled list 0 … count-1 that belongs to (seed, epoch).

    >>> sorted(permute(np.arange(10), 10, seed=1, epoch=0).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    bits = max(2, (count - 1).bit_length())
    keys = np.random.SeedSequence([seed, epoch]).generate_state(ROUNDS, np.uint64)
    values = _feistel(places.astype(np.uint64), bits, keys)
    while (
        outside := values >= count
    ).any():  # the walk ends, for it comes back to its start, which is inside
        values[outside] = _feistel(values[outside], bits, keys)
    return values.astype(np.int64)


def _feistel(values: np.ndarray, bits: int, keys: np.ndarray) -> np.ndarray:
    """A bijection of 0 … 2^bits - 1: a round changes one half by a function of the other, which undoes it."""
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    low, high = values & low_mask, values >> low_bits
    for number, key in enumerate(keys):
        if number % 2:
            high = high ^ (mix(low ^ key) & high_mask)
        else:
            low = low ^ (mix(high ^ key) & low_mask)
    return (high << low_bits) | low


def mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer: every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _check(batches: Batches | EvaluationBatches) -> None:
    for name in ("batch_size", "context"):
        if getattr(batches, name) < 1:
            raise DataError(f"{name} is {getattr(batches, name)}: give 1 or more")
    if len(batches.tokens) < batches.context + 1:
        raise DataError(
            f"{len(batches.tokens)} tokens are fewer than one window of {batches.context + 1}: "
            "shorten the context, or prepare more text (for validation: a larger val_fraction)"
        )


def _read_windows(
    tokens: Tokens, context: int, windows: np.ndarray, marks: tuple[int, ...] | None, document_mask: bool
) -> Batch:
    import torch

    rows = np.stack([tokens.read(w * context, w * context + context + 1) for w in windows.tolist()])
    both = torch.from_numpy(rows)
    inputs, targets = both[:, :-1].contiguous(), both[:, 1:].contiguous()
    if marks is not None:
        targets = answers_only(inputs, targets, marks, tokens.end_of_text)
    return Batch(inputs, targets, document_ids(inputs, tokens.end_of_text) if document_mask else None)
