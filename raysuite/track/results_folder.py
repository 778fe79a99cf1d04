"""A results folder's identity, and the lock under which it is written to MLflow."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from raysuite.files import flush_names, write_whole
from raysuite.records import Results

ID_FILE = "results.id"
PATIENCE = 60.0
"""Longest time to wait for another sync of the same folder to end, in seconds."""


def results_id(folder: Path) -> str:
    """32 hex digits that identify this folder's results, even after the folder is moved.

    The first call writes the digits into the folder. If the folder is not writable, the digits are
    a hash of the plan and the folder's name.
    """
    file = folder / ID_FILE
    if not _told(file):
        part = folder / f".{ID_FILE}.{uuid.uuid4().hex}"
        try:
            try:
                write_whole(part, f"{uuid.uuid4().hex}\n".encode())
                with suppress(FileExistsError):
                    os.link(part, file)  # unlike a rename, this keeps another process's file
                if not _told(file):  # a power failure erased its content
                    part.replace(file)
                flush_names(folder)
            finally:
                part.unlink(missing_ok=True)
        except OSError:
            if not _told(file):
                plan = (folder / "plan.json").read_bytes()
                return hashlib.sha256(plan + folder.resolve().name.encode()).hexdigest()[:32]
    return _told(file)


def _told(file: Path) -> str:
    """The id in `file`; empty if the file is missing, empty, or filled with zero bytes."""
    with suppress(FileNotFoundError):
        return file.read_text("ascii").strip("\0 \n")
    return ""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes; continue without a lock if it cannot be locked.

    Raises TimeoutError if another process holds the lock for longer than PATIENCE.
    """
    lock = FileLock(folder / ".sync.lock")
    try:
        lock.acquire(PATIENCE)
    except Timeout as error:
        raise TimeoutError("another process is still writing the same results folder") from error
    except (OSError, NotImplementedError):  # no write access, or no locks in the file system
        pass
    try:
        yield
    finally:
        lock.release()


def digest(*files: Path) -> str:
    """A hash (16 hex digits) of the names and contents of those files that exist."""
    total = hashlib.sha256()
    for file in files:
        if file.is_file():
            total.update(file.name.encode())
            total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()[:16]


def experiment_name(results: Results) -> str:
    """The spec's `name`; for a folder without plans, the name of the folder."""
    plans, search = results.plans(), results.search()
    if search is not None:
        return str(search["name"])
    return str(plans[0]["spec"]["name"]) if plans else results.folder.resolve().name
