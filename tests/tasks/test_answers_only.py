"""The loss on answers: which targets count, and that training on them stays exact."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from srmlab.data import (
    Batches,
    EvaluationBatches,
    PrepareConfig,
    Tokens,
    answers_only,
    open_tokens,
    prepare,
)
from srmlab.errors import UserError
from srmlab.models import SRMConfig, build
from srmlab.storage import read_metrics
from srmlab.tasks import TaskCorpus
from srmlab.training import TrainConfig, resume, train
from srmlab.training.evaluation import evaluate
from srmlab.training.loop import Trainer

END, MARK = 0, 1
MODEL = SRMConfig(
    vocab_size=257, context=32, embedding_dim=8, streams=3, stream_dim=8, mlp_dim=16,
    token_heads=2, head_dim=4, stream_heads=2, depth=3, gradient_depth=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sums") / "data"
    spec = "task:addition:1-2:2000"
    prepare(PrepareConfig(spec, out, "byte", val_fraction=0.2), source=TaskCorpus.parse(spec))
    return out


def small_config(**changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "steps": 6, "batch_size": 4, "lr": 1e-2, "warmup": 2, "eval_every": 3, "eval_tokens": 128,
        "checkpoint_every": 2, "peak_flops": 1e11, "device": "cpu", "answers_only": True,
    }  # fmt: skip
    return TrainConfig(**settings | changes)


def losses(run: Path) -> list[float]:
    rows = read_metrics(run / "metrics.jsonl")
    return [row[name] for row in rows for name in ("loss", "val_loss") if name in row]


def by_reading(row: list[int]) -> list[int]:
    """The targets of one window of T + 1 tokens, by reading it from left to right."""
    found, begun, answering = [], False, False
    for token, target in pairwise(row):
        if token == END:
            begun, answering = True, False
        elif token == MARK:
            answering = True
        found.append(target if begun and answering else -100)
    return found


@given(st.lists(st.lists(st.integers(0, 4), min_size=9, max_size=9), min_size=1, max_size=4))
def test_a_target_counts_if_it_follows_a_mark_in_a_document_that_begins_in_the_window(rows):
    both = torch.tensor(rows)
    found = answers_only(both[:, :-1], both[:, 1:], (MARK,), END)
    assert found.tolist() == [by_reading(row) for row in rows]


def test_what_counts_in_a_batch_is_whole_answers(data):
    opened = open_tokens(data)
    marks = opened.tokenizer.answer_marks
    batch = Batches(opened.train, 32, 16, seed=0, marks=marks).batch(0)
    unmarked = Batches(opened.train, 32, 16, seed=0).batch(0)
    inputs, targets, plain = batch.tokens, batch.targets, unmarked.targets
    assert torch.equal(inputs, unmarked.tokens)
    assert torch.equal(targets[targets >= 0], plain[targets >= 0])
    for row, last, counted in zip(inputs.tolist(), plain[:, -1:].tolist(), targets >= 0, strict=True):
        problems = opened.tokenizer.decode(row + last).split("<|endoftext|>")[1:]
        answers = [problem.partition("=")[2] for problem in problems]
        assert counted.sum() == sum(map(len, answers)) + len(answers) - 1  # the last has no end in here


def test_the_loss_of_an_evaluation_is_the_mean_over_the_answers(data):
    opened, model = open_tokens(data), build(MODEL).eval()
    marks = opened.tokenizer.answer_marks
    found = evaluate(model, EvaluationBatches(opened.val, 32, 3, marks=marks), tokenizer=opened.tokenizer)
    total = count = 0.0
    for batch in EvaluationBatches(opened.val, 32, 1, marks=marks):
        logits = model(batch.tokens).log_softmax(-1).detach()
        for place, target in zip(logits[0], batch.targets[0].tolist(), strict=True):
            if target >= 0:
                total, count = total - float(place[target]), count + 1
    assert found.tokens == count
    assert found.loss.mean == pytest.approx(total / count, rel=1e-5)


def test_windows_without_an_answer_are_no_evidence_for_the_loss(data):
    opened, model = open_tokens(data), build(MODEL).eval()
    marks = opened.tokenizer.answer_marks
    sums, counts = [], []
    short = {"context": 8, "batch_size": 3, "marks": marks}  # many windows hold half a problem only
    for batch in EvaluationBatches(opened.val, **short):
        losses = -model(batch.tokens).log_softmax(-1).detach().double()
        for row, targets in zip(losses, batch.targets, strict=True):
            there = targets >= 0
            if bool(there.any()):
                sums.append(float(row[there].gather(-1, targets[there, None]).sum()))
                counts.append(int(there.sum()))
    found = evaluate(model, EvaluationBatches(opened.val, **short), tokenizer=opened.tokenizer)
    n, ratio = len(counts), sum(sums) / sum(counts)
    spread = sum((s - ratio * c) ** 2 for s, c in zip(sums, counts, strict=True))
    error = (n / (n - 1) * spread) ** 0.5 / sum(counts)
    assert found.windows == n < EvaluationBatches(opened.val, **short).windows
    assert found.loss.standard_error == pytest.approx(error, rel=1e-6)
    one = next(k for k in range(1, 99) if 0 < by_windows(opened.val, k, marks) < 2)
    single = evaluate(model, EvaluationBatches(opened.val, 8, 3, 8 * one, marks=marks))
    assert math.isnan(single.loss.standard_error)  # of one window: not 0


def by_windows(tokens: Tokens, windows: int, marks: tuple[int, ...]) -> int:
    """How many of the first windows of 8 tokens have a target."""
    batches = EvaluationBatches(tokens, 8, 1, 8 * windows, marks=marks)
    return sum(bool(batch.counted.any()) for batch in batches)


def test_micro_batches_of_unequal_answers_add_up_to_the_same_run(data, tmp_path):
    for accumulate in (1, 4):
        train(small_config(accumulate=accumulate), MODEL, data, tmp_path / str(accumulate), show=False)
    assert_close(losses(tmp_path / "4"), losses(tmp_path / "1"), rtol=1e-4, atol=1e-5)


def test_training_on_answers_differs_from_training_on_all(data, tmp_path):
    train(small_config(), MODEL, data, tmp_path / "answers", show=False)
    train(small_config(answers_only=False), MODEL, data, tmp_path / "all", show=False)
    assert losses(tmp_path / "answers")[0] != losses(tmp_path / "all")[0]


def test_a_stopped_run_resumes_bitwise(data, tmp_path, monkeypatch):
    config = small_config(accumulate=2)
    train(config, MODEL, data, tmp_path / "never", show=False)
    advance = Trainer.advance
    with monkeypatch.context() as patch:

        def told(self: Trainer) -> int:
            self.stop.signal = 15 if self.step + 1 == 3 else self.stop.signal
            return advance(self)

        patch.setattr(Trainer, "advance", told)
        assert train(config, MODEL, data, tmp_path / "stopped", show=False).step == 3
    resume(tmp_path / "stopped", show=False)
    assert losses(tmp_path / "stopped") == losses(tmp_path / "never")


def test_windows_without_a_whole_problem_are_refused(data, tmp_path):
    with pytest.raises(UserError, match="no training window of 4 tokens holds a question, '='"):
        train(small_config(context=4), MODEL, data, tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()
