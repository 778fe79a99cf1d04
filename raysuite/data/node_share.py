"""A folder in memory (/dev/shm) that a node's processes map: the first process makes the folder,
and the last process removes it.

Two locks per folder control its creation and removal; a process that ends loses its locks:

    KEY.making   exclusive, while a process looks for, makes or removes the folder
    KEY.users    shared by all processes that use the folder

NAME.found has the result of `found_once` and its time, for the processes that waited.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import stat
import tempfile
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import psutil

from raysuite.cgroups import memory_left
from raysuite.errors import DataError
from raysuite.files import lock
from raysuite.units import human_bytes

LARGEST_SHARE = 0.8
"""Largest share of the free memory that a new folder may take: training needs the rest."""


class NodeShare:
    """The node's copy of the files that `write` writes, in the folder `path`, valid until `close`.

    `write(folder)` writes at most `size()` bytes. One process of the node calls `write` if the
    folder does not exist; all others wait.

    Raises DataError if there is not enough free memory, and the errors of `write`.
    """

    def __init__(self, key: str, size: Callable[[], int], write: Callable[[Path], None]) -> None:
        locks = _locks()
        self.path = locks / key
        making = lock(locks / f"{key}.making", fcntl.LOCK_EX)
        try:
            _remove_unused(locks)
            users = lock(locks / f"{key}.users", fcntl.LOCK_SH)
            try:
                if not self.path.is_dir():
                    _make(self.path, size(), write)
            except BaseException:
                os.close(users)
                _remove_if_unused(locks, key)
                raise
        finally:
            os.close(making)
        # `_leave` is called by `close`, when the interpreter ends, or when this object is
        # garbage-collected
        self._leave = weakref.finalize(self, _leave, locks, key, users)

    def close(self) -> None:
        """Stop using the folder; the last user removes it. Mapped arrays stay valid."""
        self._leave()


def found_once(name: str, find: Callable[[], str], folder: Path | None = None) -> str:
    """Call `find` in one process of the node, and return its result. Processes that call this
    function meanwhile wait, and return the same result.

    `folder`: where the file with the result is (default: in the node's memory); nodes may share a
    folder, because each node has its own file there. If the folder's file system has no locks,
    every process calls `find`.
    """
    asked = time.monotonic()  # all processes of a node share this clock
    file = _locks() / name if folder is None else folder / f".{socket.gethostname()}-{name}"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        found = lock(file.with_name(f"{file.name}.found"), fcntl.LOCK_EX)
    except OSError:
        return find()
    try:
        when, _, text = os.pread(found, 4096, 0).decode().partition(" ")
        if when and asked <= float(when) <= time.monotonic():
            return text
        text = find()
        with contextlib.suppress(OSError):  # disk full: the other processes call `find` themselves
            os.ftruncate(found, 0)
            os.pwrite(found, f"{time.monotonic()} {text}".encode(), 0)
        return text
    finally:
        os.close(found)


def memory_root() -> Path:
    """The node's folder in memory, private to this user."""
    shm = Path("/dev/shm")
    root = shm if shm.is_dir() else Path(tempfile.gettempdir())
    return root / f"raysuite-{os.getuid()}"


def _locks() -> Path:
    root = memory_root()
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=0o700)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise DataError(
            f"{root} is not your folder; ask its owner or an administrator to remove it"
        )
    return root


def _make(path: Path, size: int, write: Callable[[Path], None]) -> None:
    """Write the folder. Raises DataError if `size` is more than the memory that may be used."""
    memory = min(shutil.disk_usage(path.parent).free, int(LARGEST_SHARE * free_memory()))
    if size > memory:
        raise DataError(
            f"the decoded samples need {human_bytes(size)}, but only {human_bytes(memory)} may be "
            f"used (the smaller of the free space of {path.parent} and {LARGEST_SHARE:.0%} of the "
            "free memory); choose another loader"
        )
    partial = _partial(path)
    shutil.rmtree(partial, ignore_errors=True)  # left by a killed process
    try:
        partial.mkdir()
        write(partial)
        partial.rename(path)
    except OSError as error:
        raise DataError(
            f"{human_bytes(size)} of decoded samples cannot be kept in {path.parent} ({error}); "
            "choose another loader"
        ) from error


def free_memory() -> int:
    """Bytes that this process can use without swapping: the smallest of the values of the machine
    and of the process's cgroups."""
    free: int = psutil.virtual_memory().available
    return max(0, min([free, *memory_left()]))


def _leave(locks: Path, key: str, users: int) -> None:
    os.close(users)
    with contextlib.suppress(OSError):  # the whole root was removed
        making = lock(locks / f"{key}.making", fcntl.LOCK_EX)
        _remove_if_unused(locks, key)
        os.close(making)
        for path in locks.glob("*.found"):
            with contextlib.suppress(BlockingIOError):  # `find` is running, or has just ended
                found = lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                os.close(found)


def _remove_unused(locks: Path) -> None:
    """Remove the folders that killed processes have left."""
    for path in locks.glob("*.making"):
        try:
            making = lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process makes or removes the folder
            continue
        _remove_if_unused(locks, path.stem)
        os.close(making)


def _remove_if_unused(locks: Path, key: str) -> None:
    """Remove a folder and its locks, unless a process uses it. The lock `making` must be held."""
    name = locks / f"{key}.users"
    try:
        users = lock(name, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    shutil.rmtree(locks / key, ignore_errors=True)
    shutil.rmtree(_partial(locks / key), ignore_errors=True)
    name.unlink()
    (locks / f"{key}.making").unlink()
    os.close(users)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}")
