"""Exact match by one pass is greedy decoding, problem by problem; and its interval."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import srmlab
from srmlab.data import Tokenizer, byte_tokenizer
from srmlab.errors import UserError
from srmlab.models import GPT2Config, HRMConfig, ModelConfig, SRMConfig
from srmlab.tasks import Problem
from srmlab.tasks.accuracy import Accuracy, encode, solved

SMALL = {"vocab_size": 257, "context": 48}
MODELS = {
    "srm": SRMConfig(
        **SMALL, embedding_dim=16, streams=2, stream_dim=8, mlp_dim=16, token_heads=1, head_dim=8,
        stream_heads=1, depth=2, gradient_depth=2,
    ),
    "hrm": HRMConfig(
        **SMALL, dim=16, heads=2, head_dim=8, mlp_dim=32, low_blocks=1, high_blocks=1, low_cycles=1,
        high_cycles=2,
    ),
    "gpt2": GPT2Config(**SMALL, dim=16, blocks=2, heads=2, mlp_dim=32, dropout=0.0),
}  # fmt: skip
TOKENIZER = byte_tokenizer()
SUMS = [Problem(f"{a}+{b}", str(a + b)[::-1]) for a in range(4) for b in range(8)]


def trained(config: ModelConfig, first: bool) -> srmlab.LanguageModel:
    """A model after a few steps on some of the sums: it gets some right and some wrong."""
    model = srmlab.build(config)
    rows = [before + answer for before, answer in (encode(TOKENIZER, p, first=first) for p in SUMS[:24])]
    width = max(map(len, rows))
    tokens = torch.tensor([row + [TOKENIZER.end_of_text] * (width - len(row)) for row in rows])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(50):
        optimizer.zero_grad()
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("first", [True, False], ids=["after end-of-text", "at the start"])
@pytest.mark.parametrize("name", MODELS)
def test_exact_match_is_what_greedy_decoding_writes(name, first):
    model = trained(MODELS[name], first)
    found = solved(model, TOKENIZER, SUMS, batch_size=5, first=first)
    assert model.training
    for problem, right in zip(SUMS, found, strict=True):
        before, answer = encode(TOKENIZER, problem, first=first)
        written = srmlab.generate(
            model,
            torch.tensor([before]),
            max_new_tokens=8,
            temperature=0,
            stop_token=TOKENIZER.end_of_text,
        )
        assert right == (written[0, len(before) :].tolist() == answer)
    assert found.any()
    assert not found.all()


def test_no_problems_are_no_answers_and_a_long_one_is_refused():
    model = srmlab.build(MODELS["srm"])
    assert solved(model, TOKENIZER, []).shape == (0,)
    with pytest.raises(UserError, match="a problem of 63 tokens exceeds the model's context of 48"):
        solved(model, TOKENIZER, [Problem("1" * 60, "1")])


def test_a_tokenizer_with_a_token_across_question_and_answer_is_refused():
    joined = Tokenizer("joined", (*TOKENIZER.tokens, b"=-"))
    with pytest.raises(UserError, match=r"'3-8=-5': .* --tokenizer byte"):
        encode(joined, Problem("3-8", "-5"), first=True)


def test_the_interval_is_wilsons():
    """Values of R's `prop.test(…, correct = FALSE)`."""
    assert Accuracy(45, 50).interval == pytest.approx((0.786398, 0.956521), abs=1e-5)
    assert Accuracy(0, 10).interval == pytest.approx((0.0, 0.277533), abs=1e-5)
    assert Accuracy(10, 10).interval == pytest.approx((0.722467, 1.0), abs=1e-5)


@given(st.integers(1, 1000), st.data())
def test_the_intervals_ends_are_where_the_score_test_just_rejects(problems, data):
    accuracy = Accuracy(data.draw(st.integers(0, problems)), problems)
    low, high = accuracy.interval
    assert 0 <= low <= accuracy.share <= high <= 1
    for end in {low, high} - {0.0, 1.0}:
        z = (accuracy.share - end) / np.sqrt(end * (1 - end) / problems)
        assert abs(z) == pytest.approx(1.959964, rel=1e-6)
