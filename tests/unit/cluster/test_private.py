"""Temporary folders: closed to others, removed with their process, also when that was killed."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest

from raysuite.cluster import private

HOLD = """
import os, subprocess, sys, time
from raysuite.cluster import private
with private.temporary_folder("rs-") as folder:
    (folder / "deep").mkdir()
    (folder / "deep" / "file").touch()
    words = [sys.executable, "-c", "import time; time.sleep(300)", f"{folder}/deep"]
    child = subprocess.Popen(words, env={**os.environ, "RAY_TMPDIR": str(folder)})
    print(folder, child.pid, flush=True)
    time.sleep(300)
"""


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_closed_whatever_the_umask_and_goes_with_the_context(scratch: Path) -> None:
    before = os.umask(0)
    try:
        with private.temporary_folder("rs-") as folder:
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    finally:
        os.umask(before)
    assert list(scratch.iterdir()) == []


def test_a_folder_is_removed_if_ctrl_c_comes_before_its_lock(scratch: Path) -> None:
    make = os.open

    def interrupted(path: Path, *given: int, **named: int) -> int:
        made = make(path, *given, **named)
        if str(path).endswith(".new"):
            raise KeyboardInterrupt
        return made

    with (
        patch.object(os, "open", interrupted),
        pytest.raises(KeyboardInterrupt),
        private.temporary_folder("rs-"),
    ):
        pass
    assert [*scratch.iterdir()] == []


def test_a_folder_that_another_removed_ends_no_program(scratch: Path) -> None:
    with private.temporary_folder("rs-") as folder:
        shutil.rmtree(folder)
    assert list(scratch.iterdir()) == []


def test_only_what_a_killed_process_left_is_removed(scratch: Path) -> None:
    for name in ("rs-unlocked", "other-x"):
        (scratch / name).mkdir()
    (scratch / "other-x" / "lock").touch()
    (scratch / "rs-link").symlink_to(scratch / "other-x")
    kept = set(scratch.iterdir())
    words = [sys.executable, "-c", HOLD]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as holding:
        assert holding.stdout is not None
        folder_name, child = holding.stdout.readline().split()
        left = Path(folder_name)
        with private.temporary_folder("rs-"):
            assert (left / "deep" / "file").exists()  # its process lives
        holding.send_signal(signal.SIGKILL)
    assert left.exists()
    assert psutil.pid_exists(int(child))
    with private.temporary_folder("rs-") as folder:
        assert set(scratch.iterdir()) == kept | {folder}
        assert not psutil.pid_exists(int(child))
    assert set(scratch.iterdir()) == kept


def test_a_folder_that_cannot_be_removed_whole_stays_known(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "rs-x", tmp_path / "elsewhere"
    for path in (folder / "a" / "b", elsewhere):
        path.mkdir(parents=True)
        (path / "file").touch()
    (folder / "nonce").touch()
    (folder / "link").symlink_to(elsewhere)
    with patch("shutil.rmtree"):  # as if its process were killed meanwhile
        private.remove(folder, last="nonce")
    assert {path.name for path in folder.iterdir()} == {"nonce", "a"}
    private.remove(folder, last="nonce")
    assert not folder.exists()
    assert (elsewhere / "file").exists()
    private.remove(folder, last="nonce")
