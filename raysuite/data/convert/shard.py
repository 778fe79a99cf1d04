"""One shard: read its images, write its records, give it its name."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import Image

from raysuite.data.convert.planning import GONE, Conversion, Options, Shard
from raysuite.data.formats.tfrecord import encode_example, write_records
from raysuite.data.header import Header
from raysuite.data.pixels import decode, header_of
from raysuite.data.processes import Count
from raysuite.errors import DataError

Policy = Literal["error", "skip"]


@dataclass(frozen=True)
class Bad:
    """An image that cannot be read."""

    path: str
    reason: str


@dataclass(frozen=True)
class Task:
    """What a process must know to write one shard."""

    source: Path
    target: Path
    shard: Shard
    options: Options
    names: tuple[str, ...]
    """Of the classes, by label from 0."""
    synsets: bool
    first_label: int
    bad: Policy

    @staticmethod
    def of(conversion: Conversion, shard: Shard, bad: Policy) -> Task:
        """The task of one of a conversion's shards."""
        return Task(
            conversion.source,
            conversion.target,
            shard,
            conversion.options,
            conversion.classes,
            conversion.synsets,
            conversion.first_label,
            bad,
        )


@dataclass(frozen=True)
class Written:
    """What became of a shard."""

    name: str
    sources: str
    """The fingerprint of the images that it was made of."""
    records: int
    bytes: int
    sha256: str
    shrunk: int
    """Images that were made smaller; the others kept their bytes."""
    bad: tuple[Bad, ...]


def write_shard(task: Task, count: Count) -> Written:
    """Write one shard and its index; neither has its name before both are complete.

    Bad images are left out; with policy `error` a shard that has any is not kept. `count` is told
    each image. Raises DataError where an image is not what it was when the shards were planned,
    or the target cannot be written.
    """
    shard, target = task.shard, task.target / task.shard.name
    temporary = task.target / f".{shard.name}.{os.getpid()}.part"
    index = temporary.with_suffix(".idx")
    bad: list[Bad] = []
    shrunk = 0

    def records() -> Iterator[bytes]:
        nonlocal shrunk
        for row in range(len(shard.paths)):
            try:
                record, smaller = _record(task, row)
            except _BadImageError as error:
                bad.append(error.bad)
            else:
                shrunk += smaller
                yield record
            count(1)

    try:
        write_records(temporary, records())
        with temporary.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = temporary.stat().st_size
        if not bad or task.bad == "skip":
            # the index first: a shard that has its name has its index too
            index.rename(target.with_suffix(".idx"))
            temporary.rename(target)
    except OSError as error:
        raise DataError(
            f"{target} cannot be written ({error.strerror}); make room or give another folder, "
            "and let no two conversions write into one folder at a time"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
        index.unlink(missing_ok=True)
    written = len(shard.paths) - len(bad)
    return Written(shard.name, shard.fingerprint, written, size, digest, shrunk, tuple(bad))


class _BadImageError(Exception):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path)
        self.bad = Bad(path, reason)


def _record(task: Task, row: int) -> tuple[bytes, bool]:
    """The Example of one image, and whether it was shrunk."""
    path = os.path.join(os.fsencode(task.source), bytes(task.shard.paths[row]))
    place = path.decode("utf-8", "backslashreplace")  # for reading: names may be any bytes
    data = _read(path, place, tuple(task.shard.stats[row].tolist()))
    try:
        header = header_of(data, place)
        smaller = _shrunk(data, header, task.options, place)
    except DataError as error:
        raise _BadImageError(place, str(error.__cause__ or error)) from error
    width = header.width
    if smaller is not None:
        data, header = smaller
    label = int(task.shard.labels[row])
    name = os.fsencode(task.names[label])
    features: dict[str, bytes | int] = {
        "image/class/synset" if task.synsets else "image/class/text": name,
        "image/filename": os.path.basename(path),
        "image/format": header.kind.upper().encode(),
        "image/height": header.height,
        "image/width": header.width,
        "image/channels": header.channels,
    }
    return encode_example(data, label + task.first_label, more=features), header.width < width


def _read(path: bytes, place: str, planned: tuple[int, ...]) -> bytes:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read()
    except FileNotFoundError as error:
        if planned == GONE:
            raise _BadImageError(place, f"cannot be read: {error.strerror}") from error
        raise DataError(f"{place} is gone since the shards were planned; begin again") from error
    except OSError as error:
        raise _BadImageError(place, f"cannot be read: {error.strerror}") from error
    if (status.st_size, status.st_mtime_ns) != planned or len(data) != status.st_size:
        raise DataError(
            f"{place} was changed since the shards were planned; run the same command again when "
            "nothing writes there any more"
        )
    return data


def _shrunk(
    data: bytes, header: Header, options: Options, place: str
) -> tuple[bytes, Header] | None:
    """The image with its shorter side as wanted; None for a JPEG or PNG that need not shrink.

    Cubic, antialiased; 8 bits, grey or RGB, as loaders see it, and without metadata. JPEG stays
    JPEG; all else becomes PNG, as TensorFlow and DALI do not read every format.
    """
    shorter = min(header.width, header.height)
    side = min(shorter, options.shorter_side or shorter)
    if side == shorter and header.kind != "other":
        return None
    pixels = decode(data, 1 if header.channels == 1 else 3, place)
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    width, height = (round(each * side / shorter) for each in image.size)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    kind: Literal["jpeg", "png"] = "jpeg" if header.kind == "jpeg" else "png"
    if kind == "jpeg":
        image.save(buffer, "JPEG", quality=options.quality)
    else:
        image.save(buffer, "PNG")
    return buffer.getvalue(), Header(kind, width, height, pixels.shape[2], 8)
