"""Locks on files that their holder removes."""

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
