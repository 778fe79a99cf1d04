"""What of a stand-in lies on disk already: complete, begun, or something else in its place."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from raysuite.data.synthesis.pictures import VERSION
from raysuite.data.synthesis.stand_in import Chunk, StandIn
from raysuite.data.synthesis.writers import Written, paths
from raysuite.errors import UserError

MANIFEST = "manifest.json"
PLAN, JOURNAL = "stand-in.json", "chunks.jsonl"
"""In the hidden folder alone: what is being made, and a line for each chunk that is whole."""

_WAIT_S = 0.5
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""What file systems say that know no locks. Two writers then do the same work twice."""


def check_place(folder: Path) -> None:
    """Raise UserError where no set of ours can come to lie, before anything is written."""
    if os.path.ismount(folder):
        raise UserError(f"{folder} is where a disk begins; give a folder below it as --out")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give another --out")
    if folder.is_dir() and any(folder.iterdir()) and read_manifest(folder) is None:
        raise UserError(
            f"{folder} holds files that `raysuite data make` did not write; they are left alone: "
            "give another --out, or move them away"
        )


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """What a complete stand-in tells of itself; None where none lies."""
    try:
        found: dict[str, Any] = json.loads((folder / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "stand_in" in found else None


def find(folder: Path, stand_in: StandIn, force: bool) -> list[Written] | None:
    """The chunks of the complete set in `folder`; None where none lies there, or no longer."""
    manifest = read_manifest(folder)
    if manifest is None:
        return None
    if force:
        shutil.rmtree(folder)
        return None
    if manifest["stand_in"] != identity(stand_in):
        raise UserError(
            _differs(f"{folder} holds another stand-in", manifest["stand_in"], stand_in)
        )
    return [Written(**chunk) for chunk in manifest["chunks"]]


def _differs(what: str, found: dict[str, Any], stand_in: StandIn) -> str:
    wanted = identity(stand_in)
    keys = [key for key in wanted if found.get(key) != wanted[key]]
    told = ", ".join(f"{key} {found.get(key)} instead of {wanted[key]}" for key in keys)
    return f"{what} ({told}); --force replaces it, --out names another folder"


def identity(stand_in: StandIn) -> dict[str, Any]:
    return {"version": VERSION, **stand_in.parameters}


def begin(work: Path, stand_in: StandIn, force: bool) -> dict[tuple[str, int], Written]:
    """Make the folder in which chunks are written, or read what was done there."""
    plan = work / PLAN
    if force:
        shutil.rmtree(work, ignore_errors=True)
    if plan.is_file():
        try:
            begun = json.loads(plan.read_text("utf-8"))
        except ValueError:  # the machine went down as it was written
            begun = {}
        if begun != identity(stand_in):
            raise UserError(_differs(f"another stand-in was begun in {work}", begun, stand_in))
    else:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        write_text(plan, json.dumps(identity(stand_in)))
    done: dict[tuple[str, int], Written] = {}
    journal = work / JOURNAL
    lines = journal.read_text("utf-8").splitlines() if journal.is_file() else []
    for line in lines:
        try:
            written = Written(**json.loads(line))
        except (ValueError, TypeError):
            continue  # cut short by a kill: its chunk is written again
        done[written.split, written.number] = written
    write_text(journal, "".join(json.dumps(asdict(each)) + "\n" for each in done.values()))
    return done


def whole(
    chunk: Chunk, done: dict[tuple[str, int], Written], stand_in: StandIn, work: Path
) -> bool:
    """Whether the journal tells of the chunk, and its files have the bytes that it tells of."""
    written = done.get((chunk.split, chunk.number))
    if written is None:
        return False
    try:
        size = sum((work / path).stat().st_size for path in paths(stand_in, chunk))
    except FileNotFoundError:
        return False
    return size == written.bytes


def write_text(path: Path, text: str) -> None:
    """Replace a file, so that it is never seen half written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, "utf-8")
    temporary.rename(path)


@contextmanager
def locked(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the right to write `folder`; it ends with this process, however that ends.

    `waiting` is called once if another process holds it.
    """
    path = folder.with_name(f".{folder.name}.lock")
    told = False
    while True:
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    waiting()
                told = True
                time.sleep(_WAIT_S)
                continue
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            if not _is(file.fileno(), path):
                continue  # the one before us removed it
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
