"""A file is written whole or not at all, and sealed files are to the bit what was written."""

import os

import pytest

from srmlab.errors import UserError
from srmlab.files import (
    DamagedFile,
    check_files,
    check_sums,
    refuse_unwritable,
    seal_files,
    sealed,
    sealed_folder,
    sha256,
    short_names,
    write_file,
)


@pytest.mark.parametrize("content", ["zwölf\n", b"\x00\xff"])
def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path, content):
    path = tmp_path / "file"
    for _ in range(2):
        write_file(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(TypeError):
        write_file(path, 3)  # pyright: ignore
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_file(tmp_path / "folder", "new")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "folder"]
    assert path.read_text() == "old"


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    with pytest.raises(FileNotFoundError), sealed_folder(tmp_path / "folder") as folder:
        (folder / "a").rename(folder / "b")
    assert list(tmp_path.iterdir()) == []
    with sealed_folder(tmp_path / "folder") as folder:
        (folder / "a").write_text("a")
        assert not (tmp_path / "folder").exists()
    assert sealed(tmp_path / "folder")
    check_sums(tmp_path / "folder")
    (tmp_path / "folder/b").touch()
    with pytest.raises(DamagedFile, match="b is not listed in SHA256SUMS"):
        check_sums(tmp_path / "folder")


def test_what_a_killed_process_left_is_not_sealed_into_the_next_folder(tmp_path):
    killed = tmp_path / ".writing-folder"
    killed.mkdir()
    (killed / "tokenizer").write_text("of another model")
    with sealed_folder(tmp_path / "folder") as folder:
        (folder / "a").write_text("a")
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["SHA256SUMS", "a"]


def test_a_folder_that_others_have_begun_keeps_what_they_wrote(tmp_path):
    begun = tmp_path / ".writing-folder"
    begun.mkdir()
    (begun / "shard").write_text("1")
    with sealed_folder(tmp_path / "folder", begun=True) as folder:
        (folder / "a").write_text("a")
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["SHA256SUMS", "a", "shard"]


def test_some_files_of_a_folder_can_be_sealed_while_others_come_and_go(tmp_path):
    (tmp_path / "fixed").write_text("1")
    seal_files(tmp_path, [tmp_path / "fixed"], "some.sha256")
    (tmp_path / "free").write_text("2")
    check_files(tmp_path, "some.sha256")
    assert not sealed(tmp_path)
    (tmp_path / "fixed").write_text("2")
    with pytest.raises(DamagedFile, match="fixed is damaged"):
        check_files(tmp_path, "some.sha256")


def test_the_hash_is_that_of_sha256sum(tmp_path):
    (tmp_path / "file").write_text("abc")
    assert sha256(tmp_path / "file") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["x/a", "x/b"], ["a", "b"]),
        (["x/a", "x/a"], ["a", "a"]),
        (["x/a/b", "y/a/b", "y/c/b"], ["x/a/b", "y/a/b", "y/c/b"]),
        (["a, seed 0", "a, seed 1"], ["a, seed 0", "a, seed 1"]),  # names that are no paths stay
    ],
)
def test_as_much_of_a_path_is_shown_as_tells_it_from_the_others(paths, names):
    assert short_names(paths) == names


def test_a_place_is_refused_before_the_work_if_it_is_taken_or_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    for free in ("empty", "new", "new/below"):
        refuse_unwritable(tmp_path / free)
    (tmp_path / "taken").write_text("x")
    with pytest.raises(UserError, match="taken exists and is not overwritten: choose another --view"):
        refuse_unwritable(tmp_path / "taken", "--view")
    asked = []
    monkeypatch.setattr("os.access", lambda *given: asked.append(given))  # None: not allowed
    with pytest.raises(UserError, match=r"cannot write .*below \(no permission in .*\): choose another"):
        refuse_unwritable(tmp_path / "new/below")
    assert asked == [(tmp_path, os.W_OK)]  # of what is there
