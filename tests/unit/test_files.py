"""Locks on files that their holder removes, and files that were written in part."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from raysuite import files


def test_a_lock_is_on_the_file_that_has_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removes the file and makes it anew, before this one has the lock."""
    file, locked = tmp_path / "lock", []

    def flock(descriptor: int, how: int) -> None:
        if not locked:
            file.rename(tmp_path / "before")
            file.touch()
        locked.append(descriptor)
        fcntl_flock(descriptor, how)

    fcntl_flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", flock)
    descriptor = files.lock(file, fcntl.LOCK_EX)
    assert len(locked) == 2
    assert os.path.samestat(os.fstat(descriptor), file.stat())
    os.close(descriptor)


def test_a_lock_that_is_taken_leaves_nothing_open(tmp_path: Path) -> None:
    descriptor = files.lock(tmp_path / "lock", fcntl.LOCK_EX)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BlockingIOError):
        files.lock(tmp_path / "lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert os.listdir("/proc/self/fd") == before
    os.close(descriptor)


def test_a_write_that_fails_leaves_the_old_content_and_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "folder" / "file"
    files.write_whole(file, b"old", mode=0o600)
    assert file.stat().st_mode & 0o777 == 0o600

    def fail(descriptor: int) -> None:
        raise OSError("disk failed")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk failed"):
        files.write_whole(file, b"new")
    assert [(each.name, each.read_bytes()) for each in file.parent.iterdir()] == [("file", b"old")]
    files.write_whole(file, b"new", flush=False)
    assert file.read_bytes() == b"new"


def test_damaged_lines_are_dropped_and_an_incomplete_one_is_written_over(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    assert files.read_lines(file) == files.continued_lines(file) == []
    file.write_bytes(b'{"a": 1}\nda\xffmaged\n[2]\n{"cut": ')
    assert files.read_lines(file) == [b'{"a": 1}', b"da\xffmaged", b"[2]"]
    assert files.continued_lines(file) == [{"a": 1}, [2]]
    assert file.read_bytes() == b'{"a": 1}\n[2]\n'
    file.write_bytes(b"one\ncut")
    for line in (b"two", b"three"):
        files.append_line(file, line)
    assert file.read_bytes() == b"one\ntwo\nthree\n"
    file.write_bytes(b"cut")
    files.append_line(file, b"one")
    assert file.read_bytes() == b"one\n"


def test_bytes_that_are_not_utf8_are_printed_as_escapes() -> None:
    name = os.fsdecode("caf\u00e9 ".encode() + b"caf\xe9\x80")
    assert files.printable(name) == r"café caf\xe9\x80"
