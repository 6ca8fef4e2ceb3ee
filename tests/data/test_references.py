"""The unigram and bigram losses are what the formulas say, and order as they should."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch

from srmlab.data import DataError, EvaluationBatches, Tokens, reference_losses
from srmlab.data import references as module


def stream(ids, vocab=50):
    ids = np.asarray(ids)
    return Tokens([ids[: len(ids) // 3], ids[len(ids) // 3 :]], vocab_size=vocab, end_of_text=vocab - 1)


def markov(length, seed, vocab=50):
    """Each token is the last plus 1, 2 or 3; small ids start more often after a jump."""
    draw = np.random.default_rng(seed)
    ids = [0]
    for _ in range(length - 1):
        jump = draw.random() < 0.2
        ids.append(int(draw.geometric(0.1)) % vocab if jump else (ids[-1] + int(draw.integers(1, 4))) % vocab)
    return ids


@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_the_losses_are_those_of_the_formulas(monkeypatch, chunk):
    monkeypatch.setattr(module, "CHUNK", chunk)
    train, val, vocab = markov(3000, 0), markov(500, 1), 50
    found = reference_losses(stream(train), stream(val))
    ones, firsts, pairs = Counter(train), Counter(train[:-1]), Counter(pairwise(train))
    k = found.backoff_weight

    def p(b):
        return (ones[b] + 1) / (len(train) + vocab)

    def p_after(a, b):
        return (pairs[a, b] + k * p(b)) / (firsts[a] + k)

    unigram = -np.mean([math.log(p(b)) for _, b in pairwise(val)])
    bigram = -np.mean([math.log(p_after(a, b)) for a, b in pairwise(val)])
    assert found.unigram == pytest.approx(unigram, abs=1e-12)
    assert found.bigram == pytest.approx(bigram, abs=1e-12)
    assert (found.train_tokens, found.val_tokens) == (3000, 499)


def test_of_a_part_of_the_validation_text_it_is_that_parts_loss():
    train, val = stream(markov(3000, 0)), markov(500, 1)
    assert reference_losses(train, stream(val), val_tokens=200) == reference_losses(train, stream(val[:200]))


def test_of_windows_it_is_the_loss_on_their_targets():
    train, val = stream(markov(3000, 0)), stream(markov(500, 1))
    windows = EvaluationBatches(val, context=20, batch_size=3, limit_tokens=100, spread=True)
    found = reference_losses(train, val, windows=windows)
    counts = Counter(train.read(0, 3000).tolist())
    targets = torch.cat([batch.targets.flatten() for batch in windows]).tolist()
    unigram = -np.mean([math.log((counts[b] + 1) / (3000 + 50)) for b in targets])
    assert found.val_tokens == len(targets) == 100
    assert found.unigram == pytest.approx(unigram, abs=1e-12)
    whole = EvaluationBatches(val, context=499, batch_size=1)
    assert reference_losses(train, val, windows=whole) == reference_losses(train, val)


def test_more_knowledge_is_less_loss_and_the_best_weight_is_taken(monkeypatch):
    train, val = stream(markov(20_000, 0)), stream(markov(3000, 1))
    found = reference_losses(train, val)
    assert found.bigram < found.unigram - 0.5 < found.uniform == math.log(50)
    for weight in (1.0, 1000.0):
        monkeypatch.setattr(module, "BACKOFF_WEIGHTS", (weight,))
        assert reference_losses(train, val).bigram >= found.bigram


def test_unseen_tokens_cost_much_but_not_infinitely():
    found = reference_losses(stream([1, 2] * 50), stream([3, 4] * 10))
    assert math.isfinite(found.unigram)
    assert math.isfinite(found.bigram)
    assert found.unigram > math.log(50)


def test_without_a_pair_there_is_nothing_to_predict():
    with pytest.raises(DataError, match="1 validation tokens contain no bigram"):
        reference_losses(stream([1, 2, 3]), stream([1]))
