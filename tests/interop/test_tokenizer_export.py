"""Our tokenizers as Hugging Face fast tokenizers: the same ids for every text."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import srmlab
from srmlab.data import Tokenizer, byte_tokenizer, gpt2_tokenizer, load_tokenizer, train_bpe
from srmlab.errors import UserError
from srmlab.interop.huggingface import export_tokenizer

WORDS = [
    "the",
    "quick",
    "don't",
    "we'll",
    "naïve",
    "café",
    "Ωmega",
    "東京",
    "🦊",
    "3.14",
    "\t",
    "\n\n",
    "x=y;",
]
WORDS += ["<|endoftext|>"]
TEXTS = st.lists(st.one_of(st.text(max_size=12), st.sampled_from([*WORDS, " ", "  ", "\n"])), max_size=12)


def trained() -> Tokenizer:
    chooser = random.Random(0)
    return train_bpe([" ".join(chooser.choices(WORDS, k=40)) for _ in range(30)], 320)


KINDS = {"byte": byte_tokenizer, "bpe": trained, "gpt2": gpt2_tokenizer}


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory) -> tuple[Tokenizer, Path]:
    tokenizer, path = KINDS[request.param](), tmp_path_factory.mktemp("tokenizer")
    export_tokenizer(tokenizer, path, context=128)
    return tokenizer, path


@pytest.fixture(scope="module")
def pair(folder) -> tuple[Tokenizer, PreTrainedTokenizerFast]:
    tokenizer, path = folder
    return tokenizer, AutoTokenizer.from_pretrained(path)


@given(pieces=TEXTS)
@settings(max_examples=150)
def test_every_text_has_the_same_ids_and_comes_back_whole(pair, pieces):
    ours, theirs = pair
    text = "".join(pieces)
    ids = theirs(text)["input_ids"]
    assert ids == ours.encode(text)
    assert theirs.decode(ids) == text


def test_it_is_a_fast_tokenizer_with_our_vocabulary_and_end_of_text(pair):
    ours, theirs = pair
    assert theirs.is_fast
    assert len(theirs) == ours.vocab_size
    assert theirs.eos_token_id == theirs.pad_token_id == ours.end_of_text
    assert theirs.bos_token_id is None
    assert theirs.model_max_length == 128


def test_the_end_of_text_mark_in_a_text_is_ordinary_text(pair):
    ours, theirs = pair
    assert ours.end_of_text not in theirs("a <|endoftext|> b")["input_ids"]
    assert theirs.decode([ours.end_of_text], skip_special_tokens=True) == ""


def test_a_batch_is_padded_on_the_left_for_writing(pair):
    ours, theirs = pair
    batch = theirs(["a", "a longer text"], padding=True)
    (short, long), masks = batch["input_ids"], batch["attention_mask"]
    missing = len(long) - 1
    assert short == [ours.end_of_text] * missing + ours.encode("a")
    assert masks == [[0] * missing + [1], [1] * len(long)]


def test_our_own_loader_reads_the_exported_folder(folder):
    tokenizer, path = folder
    assert load_tokenizer(path).fingerprint == tokenizer.fingerprint


def test_our_own_loader_needs_no_more_than_tokenizer_json(pair, tmp_path):
    ours, theirs = pair
    theirs.save_pretrained(tmp_path)  # as their Trainer does, beside a checkpoint's weights
    assert not (tmp_path / "about.json").exists()
    assert srmlab.load_tokenizer(tmp_path).fingerprint == ours.fingerprint


def test_a_tokenizer_that_is_not_made_of_bytes_is_refused(tmp_path):
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    words.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match="use its library"):
        srmlab.load_tokenizer(tmp_path)
