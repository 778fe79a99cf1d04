"""Atomic and durable writes of files, locks on files, the URIs of SQLite databases, and a digest of
raysuite's source code."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote


def write_whole(file: Path, content: bytes, mode: int = 0o666, flush: bool = True) -> None:
    """Write a file under a temporary name and rename it: no other process sees an incomplete file.
    With `flush`, the file has either its old or its new content after a power failure.

    Creates the folder if it does not exist. Raises OSError.
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


@contextlib.contextmanager
def appearing(file: Path) -> Iterator[Path]:
    """Yield a hidden name next to `file`. At the end of the context, the file with this name is
    flushed to disk and renamed to `file`; after an error it is removed.

    For a library that writes to a file name; only one process may write `file` at a time.
    Raises OSError.
    """
    part = file.with_name(f".{file.name}.part")
    try:
        yield part
        with part.open("rb") as stream:
            os.fsync(stream.fileno())
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    flush_names(file.parent)


def append_line(file: Path, line: bytes) -> None:
    """Append a line, and flush it to disk. An incomplete last line, which a killed writer left, is
    removed first. Raises OSError."""
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
    """The lines of a file, except an incomplete last line; empty if the file does not exist."""
    with contextlib.suppress(FileNotFoundError):
        return file.read_bytes().split(b"\n")[:-1]
    return []


def printable(name: str) -> str:
    """Escape the bytes that are not UTF-8 in a file name, argument or other text: `caf\\xe9`."""
    return _SURROGATE.sub(lambda each: rf"\x{ord(each[0]) & 0xFF:02x}", name)


_SURROGATE = re.compile("[\ud800-\udfff]")
"""Python's representation of bytes that are not UTF-8 (PEP 383)."""


def flush_folder(folder: Path) -> None:
    """Flush all files and directory entries below a folder to disk."""
    for path in (*folder.rglob("*"), folder):
        if path.is_dir():
            flush_names(path)
        else:
            with path.open("rb") as stream:
                os.fsync(stream.fileno())


def flush_names(folder: Path) -> None:
    """Flush the directory entries of a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # some network file systems cannot flush folders
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush(stream: IO[bytes]) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def continued_lines(file: Path) -> list[Any]:
    """Read the values of a JSON Lines file, and rewrite the file without damaged lines, so that
    further lines can be appended. Raises OSError."""
    found = []
    for line in read_lines(file):
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    write_whole(file, "".join(f"{json.dumps(each)}\n" for each in found).encode())
    return found


def lock(file: Path, how: int) -> int:
    """Open `file` and lock it by flock(2); return the descriptor. The lock ends with the process.

    The process that holds the lock may remove the file. Raises BlockingIOError with LOCK_NB if the
    lock is taken, and OSError if the file system has no locks.
    """
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, how)
            if os.path.samestat(os.fstat(descriptor), os.stat(file)):
                return descriptor
        except FileNotFoundError:
            pass  # removed by the previous holder of the lock: the name is free again
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def sqlite_uri(file: Path) -> str:
    """The URI with which SQLAlchemy, and so MLflow, opens an SQLite file at any path.

    SQLAlchemy reads the text after a `?` as options, and decodes percent-encoded characters. If the
    URI does not name the driver, MLflow creates a folder with the percent-encoded name.
    """
    path = re.sub("[%?]", lambda found: quote(found[0]), str(file.absolute()))
    driver = "" if path == str(file.absolute()) else "+pysqlite"
    return f"sqlite{driver}:///{path}"


@cache  # a running process keeps the code that it has loaded
def code_digest() -> str:
    """SHA-256, as hex digits, of the paths and contents of all Python files of raysuite."""
    root, told = Path(__file__).parent, hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        told.update(f"{file.relative_to(root)} {file.stat().st_size}\n".encode())
        told.update(file.read_bytes())
    return told.hexdigest()
