"""Files and folders that other users cannot read: they get their private mode at creation."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raysuite.cluster.process import LOCK, kill_left_behind

MODE = 0o600
TOKEN_BYTES = 32
"""Length of a token in bytes (256 bits)."""
_WRITTEN_S = 10.0
"""Time limit for removing an abandoned folder, in seconds: Ray's workers may write to it until they
end."""


def make_folder(path: Path) -> Path:
    """Make the folder `path` and its missing parents, all with mode 0700."""
    if not path.is_dir():
        make_folder(path.parent)  # `parents=True` would make them with the umask's mode
        path.mkdir(mode=0o700, exist_ok=True)
    return path


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A folder of mode 0700 in the system's temporary folder, removed at the end of the context.

    First, folders with this prefix whose processes were killed are removed. Each folder contains a
    file that its process keeps locked (flock).
    """
    _remove_abandoned(prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    descriptor = None
    try:  # the folder must be removed even if Ctrl-C comes before the lock is made
        fresh = folder / f"{LOCK}.new"
        descriptor = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        fresh.rename(folder / LOCK)  # other processes must not find it before it is locked
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def _remove_abandoned(prefix: str) -> None:
    for lock in Path(tempfile.gettempdir()).glob(f"{prefix}*/{LOCK}"):
        with contextlib.suppress(OSError):  # locked or removed by another process
            found = lock.parent.lstat()
            if found.st_uid != os.getuid() or stat.S_ISLNK(found.st_mode):
                continue
            descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                deadline = time.monotonic() + _WRITTEN_S
                while lock.parent.exists() and time.monotonic() < deadline:
                    # remaining processes would make the folder again, open to others
                    kill_left_behind(str(lock.parent))
                    remove(lock.parent, LOCK)  # the lock last, so that leftovers are found
            finally:
                os.close(descriptor)


def create(path: Path, text: str) -> None:
    """Write a new file with mode 0600.

    Raises FileExistsError if the path exists, even as a broken link.
    """
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, MODE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())


def new_token() -> str:
    """A secret that cannot be guessed, as hexadecimal digits."""
    return secrets.token_hex(TOKEN_BYTES)


def remove(folder: Path, last: str) -> None:
    """Remove a folder as far as possible. Its file `last`, which identifies the folder, is removed
    last, so that another process can find the folder if the removal is interrupted."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != last:
                path.unlink(missing_ok=True)
        if {path.name for path in folder.iterdir()} <= {last}:
            shutil.rmtree(folder, ignore_errors=True)
