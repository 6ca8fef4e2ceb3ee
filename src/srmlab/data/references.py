"""Reference losses: what is won by knowing how often tokens occur, before a model knows anything else.

    uniform   ln V
    unigram   p(b) = (count(b) + 1) / (N + V)
    bigram    p(b | a) = (count(a, b) + k · p(b)) / (count(a) + k)

The bigram falls back on the unigram with the weight of k imaginary tokens. The best k of a few is taken on
the validation tokens themselves, so the reference is, if anything, too good: a model below it has learned
more than pairs.

Only pairs that occur in the validation tokens are counted, so memory is that of the validation text and not
V².
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from srmlab.data.batches import EvaluationBatches
from srmlab.data.errors import DataError
from srmlab.data.shards import Tokens

BACKOFF_WEIGHTS = tuple(2.0**n for n in range(-2, 15))
CHUNK = 1 << 20


@dataclass(frozen=True)
class ReferenceLosses:
    """Cross-entropy on the validation tokens, nats per token."""

    uniform: float
    unigram: float
    bigram: float
    backoff_weight: float  # the k of the bigram
    train_tokens: int  # counted
    val_tokens: int  # predicted


def reference_losses(
    train: Tokens,
    val: Tokens,
    vocab_size: int | None = None,
    limit_tokens: int = 100_000_000,
    val_tokens: int | None = None,
    windows: EvaluationBatches | None = None,
) -> ReferenceLosses:
    """Unigram and bigram losses on `val` (its first `val_tokens`, or these `windows` of it), counted on (the
    first `limit_tokens` of) `train`."""
    vocab = vocab_size or train.vocab_size
    for name, tokens in (("training", train), ("validation", val)):
        if len(tokens) < 2:
            raise DataError(
                f"{len(tokens)} {name} tokens contain no bigram: prepare more text, or a larger val_fraction"
            )

    read = _pairs(val, val_tokens or limit_tokens) if windows is None else _pairs_in(windows)
    val_first, val_second = (np.concatenate(part) for part in zip(*read, strict=True))
    wanted, where = np.unique(val_first * vocab + val_second, return_inverse=True)
    token_counts = np.zeros(vocab, np.int64)
    first_counts = np.zeros(vocab, np.int64)
    pair_counts = np.zeros(len(wanted), np.int64)
    token_counts[train.read(0, 1)[0]] += 1
    for first, second in _pairs(train, limit_tokens):
        token_counts += np.bincount(second, minlength=vocab)
        first_counts += np.bincount(first, minlength=vocab)
        pairs = first * vocab + second
        at = np.minimum(np.searchsorted(wanted, pairs), len(wanted) - 1)
        pair_counts += np.bincount(at[wanted[at] == pairs], minlength=len(wanted))

    p_second = ((token_counts + 1) / (token_counts.sum() + vocab))[val_second]
    count_pair, count_first = pair_counts[where], first_counts[val_first]

    def bigram(k: float) -> float:
        return float(-np.log((count_pair + k * p_second) / (count_first + k)).mean())

    best = min(BACKOFF_WEIGHTS, key=bigram)
    return ReferenceLosses(
        uniform=math.log(vocab),
        unigram=float(-np.log(p_second).mean()),
        bigram=bigram(best),
        backoff_weight=best,
        train_tokens=int(token_counts.sum()),
        val_tokens=len(val_second),
    )


def _pairs(tokens: Tokens, limit: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Every token with its successor, in chunks."""
    stop = min(len(tokens), limit)
    for start in range(0, stop - 1, CHUNK):
        chunk = tokens.read(start, min(start + CHUNK + 1, stop))
        yield chunk[:-1], chunk[1:]


def _pairs_in(windows: EvaluationBatches) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The inputs and targets of every window."""
    for place in windows.places.tolist():
        start = place * windows.context
        window = windows.tokens.read(start, start + windows.context + 1)
        yield window[:-1], window[1:]
