"""Files that are either all there or not there: written beside, synced, checksummed, renamed.

`sealed_folder` makes a folder appear complete or not at all; `SHA256SUMS` in it lists every file, in the
format of the command `sha256sum -c`. `check_sums` finds any change: every byte of the folder is either
hashed, or a hash, or a name.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from srmlab.data.writing import sync

SUMS = "SHA256SUMS"
LINE = re.compile(r"([0-9a-f]{64})  ([\w.+/-]+)")


class DamagedFile(Exception):
    """A file that is not what was written. The message names it."""


@contextlib.contextmanager
def sealed_folder(target: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `target` if the block ends well and is removed if it does not.

    What is in it already (shards that other processes wrote) stays.
    """
    temporary = target.with_name(f".writing-{target.name}")
    temporary.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
        seal(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def seal(temporary: Path, target: Path) -> None:
    """Checksums, then the disk, then the name: whoever sees `target` sees all of it."""
    files = sorted(path for path in temporary.rglob("*") if path.is_file())
    lines = [f"{digest(path)}  {path.relative_to(temporary).as_posix()}\n" for path in files]
    (temporary / SUMS).write_text("".join(lines), encoding="utf-8")
    for path in [*files, temporary / SUMS]:
        path.chmod(0o666 & ~umask())  # safetensors makes its files private
        sync(path)
    for folder in {path.parent for path in files} | {temporary}:
        sync(folder)
    remove_folder(target)
    temporary.rename(target)
    sync(target.parent)


def sealed(folder: Path) -> bool:
    """Whether nothing may be added to the folder: an export, a checkpoint, the shipped run."""
    return (folder / SUMS).is_file()


def check_sums(folder: Path) -> None:
    """Raise `DamagedFile` unless the folder is, to the bit, what was sealed."""
    try:
        lines = (folder / SUMS).read_text(encoding="ascii").split("\n")
    except FileNotFoundError:
        raise DamagedFile(f"{SUMS} is missing") from None
    except (OSError, UnicodeDecodeError):
        raise DamagedFile(f"{SUMS} is damaged") from None
    matches = [LINE.fullmatch(line) for line in lines[:-1]]
    if lines[-1] or not matches or not all(matches):
        raise DamagedFile(f"{SUMS} is damaged")
    listed = {match[2]: match[1] for match in matches if match}
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {SUMS}
    for name in sorted(present ^ set(listed)):
        raise DamagedFile(f"{name} is missing" if name in listed else f"{name} is not listed in {SUMS}")
    for name, expected in listed.items():
        try:
            found = digest(folder / name)
        except OSError as error:
            raise DamagedFile(f"{name} cannot be read ({error.strerror})") from None
        if found != expected:
            raise DamagedFile(f"{name} is damaged (its sha256 differs)")


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


def write_file(path: Path, content: str) -> None:
    """Replace a file in one stroke."""
    temporary = path.with_name(f".writing-{path.name}")
    temporary.write_text(content, encoding="utf-8")
    sync(temporary)
    temporary.rename(path)
    sync(path.parent)


def digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def umask() -> int:
    """The permissions that this process does not give; they can only be read by setting them."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
