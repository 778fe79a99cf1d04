"""Files that are never seen half written, also after a power cut, locks on them, the URIs of
databases, and a digest of raysuite's own files."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
from functools import cache
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote


def write_whole(file: Path, content: bytes, mode: int = 0o666, flush: bool = True) -> None:
    """Write a file and rename it into place: readers and other writers never see a part of it, and
    after a power cut the old content is there, or the new one, unless it is not to be flushed.

    Makes the folder where there is none. Raises OSError.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{secrets.token_hex(8)}.part")
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(part, flags, mode), "wb") as stream:
            stream.write(content)
            if flush:
                _flush(stream)
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if flush:
        flush_names(file.parent)


def append_line(file: Path, line: bytes) -> None:
    """Append a line; it is on disk when this returns. What a writer that was killed left of a line
    is removed. Raises OSError."""
    is_new = not file.exists()
    with file.open("ab+") as stream:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(stream, fcntl.LOCK_EX)
        if size := stream.seek(0, os.SEEK_END):
            stream.seek(size - 1)
            if stream.read(1) != b"\n":
                stream.seek(0)
                stream.truncate(stream.read().rfind(b"\n") + 1)
        stream.write(line + b"\n")
        _flush(stream)
    if is_new:
        flush_names(file.parent)


def read_lines(file: Path) -> list[bytes]:
    """The whole lines of a file, none where it is not there; a cut last line is left out."""
    with contextlib.suppress(FileNotFoundError):
        return file.read_bytes().split(b"\n")[:-1]
    return []


def printable(name: str) -> str:
    """A name of a file, an argument or another text that may have bytes which are no UTF-8, with
    these escaped: `caf\\xe9`."""
    return _SURROGATE.sub(lambda each: rf"\x{ord(each[0]) & 0xFF:02x}", name)


_SURROGATE = re.compile("[\ud800-\udfff]")
"""Python's form of such a byte."""


def flush_folder(folder: Path) -> None:
    """Have all files below a folder on disk, with their names."""
    for path in (*folder.rglob("*"), folder):
        if path.is_dir():
            flush_names(path)
        else:
            with path.open("rb") as stream:
                os.fsync(stream.fileno())


def flush_names(folder: Path) -> None:
    """Have the names in a folder on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # some network file systems flush no folders
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush(stream: IO[bytes]) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def continued_lines(file: Path) -> list[Any]:
    """The values of a JSON Lines file, one a line, before more are appended: what is damaged is
    removed. Raises OSError."""
    found = []
    for line in read_lines(file):
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    write_whole(file, "".join(f"{json.dumps(each)}\n" for each in found).encode())
    return found


def lock(file: Path, how: int) -> int:
    """An open descriptor of `file`, locked by flock(2); the lock ends with the process.

    Whoever holds the lock may remove the file. Raises BlockingIOError with LOCK_NB, and OSError
    where the file system has no locks.
    """
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, how)
            if os.path.samestat(os.fstat(descriptor), os.stat(file)):
                return descriptor
        except FileNotFoundError:
            pass  # removed by the one who held the lock before: the name is free again
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def sqlite_uri(file: Path) -> str:
    """The URI by which SQLAlchemy, and so MLflow, opens an SQLite file, whatever its folder's name.

    SQLAlchemy takes what follows a `?` for options and decodes percent signs. MLflow would make a
    folder of the encoded name, but for a URI that names the driver too.
    """
    path = re.sub("[%?]", lambda found: quote(found[0]), str(file.absolute()))
    driver = "" if path == str(file.absolute()) else "+pysqlite"
    return f"sqlite{driver}:///{path}"


@cache  # a process has the code that it began with
def code_digest() -> str:
    """A digest of all of raysuite's code: what is kept with it outlives no change of any of it."""
    root, told = Path(__file__).parent, hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        told.update(f"{file.relative_to(root)} {file.stat().st_size}\n".encode())
        told.update(file.read_bytes())
    return told.hexdigest()
