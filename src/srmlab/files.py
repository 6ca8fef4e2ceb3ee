"""Files that are there completely or not at all: written under another name, synced, checksummed, renamed.

`write_file` replaces one file; `sealed_folder` makes a whole folder appear, complete or not at all.
`SHA256SUMS` in a sealed folder lists every file, in the format of the command `sha256sum -c`. `check_sums`
finds any change: every byte of the folder is either hashed, or a hash, or a name. In a folder that keeps
growing, some of the files can be sealed by a list of another name: `seal_files`, `check_files`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from srmlab.errors import UserError, reason

SUMS = "SHA256SUMS"
LINE = re.compile(r"([0-9a-f]{64})  ([\w.+/-]+)")


class DamagedFile(Exception):
    """A file that is not what was written. The message names it."""


# --- writing ------------------------------------------------------------------------------------------------


def write_file(path: Path, content: str | bytes) -> None:
    """Replace a file in one stroke: a reader sees the old one or the new one, and never half of it."""
    temporary = path.with_name(f".writing-{path.name}")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        sync(temporary)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextlib.contextmanager
def sealed_folder(target: Path, *, begun: bool = False) -> Iterator[Path]:
    """A folder to write into, which becomes `target` if the block ends well and is removed if it does not.

    What a killed process left there is removed first, unless it was `begun` by others (who write shards).
    """
    temporary = target.with_name(f".writing-{target.name}")
    if not begun:
        shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
        seal(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def seal(temporary: Path, target: Path) -> None:
    """Checksums, then the disk, then the name: whoever sees `target` sees all of it."""
    files = seal_files(temporary, files_in(temporary), SUMS)
    for path in files:
        path.chmod(0o666 & ~umask())  # safetensors makes its files private
        sync(path)
    for folder in {path.parent for path in files}:
        sync(folder)
    remove_folder(target)
    temporary.rename(target)
    sync(target.parent)


def seal_files(folder: Path, files: Iterable[Path], sums: str) -> list[Path]:
    """Write the checksums of `files` to `folder / sums`; all of these files, that one included."""
    listed = list(files)
    lines = [f"{sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in listed]
    write_file(folder / sums, "".join(lines))
    return [*listed, folder / sums]


def remove_folder(folder: Path) -> None:
    """Rename first: a removal that is cut short leaves no half folder under the name."""
    if folder.exists():
        doomed = folder.with_name(f".removing-{folder.name}")
        shutil.rmtree(doomed, ignore_errors=True)
        folder.rename(doomed)
        shutil.rmtree(doomed)


def sweep_leftovers(folder: Path) -> None:
    """Remove what a killed process left half written or half removed."""
    for pattern in (".writing-*", ".removing-*"):
        for path in folder.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def sync(path: Path) -> None:
    """A file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def umask() -> int:
    """The permissions that this process does not give; they can only be read by setting them."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


# --- refusing -----------------------------------------------------------------------------------------------


def occupied(path: Path) -> bool:
    """Whether something is there that would be overwritten; an empty folder is not."""
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def refuse_unwritable(path: Path, choose: str = "--out") -> None:
    """Before the work: refuse a place where something is already, or where nothing can be written."""
    if occupied(path):
        raise UserError(f"{path} exists and is not overwritten: choose another {choose}, or delete it")
    place = path.absolute()
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    if not os.access(there, os.W_OK):
        raise UserError(f"cannot write {path} (no permission in {there}): choose another {choose}")


@contextlib.contextmanager
def writing(out: Path | None, choose: str = "--out") -> Iterator[None]:
    """An error of the system while something is written, as one line that names what to choose instead."""
    try:
        yield
    except OSError as error:
        where = str(error.filename or out).replace(".writing-", "")  # the name it would have had
        raise UserError(f"cannot write {where} ({reason(error)}): choose another {choose}") from None


# --- checking -----------------------------------------------------------------------------------------------


def sealed(folder: Path) -> bool:
    """Whether nothing may be added to the folder: an export, a checkpoint, the shipped run."""
    return (folder / SUMS).is_file()


def check_sums(folder: Path) -> None:
    """Raise `DamagedFile` unless the folder is, to the bit, what was sealed."""
    listed = read_sums(folder / SUMS)
    present = {path.relative_to(folder).as_posix() for path in files_in(folder)} - {SUMS}
    for name in sorted(present ^ set(listed)):
        raise DamagedFile(f"{name} is missing" if name in listed else f"{name} is not listed in {SUMS}")
    compare(folder, listed)


def check_files(folder: Path, sums: str) -> None:
    """The same for the files that `folder / sums` lists; others may come and go."""
    compare(folder, read_sums(folder / sums))


def read_sums(path: Path) -> dict[str, str]:
    """The expected sha256 of every listed file, by name."""
    try:
        lines = path.read_text(encoding="ascii").split("\n")
    except FileNotFoundError:
        raise DamagedFile(f"{path.name} is missing") from None
    except (OSError, UnicodeDecodeError):
        raise DamagedFile(f"{path.name} is damaged") from None
    matches = [LINE.fullmatch(line) for line in lines[:-1]]
    if lines[-1] or not matches or not all(matches):
        raise DamagedFile(f"{path.name} is damaged")
    return {match[2]: match[1] for match in matches if match}


def compare(folder: Path, listed: Mapping[str, str]) -> None:
    for name, expected in listed.items():
        try:
            found = sha256(folder / name)
        except FileNotFoundError:
            raise DamagedFile(f"{name} is missing") from None
        except OSError as error:
            raise DamagedFile(f"{name} cannot be read ({error.strerror})") from None
        if found != expected:
            raise DamagedFile(f"{name} is damaged (its sha256 differs)")


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def sha256(path: Path) -> str:
    """The hash of a file's content, as `sha256sum` gives it."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- naming -------------------------------------------------------------------------------------------------


def short_names(paths: Sequence[str | Path]) -> list[str]:
    """As much of the end of the paths as tells them apart.

    >>> short_names(["runs/a/seed-0", "runs/b/seed-0"])
    ['a/seed-0', 'b/seed-0']
    """
    parts = [Path(os.path.abspath(path)).parts for path in paths]
    different, length = len(set(parts)), 1
    while len({own[-length:] for own in parts}) < different:
        length += 1
    return ["/".join(own[-length:]) for own in parts]
