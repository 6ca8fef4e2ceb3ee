"""Decoding with a cache equals the full pass; sampling does what its options say."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import CONTEXT, GPT2_TINY, ONE_OF_EACH, SMALL, SRM_TINY, small, some_tokens

from srmlab.errors import UserError
from srmlab.models import build, generate, preset
from srmlab.models.decoding import sample

NANO = [
    "srm-nano",
    "hrm-nano",
    "trm-nano",
    "gpt2-nano",
    "ouro-nano",
    "hyper-nano",
    "huginn-nano",
    "mor-nano",
    "mor-token-nano",
]


def in_chunks(model, tokens, lengths):
    """The logits of tokens read a chunk at a time."""
    cache = model.new_cache()
    with torch.no_grad():
        return torch.cat([model(chunk, cache=cache) for chunk in tokens.split(lengths, dim=1)], dim=1), cache


# The cache


@pytest.mark.parametrize("name", SMALL)
def test_prefill_and_one_token_at_a_time_is_the_full_pass_at_every_position(name):
    model = small(SMALL[name])
    tokens = some_tokens(3, CONTEXT)
    for prefill in (1, 5, CONTEXT - 1):
        pieces, cache = in_chunks(model, tokens, [prefill] + [1] * (CONTEXT - prefill))
        torch.testing.assert_close(pieces, model(tokens), rtol=0, atol=1e-10)
        assert cache.length == CONTEXT


@pytest.mark.parametrize("name", NANO)
def test_nano_models_decode_as_they_read_in_single_precision(name):
    model = build(preset(name)).eval()
    tokens = some_tokens(2, 24, vocab=512)
    pieces, _ = in_chunks(model, tokens, [10, 1, 1, 8, 1, 3])
    torch.testing.assert_close(pieces, model(tokens), rtol=0, atol=1e-5)


@settings(max_examples=6)
@pytest.mark.parametrize("name", SMALL)
@given(cuts=st.sets(st.integers(1, 11)))
def test_any_chunks_give_the_full_pass(name, cuts):
    model = small(SMALL[name])
    tokens = some_tokens(2, 12)
    ends = [0, *sorted(cuts), 12]
    pieces, _ = in_chunks(model, tokens, [b - a for a, b in itertools.pairwise(ends)])
    torch.testing.assert_close(pieces, model(tokens), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", SMALL)
def test_a_cache_has_one_slot_for_every_attention_call(name):
    model = small(SMALL[name])
    _, cache = in_chunks(model, some_tokens(), [4, 3])
    assert len(list(cache)) == model.attention_calls
    assert {slot.length for slot in cache} == {7}


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_next_token_logits_are_the_last_of_all_logits(name):
    model, tokens = small(ONE_OF_EACH[name]), some_tokens()
    torch.testing.assert_close(model.next_token_logits(tokens), model(tokens)[:, -1], rtol=0, atol=1e-12)


def test_reading_with_gradient_enabled_gives_the_same_logits():
    model, tokens = small(SRM_TINY), some_tokens()
    cache = model.new_cache()
    pieces = torch.cat([model(chunk, cache=cache) for chunk in tokens.split([3, 1, 3], dim=1)], dim=1)
    torch.testing.assert_close(pieces, model(tokens), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2)])
@pytest.mark.parametrize("config", [GPT2_TINY, SRM_TINY], ids=["gpt2", "srm"])
def test_a_cache_refuses_another_number_of_rows(config, first, then):
    model, cache = small(config), small(config).new_cache()
    model(torch.ones(first, 3, dtype=torch.long), cache=cache)
    with pytest.raises(UserError, match=rf"{then} rows after {first} in this cache"):
        model(torch.ones(then, 1, dtype=torch.long), cache=cache)
    assert cache.length == 3


@pytest.mark.parametrize("name", ["srm", "huginn"])
@pytest.mark.parametrize("exit", [None, 0.1])
def test_a_cache_is_read_at_one_depth(name, exit):
    model, tokens = small(SMALL[name]), some_tokens()
    cache = model.new_cache()
    model(tokens[:, :4], cache=cache, depth=2, exit=exit)
    model(tokens[:, 4:5], cache=cache, depth=2, exit=exit)
    with pytest.raises(UserError, match=r"depth has changed from 2 to 3 .*: model.new_cache\(\)"):
        model(tokens[:, 5:], cache=cache, exit=exit)


def test_a_full_cache_refuses_more_and_names_the_fix():
    model = small(SRM_TINY)
    cache = model.new_cache(capacity=4)
    model(some_tokens(1, 3), cache=cache)
    with pytest.raises(
        ValueError, match=r'3 cached \+ 2 new tokens exceed the context of 4; .*overflow="slide"'
    ):
        model(some_tokens(1, 2), cache=cache)
    assert cache.length == 3


@pytest.mark.parametrize("capacity", [0, CONTEXT + 1])
def test_a_cache_longer_than_the_positions_is_refused(capacity):
    with pytest.raises(
        ValueError, match=f"capacity = {capacity}: must be between 1 and the context of {CONTEXT}"
    ):
        small(SRM_TINY).new_cache(capacity)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_more_tokens_than_the_context_are_refused(name):
    model = small(ONE_OF_EACH[name])
    with pytest.raises(
        ValueError, match=f"{CONTEXT + 1} tokens exceed the context of {CONTEXT}; cut the input"
    ):
        model(some_tokens(1, CONTEXT + 1))


def test_tokens_need_a_batch_axis():
    with pytest.raises(ValueError, match=r"tokens of shape \(5,\): need \[batch, token\]"):
        small(SRM_TINY)(torch.zeros(5, dtype=torch.long))


# Generation


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("options", [{"temperature": 0}, {"seed": 3, "top_k": 5, "temperature": 0.7}])
def test_generation_with_a_cache_is_generation_without(name, options):
    model, prompt = small(SMALL[name]), some_tokens(3, 4)
    cached = generate(model, prompt, 10, **options)
    assert torch.equal(cached, generate(model, prompt, 10, use_cache=False, **options))
    assert torch.equal(cached[:, :4], prompt)
    assert cached.shape == (3, 14)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_greedy_generation_takes_the_most_likely_token(name):
    model, prompt = small(ONE_OF_EACH[name]), some_tokens(2, 3)
    out = generate(model, prompt, 6, temperature=0)
    assert torch.equal(out[:, 3:], model(out)[:, 2:-1].argmax(-1))


@pytest.mark.parametrize("temperature", [9e-6, 1e-192, 5e-324])
def test_a_temperature_too_low_for_arithmetic_is_greedy(temperature):
    model, prompt = small(SRM_TINY), some_tokens(2, 3)
    cold = generate(model, prompt, 6, temperature=temperature, top_k=5, top_p=0.9)
    assert torch.equal(cold, generate(model, prompt, 6, temperature=0))


def test_rows_of_a_batch_are_generated_as_if_alone():
    model, prompts = small(SRM_TINY), some_tokens(4, 5)
    together = generate(model, prompts, 8, temperature=0)
    alone = torch.cat([generate(model, prompt[None], 8, temperature=0) for prompt in prompts])
    assert torch.equal(together, alone)


def test_the_same_seed_gives_the_same_text_and_another_seed_another():
    model, prompt = small(SRM_TINY), some_tokens(2, 2)
    texts = [generate(model, prompt, 14, seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])


def test_without_a_seed_texts_differ_and_the_global_generator_rests():
    model, prompt = small(SRM_TINY), some_tokens(2, 2)
    torch.manual_seed(0)
    one = generate(model, prompt, 14)
    torch.manual_seed(0)
    two = generate(model, prompt, 14)
    assert not torch.equal(one, two)
    after = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(1), after)


def test_a_model_can_be_trained_on_what_it_wrote():
    model = build(SRM_TINY)
    text = generate(model, some_tokens(), 3, seed=0)
    model(text[:, :-1], text[:, 1:]).backward()
    assert not text.is_inference()


def test_no_new_tokens_is_the_prompt():
    prompt = some_tokens()
    assert torch.equal(generate(small(SRM_TINY), prompt, 0), prompt)


def test_generation_leaves_the_mode_of_the_model_and_draws_no_training_order():
    model = build(SRM_TINY.replace(order="random:4")).train()
    state = model.order_generator.get_state()
    text = generate(model, some_tokens(), 3, temperature=0)
    assert model.training
    assert torch.equal(model.order_generator.get_state(), state)
    assert torch.equal(text, generate(model.eval(), some_tokens(), 3, temperature=0))
    assert not model.training


def test_the_mode_comes_back_after_an_error_too():
    model = build(SRM_TINY).train()

    def fail(_):
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        generate(model, some_tokens(), 3, on_token=fail)
    assert model.training


def test_each_new_column_is_handed_over_as_it_comes():
    columns = []
    out = generate(small(SRM_TINY), some_tokens(2, 3), 5, seed=0, on_token=columns.append)
    assert torch.equal(torch.stack(columns, 1), out[:, 3:])


def test_a_row_that_has_stopped_is_filled_and_generation_ends_when_all_have():
    model, prompt = small(SRM_TINY), some_tokens(2, 2)
    free = generate(model, prompt, 14, seed=5)
    stop = free[0, 5].item()
    out = generate(model, prompt, 14, seed=5, stop_token=stop)
    for row, without in zip(out[:, 2:].tolist(), free[:, 2:].tolist(), strict=True):
        end = row.index(stop) if stop in row else len(row)
        assert row[: end + 1] == without[: end + 1]
        assert set(row[end:]) <= {stop}
    if all(stop in row for row in out[:, 2:].tolist()):
        assert (out[:, -2] != stop).any()


def test_generation_ends_at_once_when_every_row_stops():
    model = small(SRM_TINY)

    def always_three(logits, hook):  # noqa: ARG001
        logits = torch.zeros_like(logits)
        logits[..., 3] = 100.0
        return logits

    with model.hooks([("logits", always_three)]):
        out = generate(model, some_tokens(2, 2), 9, seed=0, stop_token=3)
    assert out[:, 2:].tolist() == [[3], [3]]


# Past the context


def test_by_default_text_past_the_context_is_refused_before_it_starts():
    columns = []
    with pytest.raises(
        ValueError, match=r'10 prompt \+ 7 new tokens exceed the context of 16; .*overflow="slide"'
    ):
        generate(small(SRM_TINY), some_tokens(1, 10), 7, on_token=columns.append)
    assert columns == []


@pytest.mark.parametrize("name", ONE_OF_EACH)
@pytest.mark.parametrize("length", [1, 10, CONTEXT, CONTEXT + 9])
def test_sliding_goes_on_past_the_context(name, length):
    model, prompt = small(ONE_OF_EACH[name]), some_tokens(2, length)
    out = generate(model, prompt, 40, temperature=0, overflow="slide")
    assert out.shape == (2, length + 40)
    assert torch.equal(out[:, :length], prompt)
    assert torch.equal(out, generate(model, prompt, 40, temperature=0, overflow="slide", use_cache=False))


def test_sliding_reads_the_last_half_of_the_context_anew():
    model, prompt, read = small(SRM_TINY), some_tokens(1, CONTEXT - 1), []
    with model.hooks([("logits", lambda value, hook: read.append(value))]):  # noqa: ARG005
        out = generate(model, prompt, 4, temperature=0, overflow="slide")
    assert [logits.shape[1] for logits in read] == [CONTEXT - 1, 1, CONTEXT // 2, 1]
    window = out[:, : CONTEXT + 1][:, -CONTEXT // 2 :]
    torch.testing.assert_close(read[2], model(window))


def test_a_context_of_one_token_can_slide():
    config = GPT2_TINY.replace(context=1)
    assert generate(small(config), some_tokens(1, 1), 3, seed=0, overflow="slide").shape == (1, 4)


# Sampling


def draws(logits, n=4000, temperature=1.0, top_k=None, top_p=None):
    rows = torch.tensor(logits).expand(n, -1)
    chosen = sample(rows, temperature, top_k, top_p, torch.Generator().manual_seed(0))
    return torch.bincount(chosen, minlength=len(logits)) / n


def test_sampling_follows_the_softmax():
    logits = [0.0, 1.0, 2.0, -1.0]
    expected = torch.tensor(logits).softmax(0)
    torch.testing.assert_close(draws(logits), expected, rtol=0, atol=0.03)


def test_temperature_sharpens_and_flattens():
    logits = [0.0, 1.0, 2.0, -1.0]
    for temperature in (0.5, 2.0):
        expected = (torch.tensor(logits) / temperature).softmax(0)
        torch.testing.assert_close(draws(logits, temperature=temperature), expected, rtol=0, atol=0.03)
    assert draws(logits, temperature=0).tolist() == [0, 0, 1, 0]


def test_top_k_keeps_the_k_likeliest_and_their_proportions():
    logits = [0.0, 1.0, 2.0, -1.0]
    found = draws(logits, top_k=2)
    expected = torch.tensor([-torch.inf, 1.0, 2.0, -torch.inf]).softmax(0)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.03)
    assert draws(logits, top_k=1).tolist() == [0, 0, 1, 0]
    assert (draws(logits, top_k=99) > 0).all()


def test_top_p_keeps_the_smallest_set_that_has_the_mass():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().tolist()
    assert (draws(logits, top_p=0.4) > 0).tolist() == [True, False, False, False]
    assert (draws(logits, top_p=0.6) > 0).tolist() == [True, True, False, False]
    assert (draws(logits, top_p=0.9) > 0).tolist() == [True, True, True, False]
    assert (draws(logits, top_p=1.0) > 0).tolist() == [True] * 4
    assert (draws(logits, top_p=1e-9) > 0).tolist() == [True, False, False, False]


def test_top_k_and_top_p_together_keep_what_both_keep():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().tolist()
    assert (draws(logits, top_k=3, top_p=0.95) > 0).tolist() == [True, True, True, False]
    assert (draws(logits, top_k=3, top_p=0.5) > 0).tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature = -1: must be 0"),
        ({"top_k": 0}, "top_k = 0: must be at least 1"),
        ({"top_p": 0.0}, r"top_p = 0.0: must be in \(0, 1\]"),
        ({"top_p": 1.5}, r"top_p = 1.5: must be in \(0, 1\]"),
        ({"max_new_tokens": -1}, "max_new_tokens = -1: must be 0 or more"),
        ({"overflow": "wrap"}, "overflow = 'wrap': must be one of refuse, slide"),
        ({"tokens": torch.zeros(3, dtype=torch.long)}, r"tokens of shape \(3,\): need \[batch, token\]"),
        ({"tokens": torch.zeros(1, 0, dtype=torch.long)}, "with at least one token"),
        ({"tokens": torch.zeros(0, 3, dtype=torch.long)}, "with at least one token"),
        ({"tokens": torch.tensor([[1, 99]])}, "token ids of 1 to 99: this model's range is 0 to 12"),
        ({"tokens": torch.tensor([[1, -1]])}, "token ids of -1 to 1"),
        ({"temperature": float("nan")}, "temperature = nan"),
    ],
)
def test_what_cannot_be_sampled_is_refused_in_one_line(options, message):
    options = {"tokens": some_tokens(), **options}
    with pytest.raises(ValueError, match=message) as refusal:
        generate(small(SRM_TINY), **options)
    assert "\n" not in str(refusal.value)
