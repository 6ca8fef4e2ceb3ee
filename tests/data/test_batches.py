"""A batch depends on seed and step alone, and an epoch visits every window once."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from srmlab.data import Batch, Batches, DataError, EvaluationBatches, Tokens, as_batch, document_ids
from srmlab.data.batches import permute


def counting(length):
    return Tokens([np.arange(length)], vocab_size=length + 1, end_of_text=length)


@settings(max_examples=200, deadline=None)
@given(count=st.integers(1, 3000), seed=st.integers(0, 2**63), epoch=st.integers(0, 10**6))
def test_the_shuffle_holds_every_entry_once(count, seed, epoch):
    assert np.array_equal(np.sort(permute(np.arange(count), count, seed, epoch)), np.arange(count))


def test_the_shuffle_of_billions_of_windows_needs_no_list():
    count = 5 * 10**9 + 7
    places = np.array([0, 1, 2, count - 1])
    found = permute(places, count, seed=0, epoch=3)
    assert ((found >= 0) & (found < count)).all()
    assert len(set(found.tolist())) == 4


def test_the_shuffle_looks_random():
    count = 4096
    first, again, other = (
        permute(np.arange(count), count, seed, epoch) for seed, epoch in [(0, 0), (0, 1), (1, 0)]
    )
    for order in (first, again, other):
        assert abs(np.corrcoef(order, np.arange(count))[0, 1]) < 0.06  # about 4 standard deviations
        assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.06
        quarters = np.bincount(order[:1024] // 1024, minlength=4)
        assert (abs(quarters - 256) < 60).all()
    assert np.mean(first == again) < 0.01
    assert np.mean(first == other) < 0.01


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(9, 200), context=st.integers(1, 8), batch=st.integers(1, 9), seed=st.integers(0, 99)
)
def test_an_epoch_visits_every_window_once_whatever_the_batch_size(length, context, batch, seed):
    batches = Batches(counting(length), context, batch, seed)
    count = (length - 1) // context
    assert batches.num_windows == count
    steps = range(-(-2 * count // batch))
    windows = np.concatenate([batches.windows(step) for step in steps])
    for epoch in (windows[:count], windows[count : 2 * count]):
        assert sorted(epoch.tolist()) == list(range(count))


@settings(max_examples=60, deadline=None)
@given(
    world=st.sampled_from([1, 2, 3, 4, 6]),
    accumulate=st.sampled_from([1, 2, 4]),
    step=st.integers(0, 1000),
    seed=st.integers(0, 9),
)
def test_ranks_and_micro_batches_share_out_the_same_global_batch(world, accumulate, step, seed):
    batches = Batches(counting(500), context=7, batch_size=48, seed=seed)
    whole = batches.batch(step)
    parts = [
        batches.batch(step, rank, world, micro, accumulate)
        for micro, rank in itertools.product(range(accumulate), range(world))
    ]
    assert torch.equal(torch.cat([part.tokens for part in parts]), whole.tokens)
    assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)
    assert {len(part.tokens) for part in parts} == {48 // (world * accumulate)}


def test_a_batch_is_the_same_every_time_and_other_for_another_seed_or_step():
    tokens = Batches(counting(5000), 16, 8, seed=1).batch(5).tokens
    assert torch.equal(tokens, Batches(counting(5000), 16, 8, seed=1).batch(5).tokens)
    assert not torch.equal(tokens, Batches(counting(5000), 16, 8, seed=2).batch(5).tokens)
    assert not torch.equal(tokens, Batches(counting(5000), 16, 8, seed=1).batch(6).tokens)


def test_the_order_of_windows_is_fixed_for_good():
    """A run resumed with a later version must go on with the same batches: this list may never change."""
    assert Batches(counting(1000), 9, 8, seed=42).windows(3).tolist() == [12, 58, 38, 102, 40, 97, 19, 46]


def test_targets_are_the_next_tokens_and_windows_begin_at_multiples_of_the_context():
    batches = Batches(counting(1000), context=9, batch_size=8)
    batch = batches.batch(2)
    inputs, targets = batch.tokens, batch.targets
    assert inputs.shape == targets.shape == (8, 9)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(targets, inputs + 1)
    assert inputs[:, 0].tolist() == (batches.windows(2) * 9).tolist()


def test_the_epoch_counts_how_often_the_text_was_seen():
    batches = Batches(counting(101), context=10, batch_size=4)
    assert [batches.epoch(step) for step in (0, 5, 10)] == [0, 2, 4]


def test_evaluation_takes_the_windows_in_order_up_to_a_limit():
    batches = list(EvaluationBatches(counting(100), context=9, batch_size=4))
    assert [len(batch.tokens) for batch in batches] == [4, 4, 3]
    inputs = torch.cat([batch.tokens for batch in batches])
    targets = torch.cat([batch.targets for batch in batches])
    assert inputs.flatten().tolist() == list(range(99))
    assert torch.equal(targets, inputs + 1)
    again = EvaluationBatches(counting(100), context=9, batch_size=4)
    assert len(again) == 3
    assert [len(list(again)) for _ in range(2)] == [3, 3]  # it can be read a second time
    limited = list(EvaluationBatches(counting(100), context=9, batch_size=4, limit_tokens=50))
    assert sum(batch.targets.numel() for batch in limited) == 45


def test_spread_windows_lie_evenly_over_the_text():
    text = counting(1000)
    head = EvaluationBatches(text, context=9, batch_size=4, limit_tokens=90)
    spread = EvaluationBatches(text, context=9, batch_size=4, limit_tokens=90, spread=True)
    assert head.places.tolist() == list(range(10))
    assert spread.places.tolist() == [5, 16, 27, 38, 49, 61, 72, 83, 94, 105]  # of 111
    assert [len(batch.tokens) for batch in spread] == [4, 4, 2]
    firsts = [int(row[0]) for batch in spread for row in batch.tokens]
    assert firsts == [9 * place for place in spread.places]


@pytest.mark.parametrize("limit", [None, 10_000])
def test_spread_over_a_text_that_is_read_whole_is_all_of_it(limit):
    text = counting(100)
    spread = EvaluationBatches(text, context=9, batch_size=4, limit_tokens=limit, spread=True)
    assert spread.places.tolist() == list(range(11))


def test_positions_know_their_document():
    end = 0
    inputs = torch.tensor([[5, 6, end, 7, end, end, 8], [end, 1, 2, 3, 4, 5, 6]])
    assert document_ids(inputs, end).tolist() == [[0, 0, 0, 1, 1, 2, 3], [0, 1, 1, 1, 1, 1, 1]]


def test_a_batch_says_its_documents_only_if_attention_stays_within_them():
    tokens = Tokens([np.arange(100) % 7], vocab_size=8, end_of_text=6)
    for masked, plain in (
        (Batches(tokens, 9, 4, document_mask=True).batch(3), Batches(tokens, 9, 4).batch(3)),
        (
            next(iter(EvaluationBatches(tokens, 9, 4, document_mask=True))),
            next(iter(EvaluationBatches(tokens, 9, 4))),
        ),
    ):
        assert plain.documents is None
        assert torch.equal(masked.tokens, plain.tokens)
        assert torch.equal(masked.documents, document_ids(masked.tokens, 6))


def test_a_batch_may_be_given_as_tokens_a_pair_or_a_batch():
    tokens = torch.tensor([[5, 6, 7], [1, 2, 3]])
    alone = as_batch(tokens)
    assert alone.targets.tolist() == [[6, 7, -100], [2, 3, -100]]
    assert alone.counted.tolist() == [[True, True, False]] * 2
    pair = as_batch((tokens, tokens + 1))
    assert torch.equal(pair.targets, tokens + 1)
    assert pair.documents is None
    assert as_batch(pair) is pair
    moved = Batch(tokens, tokens, tokens).to("meta")
    assert {part.device.type for part in (moved.tokens, moved.targets, moved.documents)} == {"meta"}


@pytest.mark.parametrize("length", [0, 1, 9])
def test_text_shorter_than_one_window_is_refused_with_the_fix(length):
    for attempt in (
        lambda: Batches(counting(length), 9, 1),
        lambda: EvaluationBatches(counting(length), 9, 1),
    ):
        with pytest.raises(
            DataError, match=rf"^{length} tokens are fewer than one window of 10: shorten the context"
        ):
            attempt()
    assert Batches(counting(10), 9, 1).batch(0).tokens.shape == (1, 9)


def test_impossible_divisions_are_refused_with_the_fix():
    batches = Batches(counting(1000), context=9, batch_size=8)
    with pytest.raises(DataError, match="multiple of 3"):
        batches.batch(0, world=3)
    for bad in ({"rank": 2, "world": 2}, {"micro": 1}, {"step": -1}):
        with pytest.raises(ValueError, match="no such part"):
            batches.batch(**{"step": 0} | bad)
    with pytest.raises(DataError, match="batch_size is 0"):
        Batches(counting(1000), context=9, batch_size=0)
    with pytest.raises(DataError, match="context is 0"):
        Batches(counting(1000), context=0, batch_size=1)
    with pytest.raises(DataError, match="fewer than one window: give 9"):
        EvaluationBatches(counting(1000), 9, 1, limit_tokens=8)
