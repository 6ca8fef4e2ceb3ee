"""A task as a corpus: what is asked for is drawn, and nothing of it is both learned and examined."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srmlab.data import DataError, PrepareConfig, Tokens, open_tokens, prepare, source_fingerprint
from srmlab.data.corpora import text_digest
from srmlab.data.preparation import split_of
from srmlab.errors import UserError
from srmlab.tasks import TASKS, TaskCorpus, held_out


def documents(tokens: Tokens, tokenizer) -> list[str]:
    *texts, rest = tokenizer.decode(tokens.read(0, len(tokens)).tolist()).split("<|endoftext|>")
    assert rest == ""
    return texts


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("task:hops", "task:hops:1-6:50000"),
        ("task:hops:2", "task:hops:2-2:50000"),
        ("task:hops:2-3", "task:hops:2-3:50000"),
        ("task:hops:2-3:10", "task:hops:2-3:10"),
        ("task:hops::10", "task:hops:1-6:10"),
    ],
)
def test_a_spec_says_task_difficulties_and_number(spec, name):
    corpus = TaskCorpus.parse(spec)
    assert corpus.name == name
    assert TaskCorpus.parse(name) == corpus


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("task:hosp", "no task is called 'hosp'; did you mean 'hops'?"),
        ("task:", "no task is called ''; there are addition,"),
        ("task:hops:many", "cannot be read: write task:NAME"),
        ("task:hops:1-2:3:4", "cannot be read: write task:NAME"),
        ("task:hops:3-2", "difficulties 3-2: write the lower one first"),
        ("task:hops:0-2", "hops of difficulty 0"),
        ("task:hops:1-7", "hops of difficulty 7"),
        ("task:hops:1-2:0", "0 problems: ask for 1 or more"),
    ],
)
def test_a_spec_that_cannot_be_meant_is_refused(spec, says):
    with pytest.raises(UserError) as refused:
        TaskCorpus.parse(spec)
    assert says in str(refused.value)


def test_the_difficulties_come_in_turn_and_always_the_same():
    corpus = TaskCorpus.parse("task:addition:1-3:9")
    sizes = [len(document.text.split("+")[0]) for document in corpus.documents()]
    assert sizes == [1, 2, 3] * 3
    assert source_fingerprint(corpus) == source_fingerprint(corpus)


def test_no_problem_of_a_small_task_is_on_both_sides(tmp_path):
    """There are 100 sums of single digits: 2,000 draws have each of them many times."""
    corpus = TaskCorpus.parse("task:addition:1:2000")
    config = PrepareConfig("task:addition:1:2000", tmp_path / "data", "byte", val_fraction=0.3)
    manifest = prepare(config, source=corpus)
    data = open_tokens(tmp_path / "data")
    train, val = (documents(tokens, data.tokenizer) for tokens in (data.train, data.val))
    assert manifest.source == corpus.name
    assert len(train) + len(val) == len({*train, *val}) == 100
    assert manifest.duplicates == 1900
    fresh = held_out("addition", 1, count=1000, val_fraction=0.3)
    assert {problem.text for problem in fresh} == {*val}


@given(st.sampled_from(sorted(TASKS)), st.integers(0, 2**32), st.floats(0.05, 0.9))
def test_held_out_problems_differ_and_are_never_trained_on(name, seed, val_fraction):
    difficulty = TASKS[name].usual[1]
    found = held_out(name, difficulty, count=5, val_fraction=val_fraction, seed=seed)
    assert len(set(found)) == 5
    assert {split_of(text_digest(problem.text.encode()), val_fraction) for problem in found} == {"val"}


def test_without_a_validation_side_nothing_is_held_out():
    with pytest.raises(DataError, match="prepare with more than 0"):
        held_out("hops", 1, count=1, val_fraction=0.0)
