"""Sources yield their documents in one order, lose no text, and say in a line what is wrong."""

import gzip
import importlib.util
import io
import json
import sys
import types

import pyarrow
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from srmlab.data import DataError, Document, open_source, source_fingerprint
from srmlab.data.corpora import SOTU_FINGERPRINT, Speeches, sections
from srmlab.errors import Notice


def texts(spec, **options):
    return [document.text for document in open_source(spec, **options).documents()]


def test_the_speeches_come_by_date_complete_and_without_importing_their_package():
    source = open_source("sotu")
    documents = list(source.documents())
    assert len(documents) == 249
    assert documents[0].id == "1790-Washington-1"
    assert [d.id[:4] for d in documents] == sorted(d.id[:4] for d in documents)
    assert sum(len(d.utf8()) for d in documents) == source.total_bytes == 12_185_751
    assert source_fingerprint(source) == SOTU_FINGERPRINT
    assert "sotu" not in sys.modules


def test_missing_speeches_name_the_install_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DataError, match=r'pip install "srmlab\[demo\]"'):
        open_source("sotu")


def test_other_speeches_than_the_pinned_ones_are_refused(monkeypatch, tmp_path):
    (tmp_path / "data" / "speeches").mkdir(parents=True)
    (tmp_path / "data" / "speeches" / "a.txt").write_text("My fellow citizens")
    (tmp_path / "data" / "metadata.csv").write_text("fileid\na\n")
    fake = types.SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: fake)
    with pytest.raises(DataError, match=r"not 0\.1\.2.*force-reinstall"):
        Speeches.find()
    (tmp_path / "data" / "speeches" / "a.txt").unlink()
    with pytest.raises(DataError, match="incomplete"):
        Speeches.find()


def test_the_standard_library_is_there_without_its_tests():
    source = open_source("python-stdlib")
    names = [document.id for document in source.documents()]
    assert len(names) > 300
    assert names == sorted(names)
    assert "json/decoder.py" in names
    assert not [
        name for name in names if "/test/" in name or "site-packages" in name or name.startswith("test/")
    ]


def write_every_format(folder):
    rows = [{"text": "one é"}, {"text": "two\n\nlines"}]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (folder / "a.txt").write_text("plain ☃")
    (folder / "b.md").write_text("# mark")
    (folder / "c.jsonl").write_bytes(lines + b"\n")
    (folder / "d.jsonl.gz").write_bytes(gzip.compress(lines))
    (folder / "e.txt.gz").write_bytes(gzip.compress(b"packed"))
    frames = [zstandard.compress(part.encode()) for part in ("first frame, ", "second frame")]
    (folder / "f.txt.zst").write_bytes(b"".join(frames))
    parquet.write_table(pyarrow.table({"n": [1, 2], "text": ["three", None]}), folder / "g.parquet")
    (folder / "ignored.png").write_bytes(b"\x89PNG")
    (folder / ".hidden.txt").write_text("hidden")


EVERY_TEXT = [
    "plain ☃",
    "# mark",
    *["one é", "two\n\nlines"] * 2,
    "packed",
    "first frame, second frame",
    "three",
]


def test_a_folder_is_read_in_every_format_sorted_by_name(tmp_path):
    write_every_format(tmp_path)
    assert texts(str(tmp_path)) == EVERY_TEXT
    assert open_source(str(tmp_path)).total_bytes is None


def test_globs_and_several_paths_are_read_in_order_each_file_once(tmp_path):
    write_every_format(tmp_path)
    assert texts(str(tmp_path / "*.md")) == ["# mark"]
    assert texts([str(tmp_path / "b.md"), str(tmp_path / "[ab].*")]) == ["# mark", "plain ☃"]


def test_a_named_file_is_read_as_text_whatever_its_ending(tmp_path):
    (tmp_path / "notes.org").write_text("* heading")
    assert texts(str(tmp_path / "notes.org")) == ["* heading"]


def test_line_ends_are_kept_and_a_byte_order_mark_is_not(tmp_path):
    (tmp_path / "windows.txt").write_bytes(b"\xef\xbb\xbfa\r\nb\rc")
    assert texts(str(tmp_path / "windows.txt")) == ["a\r\nb\rc"]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-le"])
def test_text_that_is_not_utf8_is_read_with_a_notice(tmp_path, encoding):
    (tmp_path / "other.txt").write_bytes("caf\u00e9\r\n".encode(encoding))
    with pytest.warns(Notice, match=r"other.txt has U\+FFFD or NUL characters, .* convert it first: iconv"):
        (text,) = texts(str(tmp_path / "other.txt"))
    assert encoding != "latin-1" or text == "caf\ufffd\r\n"


@settings(max_examples=200, deadline=None)
@given(text=st.text("ab \n", max_size=200), chars=st.integers(1, 40))
def test_sections_are_short_and_joined_are_the_file(text, chars):
    pieces = list(sections(io.StringIO(text, newline=""), chars))
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= chars for piece in pieces)


def test_a_long_file_is_cut_at_paragraphs(tmp_path):
    paragraph = "word " * 15 + "\n\n"
    (tmp_path / "book.txt").write_text(paragraph * 50)
    pieces = texts(str(tmp_path / "book.txt"), section_chars=200)
    assert len(pieces) > 20
    assert all(piece.endswith("\n\n") for piece in pieces)


def test_a_small_text_is_cut_into_enough_sections_to_be_split(tmp_path):
    for chars, size in ((20_000, 256), (400_000, 400_000 // 256), (8_000_000, 16384)):
        text = "".join(f"line {n}\n" for n in range(chars // 6))[:chars]
        (tmp_path / "book.txt").write_text(text)
        source = open_source(str(tmp_path / "book.txt"))
        pieces = [document.text for document in source.documents()]
        assert "".join(pieces) == text
        assert max(map(len, pieces)) <= size
        assert len(pieces) >= min(256, chars // 256)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "fine"}\nnot json\n', "line 2"),
        ("a.jsonl", b'{"body": "no text"}\n', "line 1"),
        ("a.jsonl", b'["text"]\n', "line 1"),
        ("a.txt.gz", b"not gzip", "cannot be read"),
        ("a.txt.gz", gzip.compress(b"x" * 1000, mtime=0)[:-12], "cannot be read"),
        ("a.txt.zst", b"not zstandard", "cannot be read"),
        ("a.parquet", b"not parquet", "cannot be read"),
    ],
)
def test_a_broken_file_is_named_in_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as refusal:
        texts(str(tmp_path / name))
    assert name in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_parquet_without_a_text_column_is_refused(tmp_path):
    parquet.write_table(pyarrow.table({"body": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="no column `text`"):
        texts(str(tmp_path / "a.parquet"))


def test_a_path_that_is_not_there_and_an_empty_folder_name_the_alternatives(tmp_path):
    with pytest.raises(DataError, match=r"is not there: give sotu, python-stdlib"):
        open_source(str(tmp_path / "missing"))
    with pytest.raises(DataError, match=r"holds no \.txt"):
        open_source(str(tmp_path))


@pytest.mark.parametrize("name", ["a.txt.zst", "a.parquet"])
def test_a_format_whose_package_is_missing_names_the_extra(monkeypatch, tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DataError, match=r'pip install "srmlab\[text\]"'):
        open_source(str(tmp_path / name))


class FakeHub:
    """Stands in for the packages `datasets` and `huggingface_hub`."""

    def __init__(self, monkeypatch, rows=(), error=None, unreachable=None):
        self.rows, self.error, self.unreachable, self.calls = rows, error, unreachable, []
        constants = types.SimpleNamespace(HF_HUB_OFFLINE=False)
        hub = types.SimpleNamespace(constants=constants, HfApi=lambda: self)
        monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
        monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=self.load_dataset))

    def dataset_info(self, _name, timeout):
        assert timeout
        if self.unreachable:
            raise self.unreachable

    def load_dataset(self, name, config, *, split, streaming):
        self.calls.append((name, config, split, streaming))
        if self.error:
            raise self.error
        return iter(self.rows)


@pytest.fixture(autouse=True)
def _datasets_are_found_without_being_imported(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "datasets" or real(name))


def test_a_hub_dataset_is_streamed_by_name_config_and_split(monkeypatch):
    hub = FakeHub(monkeypatch, rows=[{"text": "one"}, {"text": "two"}])
    source = open_source("hf:owner/name@small:validation")
    assert list(source.documents()) == [
        Document("hf:owner/name@small:validation#0", "one"),
        Document("hf:owner/name@small:validation#1", "two"),
    ]
    assert hub.calls == [("owner/name", "small", "validation", True)]
    assert open_source("hf:owner/name").name == "hf:owner/name:train"


def test_without_a_connection_the_alternatives_are_named_in_one_line(monkeypatch):
    hub = FakeHub(monkeypatch, unreachable=ConnectionError("no route"))
    with pytest.raises(DataError, match=r"no connection .* sotu, python-stdlib") as refusal:
        texts("hf:owner/name")
    assert "\n" not in str(refusal.value)
    assert hub.calls == []  # `datasets` would retry for half a minute


def test_an_unknown_dataset_and_one_without_texts_are_refused(monkeypatch):
    FakeHub(monkeypatch, error=ValueError("Unknown split\nmore lines"))
    with pytest.raises(DataError, match=r"Unknown split\): check the name"):
        texts("hf:owner/name:nothing")
    FakeHub(monkeypatch, rows=[{"image": 1}])
    with pytest.raises(DataError, match="no column `text`"):
        texts("hf:owner/name")
    with pytest.raises(DataError, match="does not name a dataset"):
        open_source("hf:")


def test_the_hub_without_its_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DataError, match=r'pip install "srmlab\[hf\]"'):
        open_source("hf:owner/name")


def test_the_fingerprint_of_a_source_depends_on_texts_and_their_order(tmp_path):
    write_every_format(tmp_path)
    before = source_fingerprint(open_source(str(tmp_path)))
    assert source_fingerprint(open_source(str(tmp_path))) == before
    (tmp_path / "b.md").rename(tmp_path / "z.md")
    assert source_fingerprint(open_source(str(tmp_path))) != before
