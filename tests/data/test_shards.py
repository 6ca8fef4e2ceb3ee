"""Prepared data is complete, the same however it came about, and refused when a single bit is wrong."""

import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srmlab.data import DataError, Document, PrepareConfig, Tokens, open_tokens, prepare, source_fingerprint
from srmlab.data import preparation as module
from srmlab.data.corpora import text_digest
from srmlab.data.writing import Seen


@dataclass
class Texts:
    """A source in memory."""

    texts: list[str]
    name: str = "texts"
    total_bytes: int | None = None

    def documents(self):
        return (Document(str(number), text) for number, text in enumerate(self.texts))


def some_texts(count, seed=0):
    draw = random.Random(seed)
    words = ["senate", "house", "the", "of", "a", "é☃", "1790", "\n\n", "don't"]
    return [f"{n} " + " ".join(draw.choices(words, k=draw.randrange(3, 60))) for n in range(count)]


CORPUS = Texts([*some_texts(120), "", "  \n", *some_texts(7)])


def config(out, **changes):
    return PrepareConfig(
        **{"source": "texts", "out": Path(out), "tokenizer": "byte", "val_fraction": 0.2, "workers": 2}
        | changes
    )


def content(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


def documents_of(tokens, tokenizer):
    ids = tokens.read(0, len(tokens))
    ends = np.flatnonzero(ids == tokens.end_of_text)
    assert ends[-1] == len(ids) - 1
    return [tokenizer.decode(part[part != tokens.end_of_text]) for part in np.split(ids, ends[:-1] + 1)]


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch):
    monkeypatch.setattr(module, "GROUP_CHARS", 700)


@pytest.fixture
def prepared(tmp_path):
    prepare(config(tmp_path / "data", shard_tokens=3000), source=CORPUS)
    return tmp_path / "data"


def test_every_document_is_there_once_in_order_with_end_of_text_behind_it(prepared):
    data = open_tokens(prepared)
    kept = CORPUS.texts[:120]
    found = {split: documents_of(getattr(data, split), data.tokenizer) for split in ("train", "val")}
    for split, texts in found.items():
        assert texts == [t for t in kept if module.split_of(text_digest(t.encode()), 0.2) == split]
    assert len(found["train"]) + len(found["val"]) == 120


def test_the_manifest_counts_what_is_there(prepared):
    data = open_tokens(prepared)
    manifest = data.manifest
    assert sum(manifest.documents.values()) == 120
    assert (manifest.duplicates, manifest.blank) == (7, 2)
    assert sum(manifest.text_bytes.values()) == sum(len(t.encode()) for t in CORPUS.texts[:120])
    assert manifest.tokens == {"train": len(data.train), "val": len(data.val)}
    assert sum(manifest.tokens.values()) == sum(manifest.text_bytes.values()) + 120
    assert manifest.source_fingerprint == source_fingerprint(CORPUS)
    assert manifest.tokenizer_fingerprint == data.tokenizer.fingerprint
    assert [shard.tokens for shard in manifest.shards["train"][:-1]] == [3000] * 5
    assert data.vocab_size == 257


@settings(max_examples=25, deadline=None)
@given(texts=st.lists(st.sampled_from("abcdefghij").map(lambda c: c * 3), min_size=2, max_size=40))
def test_no_text_is_in_both_splits_or_twice_in_one(texts):
    with tempfile.TemporaryDirectory() as folder:
        if len({module.split_of(text_digest(text.encode()), 0.5) for text in texts}) == 1:
            with pytest.raises(DataError, match="no document fell into"):
                prepare(config(f"{folder}/data", val_fraction=0.5), source=Texts(texts))
            return
        prepare(config(f"{folder}/data", val_fraction=0.5), source=Texts(texts))
        data = open_tokens(f"{folder}/data")
        everything = [t for s in (data.train, data.val) for t in documents_of(s, data.tokenizer)]
        assert sorted(everything) == sorted(set(texts))


@pytest.mark.parametrize("tokenizer", ["byte", "gpt2", "bpe:280"])
def test_workers_and_groups_do_not_change_a_byte(tmp_path, monkeypatch, tokenizer):
    prepare(config(tmp_path / "one", tokenizer=tokenizer, workers=1), source=CORPUS)
    monkeypatch.setattr(module, "GROUP_CHARS", 5000)
    prepare(config(tmp_path / "three", tokenizer=tokenizer, workers=3), source=CORPUS)
    assert content(tmp_path / "one") == content(tmp_path / "three")


class Stopped(Exception):
    pass


@settings(max_examples=12, deadline=None)
@given(stops=st.lists(st.integers(0, 14), max_size=4), shard_tokens=st.sampled_from([900, 10**6]))
def test_stopped_anywhere_and_started_again_it_ends_in_the_same_bytes(stops, shard_tokens):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "COMMIT_TOKENS", 1000)
        prepare(config(f"{folder}/whole", shard_tokens=shard_tokens), source=CORPUS)
        for stop in stops:
            calls = iter(range(10**6))

            def stop_at(_, stop=stop, calls=calls):
                if next(calls) == stop:
                    raise Stopped

            if not Path(f"{folder}/parts").exists():
                try:
                    prepare(
                        config(f"{folder}/parts", shard_tokens=shard_tokens), source=CORPUS, progress=stop_at
                    )
                except Stopped:
                    assert not Path(f"{folder}/parts").exists()
        if not Path(f"{folder}/parts").exists():
            prepare(config(f"{folder}/parts", shard_tokens=shard_tokens), source=CORPUS)
        assert content(f"{folder}/parts") == content(f"{folder}/whole")


def test_resuming_does_not_encode_again_what_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "COMMIT_TOKENS", 1000)
    seen = []

    def stop_late(progress):
        seen.append(progress)
        if progress.tokens > 9000:
            raise Stopped

    with pytest.raises(Stopped):
        prepare(config(tmp_path / "data"), source=CORPUS, progress=stop_late)
    again = []
    prepare(config(tmp_path / "data"), source=CORPUS, progress=again.append)
    resumed = next(p for p in again if p.stage == "resuming")
    assert resumed.tokens > 7000
    assert min(p.tokens for p in again if p.stage == "encoding") > resumed.tokens
    assert again[-1].documents == len(CORPUS.texts)


KILLER = """
import os, random, signal, sys, time
from pathlib import Path
from srmlab.data import PrepareConfig, preparation, prepare
preparation.GROUP_CHARS, preparation.COMMIT_TOKENS = 2000, 4000

def run(out):
    prepare(PrepareConfig(sys.argv[1], Path(out), tokenizer="bpe:290", workers=1, shard_tokens=9000,
                          section_chars=500), progress=lambda _: time.sleep(0.002))

kills, draw = 0, random.Random(0)
while not os.path.exists(sys.argv[2]):
    child = os.fork()
    if child == 0:
        run(sys.argv[2])
        os._exit(0)
    time.sleep(draw.uniform(0.01, 0.03) * (1 + kills))  # later and later, so that it ends
    os.kill(child, signal.SIGKILL)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended in (0, -signal.SIGKILL), ended
    kills += ended == -signal.SIGKILL
run(sys.argv[3])
print(kills)
"""


@pytest.mark.slow
def test_killed_again_and_again_it_ends_in_the_same_bytes(tmp_path):
    (tmp_path / "book.txt").write_text("\n\n".join(some_texts(500, seed=1)))
    paths = [str(tmp_path / name) for name in ("book.txt", "killed", "whole")]
    command = [sys.executable, "-c", KILLER, *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_a_full_disk_is_one_line_and_the_work_done_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "COMMIT_TOKENS", 500)
    prepare(config(tmp_path / "whole", tokenizer="byte"), source=CORPUS)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(DataError, match=r"^cannot write .*run the same command again.*$"):
            prepare(config(tmp_path / "data", tokenizer="byte"), source=CORPUS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    prepare(config(tmp_path / "data", tokenizer="byte"), source=CORPUS)
    assert content(tmp_path / "data") == content(tmp_path / "whole")


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"^cannot write .*Not a directory.*choose another folder.*$"):
        prepare(config(tmp_path / "file" / "data"), source=CORPUS)


def test_prepared_data_is_never_overwritten(prepared):
    before = content(prepared)
    with pytest.raises(DataError, match="never overwritten"):
        prepare(config(prepared), source=Texts(some_texts(30, seed=9)))
    assert content(prepared) == before


def test_other_settings_or_another_text_do_not_continue_a_stopped_preparation(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "COMMIT_TOKENS", 1000)

    def stop_late(progress):
        if progress.tokens > 9000:
            raise Stopped

    with pytest.raises(Stopped):
        prepare(config(tmp_path / "data"), source=CORPUS, progress=stop_late)
    with pytest.raises(DataError, match=r"other settings \(val_fraction 0\.2\)"):
        prepare(config(tmp_path / "data", val_fraction=0.3), source=CORPUS)
    with pytest.raises(DataError, match="source has changed"):
        prepare(config(tmp_path / "data"), source=Texts(["new first", *CORPUS.texts[1:]]))
    prepare(config(tmp_path / "data", workers=1), source=CORPUS)  # the number of workers is free


def test_two_preparations_of_one_folder_do_not_meet(tmp_path):
    def meanwhile(_):
        with pytest.raises(DataError, match="in use"):
            prepare(config(tmp_path / "data"), source=CORPUS)

    prepare(config(tmp_path / "data"), source=CORPUS, progress=meanwhile)
    assert open_tokens(tmp_path / "data")


def test_a_foreign_folder_in_the_way_is_left_alone(tmp_path):
    (tmp_path / "data.partial").mkdir()
    (tmp_path / "data.partial" / "mine.txt").write_text("mine")
    with pytest.raises(DataError, match="in the way"):
        prepare(config(tmp_path / "data"), source=CORPUS)
    assert content(tmp_path) == {"data.partial/mine.txt": b"mine"}


@pytest.mark.parametrize("texts", [[], ["", " \n"]])
def test_an_empty_corpus_is_refused_and_nothing_is_touched(tmp_path, texts):
    with pytest.raises(DataError, match="contains no text"):
        prepare(config(tmp_path / "data"), source=Texts(texts))
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_not_taken_for_prepared_data(tmp_path):
    (tmp_path / "notes.txt").write_text("words")
    with pytest.raises(
        DataError, match=r"is a file: give the folder that `srmlab prepare .*notes\.txt --out"
    ):
        open_tokens(tmp_path / "notes.txt")


def test_a_corpus_too_small_to_split_is_refused_and_nothing_is_left(tmp_path):
    with pytest.raises(DataError, match=r"another --val-fraction, such as 0\.2"):
        prepare(config(tmp_path / "data"), source=Texts(["only one document"]))
    with pytest.raises(DataError, match=r"use bpe:\d+"):
        prepare(config(tmp_path / "data", tokenizer="bpe:9000"), source=CORPUS)
    assert list(tmp_path.iterdir()) == []
    manifest = prepare(config(tmp_path / "data", val_fraction=0), source=Texts(["only one document"]))
    assert manifest.tokens == {"train": 18, "val": 0}
    assert len(open_tokens(tmp_path / "data").val) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"val_fraction": 1},
        {"val_fraction": -0.1},
        {"workers": -1},
        {"shard_tokens": 0},
        {"tokenizer": "gpt9"},
    ],
)
def test_impossible_settings_are_refused_on_construction(changes):
    with pytest.raises(DataError, match=r"^[^\n]+: [^\n]+$"):
        config("anywhere", **changes)


def test_a_large_vocabulary_is_stored_in_four_bytes(tmp_path, monkeypatch):
    real = module.make_tokenizer("byte")
    extra = tuple(f"{n:06d}".encode() for n in range(66_000))
    wide = type(real)("wide", (*real.tokens, *extra))
    monkeypatch.setattr(module, "make_tokenizer", lambda *_: wide)
    prepare(config(tmp_path / "data"), source=Texts([*CORPUS.texts, "065999"]))
    data = open_tokens(tmp_path / "data")
    assert data.manifest.dtype == "uint32"
    everything = [t for s in (data.train, data.val) for t in documents_of(s, data.tokenizer)]
    assert sorted(everything) == sorted({t for t in [*CORPUS.texts, "065999"] if t.strip()})
    assert max(data.train.read(0, 10**9).max(), data.val.read(0, 10**9).max()) > 1 << 16


def test_one_flipped_bit_anywhere_is_detected(prepared):
    draw = random.Random(0)
    files = sorted(path for path in prepared.rglob("*") if path.is_file())
    for trial in range(300):
        path = files[trial % len(files)]
        good = path.read_bytes()
        bit = draw.randrange(8 * len(good))
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bad)
        with pytest.raises(DataError, match=r"^[^\n]+$") as refusal:
            open_tokens(prepared)
        assert str(path.parent) in str(refusal.value)
        path.write_bytes(good)
    assert open_tokens(prepared)


def test_a_short_missing_foreign_or_added_shard_is_named(prepared):
    shard = prepared / "train-00001.bin"
    good = shard.read_bytes()
    shard.write_bytes(good[:-2])
    for verify in (True, False):
        with pytest.raises(DataError, match=r"train-00001\.bin has 5998 bytes instead of 6000: prepare"):
            open_tokens(prepared, verify=verify)
    shard.write_bytes((prepared / "train-00000.bin").read_bytes())
    with pytest.raises(DataError, match=r"train-00001\.bin is damaged or from elsewhere"):
        open_tokens(prepared)
    shard.unlink()
    with pytest.raises(DataError, match=r"train-00001\.bin is missing"):
        open_tokens(prepared)
    shard.write_bytes(good)
    shutil.copy(shard, prepared / "train-00099.bin")
    with pytest.raises(DataError, match=r"train-00099\.bin does not belong"):
        open_tokens(prepared)


def test_a_folder_that_is_not_prepared_data_says_so(tmp_path, prepared):
    with pytest.raises(DataError, match="run srmlab prepare first"):
        open_tokens(tmp_path)
    manifest = json.loads((prepared / "manifest.json").read_text())
    (prepared / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))
    with pytest.raises(DataError, match="format 99"):
        open_tokens(prepared)


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(0, 7), max_size=6), start=st.integers(0, 30), count=st.integers(0, 30))
def test_reading_over_shards_is_reading_one_stream(lengths, start, count):
    whole = np.arange(sum(lengths), dtype=np.uint16)
    arrays = np.split(whole, np.cumsum(lengths)[:-1]) if lengths else []
    tokens = Tokens(arrays, vocab_size=99, end_of_text=98)
    assert len(tokens) == len(whole)
    assert tokens.read(start, start + count).tolist() == whole[start : start + count].tolist()
    assert tokens.read(start, start + count).dtype == np.int64


@settings(max_examples=50, deadline=None)
@given(digests=st.lists(st.binary(min_size=3, max_size=3), max_size=60))
def test_the_compact_set_of_hashes_is_a_set(digests):
    seen, plain = Seen(), set()
    for digest in (bytes(2) + d * 4 + bytes(2) for d in digests):  # one bucket, repeating patterns
        assert seen.add(digest) == (digest not in plain)
        plain.add(digest)


def test_the_sample_for_a_tokenizer_is_bounded_even_and_blind_to_validation():
    texts = [f"{n:04d}" * 25 for n in range(400)]
    sample = list(module.sample_text(Texts(texts), 0.5, sample_bytes=5000))
    assert 45 <= len(sample) <= 50
    assert sample == list(module.sample_text(Texts(texts), 0.5, sample_bytes=5000))
    assert all(module.split_of(text_digest(text.encode()), 0.5) == "train" for text in sample)
    assert any(text in sample for text in texts[:100])
    assert any(text in sample for text in texts[300:])
    few = list(module.sample_text(Texts(texts), 0.5, sample_bytes=5000, scan_bytes=1000))
    assert set(few) <= set(texts[:10])


def test_data_that_has_moved_is_said_to_be_gone_and_named_by_an_option(tmp_path):
    with pytest.raises(DataError, match=r"gone is not prepared data \(it does not exist\).*--data"):
        open_tokens(tmp_path / "gone")
    with pytest.raises(DataError, match=r"\(no manifest.json\): run srmlab prepare first"):
        open_tokens(tmp_path)
