"""From a StandIn to its folder: complete under its name, or not there.

Everything is written into a hidden sibling of the folder, chunk by chunk; a line of its journal
tells that a chunk is whole. The folder gets its name when all are
(docs/decisions/files-appear-by-rename.md).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import raysuite
from raysuite.data.processes import Count, each
from raysuite.data.synthesis.pictures import Painter
from raysuite.data.synthesis.stand_in import Chunk, StandIn
from raysuite.data.synthesis.state import (
    JOURNAL,
    MANIFEST,
    PLAN,
    begin,
    check_place,
    find,
    identity,
    locked,
    whole,
    write_text,
)
from raysuite.data.synthesis.writers import Task, Written, encode, write_chunk
from raysuite.errors import DataError
from raysuite.spec.datasets import CLASSES_FILE
from raysuite.units import human_bytes

_SAMPLED = 8
"""Images that are drawn to know about how large the set becomes."""


@dataclass(frozen=True)
class Made:
    """What lies in the folder now."""

    path: str
    images: int
    bytes: int
    chunks: int
    written: int
    """Chunks written by this call; the others were there."""
    drawn: int
    """Images of those chunks."""
    seconds: float
    digest: str
    """SHA-256 over the checksums of all chunks: equal sets have equal ones."""


def make(
    stand_in: StandIn,
    folder: Path,
    workers: int,
    force: bool = False,
    count: Count = lambda images: None,
    waiting: Callable[[], None] = lambda: None,
) -> Made:
    """Make sure that `folder` holds the stand-in, complete. May be killed, and called again.

    `count` is told images as they are done, or found done. `waiting` is called once where
    another process is writing the same folder; its end is waited for.

    Raises UserError where something else lies in the folder, unless it is another stand-in and
    `force` is given; DataError where the disk is too small or cannot be written.
    """
    began = time.monotonic()
    folder = folder.expanduser().absolute()
    try:
        check_place(folder)
        work = folder.with_name(f".{folder.name}.making")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder, waiting):
            there = find(folder, stand_in, force)
            if there is not None:
                count(stand_in.train + stand_in.val)
                return _made(folder, stand_in, there, [], began)
            done = begin(work, stand_in, force)
            chunks = list(stand_in.chunks())
            todo = [chunk for chunk in chunks if not whole(chunk, done, stand_in, work)]
            count(_images(chunks) - _images(todo))
            _check_room(stand_in, folder, _images(todo))
            with (work / JOURNAL).open("a", encoding="utf-8") as journal:
                tasks = [Task(stand_in, chunk, work) for chunk in todo]
                for written in each(write_chunk, tasks, workers, count):
                    done[written.split, written.number] = written
                    journal.write(json.dumps(asdict(written)) + "\n")
                    journal.flush()
            complete = [done[chunk.split, chunk.number] for chunk in chunks]
            _finish(work, folder, stand_in, complete)
            return _made(folder, stand_in, complete, todo, began)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written: {error}; make room or give another --out; what is done "
            "is kept, and the same command goes on with it"
        ) from error


def expected_bytes(stand_in: StandIn, images: int) -> int:
    """About what that many images take on disk, from a few that are drawn for it."""
    sampled = [_drawn_bytes(stand_in, sample) for sample in range(min(_SAMPLED, images))]
    return round(sum(sampled) / len(sampled) * images) if sampled else 0


def _drawn_bytes(stand_in: StandIn, sample: int) -> int:
    if stand_in.form in ("folder", "tfrecord"):
        pixels, _ = Painter(stand_in).picture("train", sample)
        return len(encode(pixels, stand_in.quality))
    return stand_in.height * stand_in.width * stand_in.channels + 1


def _check_room(stand_in: StandIn, folder: Path, images: int) -> None:
    needed, free = expected_bytes(stand_in, images), shutil.disk_usage(folder.parent).free
    if needed > free:
        raise DataError(
            f"{folder.parent}: about {human_bytes(needed)} are needed and {human_bytes(free)} are "
            "free; make room, give --out on another disk, or a --fraction"
        )


def _finish(work: Path, folder: Path, stand_in: StandIn, chunks: list[Written]) -> None:
    """Write what readers need beside the images, and give the folder its name."""
    names = "".join(f"{name}\n" for name in stand_in.class_names)
    if stand_in.form == "tfrecord":
        write_text(work / CLASSES_FILE, names)
    elif stand_in.form == "binary":
        write_text(work / "batches.meta.txt", names)
    manifest = {
        "stand_in": identity(stand_in),
        "raysuite": raysuite.__version__,
        "images": {"train": stand_in.train, "val": stand_in.val},
        "bytes": sum(chunk.bytes for chunk in chunks),
        "digest": _digest(chunks),
        "chunks": [asdict(chunk) for chunk in chunks],
    }
    write_text(work / MANIFEST, json.dumps(manifest, indent=1))
    work.rename(folder)  # an empty folder is replaced
    for name in (PLAN, JOURNAL):
        (folder / name).unlink()


def _made(
    folder: Path, stand_in: StandIn, chunks: list[Written], todo: list[Chunk], began: float
) -> Made:
    return Made(
        path=str(folder),
        images=stand_in.train + stand_in.val,
        bytes=sum(chunk.bytes for chunk in chunks),
        chunks=len(chunks),
        written=len(todo),
        drawn=_images(todo),
        seconds=time.monotonic() - began,
        digest=_digest(chunks),
    )


def _images(chunks: list[Chunk]) -> int:
    return sum(chunk.images for chunk in chunks)


def _digest(chunks: list[Written]) -> str:
    return hashlib.sha256("".join(chunk.sha256 for chunk in chunks).encode()).hexdigest()
