"""Data that other tools wrote: nanoGPT's token files, and datasets saved to disk."""

import json

import numpy as np
import pytest

from srmlab.cli import main
from srmlab.data import (
    DataError,
    PrepareConfig,
    byte_tokenizer,
    gpt2_tokenizer,
    open_source,
    open_tokens,
    prepare,
)

TEXTS = {"train": ["My fellow citizens", "We the people — all of us"], "val": ["The state of the union"]}


@pytest.fixture
def nanogpt(tmp_path):
    """As nanoGPT's data/openwebtext/prepare.py writes it: the ids of each document, then end-of-text."""
    folder, tokenizer = tmp_path / "openwebtext", gpt2_tokenizer()
    folder.mkdir()
    for split, texts in TEXTS.items():
        ids = [i for text in texts for i in (*tokenizer.encode(text), tokenizer.end_of_text)]
        np.array(ids, np.uint16).tofile(folder / f"{split}.bin")
    return folder


def test_a_folder_of_nanogpt_is_taken_over_id_by_id_with_its_split(nanogpt, tmp_path):
    manifest = prepare(PrepareConfig(str(nanogpt), tmp_path / "data", shard_tokens=4))
    data = open_tokens(tmp_path / "data")
    for split, tokens in (("train", data.train), ("val", data.val)):
        theirs = np.fromfile(nanogpt / f"{split}.bin", np.uint16)
        assert np.array_equal(tokens.read(0, len(tokens)), theirs)
        assert manifest.documents[split] == len(TEXTS[split])
        assert manifest.text_bytes[split] == sum(len(text.encode()) for text in TEXTS[split])
    assert manifest.tokenizer == "gpt2"
    assert manifest.val_fraction == len(data.val) / (len(data.train) + len(data.val))
    assert data.tokenizer.decode(data.val.read(0, 3)) == "The state of"


def test_a_stream_that_does_not_end_a_document_still_has_it(nanogpt, tmp_path):
    ids = np.fromfile(nanogpt / "train.bin", np.uint16)
    ids[:-1].tofile(nanogpt / "train.bin")
    assert prepare(PrepareConfig(str(nanogpt), tmp_path / "data")).documents["train"] == 2


def test_a_run_can_be_trained_on_it(nanogpt, tmp_path, capsys):
    out = tmp_path / "data"
    with pytest.raises(SystemExit) as stop:
        main(["prepare", str(nanogpt), "--out", str(out)])
    assert stop.value.code == 0
    assert "2 documents" in capsys.readouterr().out
    small = ["--model.vocab-size", "50257", "--context", "4", "--batch-size", "2"]
    with pytest.raises(SystemExit) as stop:
        main(["train", "srm-nano", "--data", str(out), "--out", str(tmp_path / "run"), "--dry-run", *small])
    assert stop.value.code == 0


@pytest.mark.parametrize(
    ("break_it", "options", "says"),
    [
        (lambda folder: (folder / "meta.pkl").write_bytes(b"x"), {}, r"meta\.pkl, a pickle, which is never"),
        (lambda folder: (folder / "val.bin").unlink(), {}, r"val\.bin is not a file of uint16 ids"),
        (lambda folder: (folder / "val.bin").write_bytes(b"abc"), {}, r"val\.bin is not a file of uint16"),
        (lambda _: None, {"tokenizer": "bpe:300"}, "cannot be learned from them"),
        (lambda _: None, {"val_fraction": 0.2}, "leave out val_fraction"),
        (lambda _: None, {"tokenizer": "byte"}, "has id 50256, and byte has 257"),
    ],
)
def test_what_cannot_come_out_right_is_refused_and_nothing_is_left(
    nanogpt, tmp_path, break_it, options, says
):
    break_it(nanogpt)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match=says):
        prepare(PrepareConfig(str(nanogpt), tmp_path / "data", **options))
    assert sorted(tmp_path.rglob("*")) == before


def test_characters_are_read_with_a_tokenizer_that_is_named(tmp_path):
    """data/shakespeare_char: ids of its own, and a tokenizer folder that says what they are."""
    folder, tokenizer = tmp_path / "chars", byte_tokenizer()
    folder.mkdir()
    for split in TEXTS:
        np.array(tokenizer.encode("To be"), np.uint16).tofile(folder / f"{split}.bin")
    (folder / "meta.pkl").write_bytes(b"never opened")
    (folder / "input.txt").write_text("To be")
    with pytest.raises(DataError, match=r"prepare .*input\.txt with --tokenizer byte"):
        prepare(PrepareConfig(str(folder), tmp_path / "data"))
    tokenizer.save(tmp_path / "tokenizer")
    prepare(PrepareConfig(str(folder), tmp_path / "data", str(tmp_path / "tokenizer")))
    data = open_tokens(tmp_path / "data")
    assert data.tokenizer.decode(data.train.read(0, 5)) == "To be"


@pytest.fixture
def saved(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"body": ["one", None, "two", "three"], "n": [1, 2, 3, 4]})
    folder = tmp_path / "saved"
    both = {"train": rows.filter(lambda row: row["n"] < 4), "test": rows}
    datasets.DatasetDict(both).save_to_disk(str(folder))
    return folder


def test_a_saved_dataset_is_read_by_column_and_split(saved):
    def texts(where):
        return [document.text for document in open_source(str(where), column="body").documents()]

    assert texts(saved) == ["one", "two"]  # the filter of the dataset counts
    assert texts(saved / "test") == ["one", "two", "three"]


def test_a_column_that_is_not_there_names_those_that_are(saved, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["prepare", str(saved), "--out", str(tmp_path / "data"), "--tokenizer", "byte"])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.endswith("has no column `text` of text: name one of body, n with --column\n")
    assert said.count("\n") == 1


def test_lines_of_json_are_read_by_column(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"body": "one"}) + "\n")
    assert [document.text for document in open_source(str(file), column="body").documents()] == ["one"]
    with pytest.raises(DataError, match="or name another --column"):
        list(open_source(str(file)).documents())
