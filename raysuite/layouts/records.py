"""TFRecord shards and their indices: train-00000-of-01024, validation-00000-of-00128, *.idx.

A record is: length (uint64), masked CRC-32C of the length (uint32), the data, masked CRC-32C of
the data (uint32), all little-endian: https://www.tensorflow.org/tutorials/load_data/tfrecord
The index has a line `offset size` per record, in bytes, headers included, as NVIDIA's
tfrecord2idx writes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from raysuite.errors import DataError
from raysuite.layouts.base import Counts, absent, named, root_of
from raysuite.spec.data import DataOptions
from raysuite.spec.datasets import CLASSES_FILE, NAMED, RECORD_PATTERNS, SPLITS

HEAD = struct.Struct("<QI")
"""Length of the data, and the CRC of these eight bytes."""
FRAME = HEAD.size + 4
"""Bytes of a record beside its data."""
_NUMBERED = re.compile(r"(.*-)(\d+)-of-(\d+)(\D*)")

_MOST = 100_000
"""Shards that a name may promise; beyond, it means something else."""


@dataclass(frozen=True)
class Shard:
    """A file of records, and its index where there is one."""

    path: Path
    index: Path | None


def find(data: DataOptions) -> dict[str, list[Shard]]:
    """The shards of each split, sorted by name, in PATH or one folder below it.

    Raises DataError that names shards that are missing: where there are none, or where the names
    count to more than there are and the pattern is the default one.
    """
    root = root_of(data)
    if not root.is_dir():
        raise absent(data, ())
    patterns = {"train": data.features.train, "val": data.features.val}
    paths = {split: matching(root, pattern) for split, pattern in patterns.items()}
    missing = [patterns[split] for split in SPLITS if not paths[split]]
    for split in SPLITS:
        if patterns[split] == RECORD_PATTERNS[split]:
            missing += _gaps(paths[split])
    if missing:
        raise absent(data, missing)
    return {split: [Shard(path, index_of(path)) for path in paths[split]] for split in SPLITS}


def matching(root: Path, pattern: str) -> list[Path]:
    """The files that a pattern names, sorted, in the folder or in those below it; no index."""
    for where in (pattern, f"*/{pattern}"):
        found = sorted(
            path
            for path in root.glob(where)
            if path.suffix != ".idx" and not path.name.startswith(".") and path.is_file()
        )
        if found:
            return found
    return []


def _gaps(paths: Sequence[Path]) -> list[str]:
    """The numbered shards that the names promise and that are not there."""
    there = {path.name for path in paths}
    wanted: set[str] = set()
    for path in paths:
        match = _NUMBERED.fullmatch(path.name)
        if match is not None and path.name not in wanted and int(match[3]) <= _MOST:
            stem, number, total, end = match.groups()
            wanted |= {f"{stem}{n:0{len(number)}d}-of-{total}{end}" for n in range(int(total))}
    return sorted(wanted - there)


def index_of(path: Path) -> Path | None:
    """The index of a shard: NAME.idx beside it or in idx_files, with or without its suffix."""
    names = dict.fromkeys((f"{path.name}.idx", f"{path.stem}.idx"))
    folders = (path.parent, path.parent / "idx_files", path.parent.parent / "idx_files")
    places = (folder / name for folder in folders for name in names)
    return next((place for place in places if place.is_file()), None)


def count(data: DataOptions) -> Counts:
    """Records of both splits, from the indices.

    Raises DataError that names shards without one; with `bad_samples: skip`, their records are
    counted up to the first that is damaged.
    """
    found = find(data)
    bare = [str(shard.path) for split in SPLITS for shard in found[split] if shard.index is None]
    if bare and data.bad_samples == "error":
        raise no_index(bare, data)
    counts = {split: sum(map(_records, shards)) for split, shards in found.items()}
    empty = [split for split in SPLITS if not counts[split]]
    if empty:
        raise DataError(f"no records in {' and '.join(empty)} of {root_of(data)}; write them again")
    return Counts(counts["train"], counts["val"], class_names(data))


def no_index(shards: Sequence[str], data: DataOptions) -> DataError:
    """The error that names shards without an index."""
    return DataError(
        f"no index of {named(shards)}; expected is NAME.idx beside it or in idx_files; run "
        f"`raysuite data check {root_of(data)} --write-index` or NVIDIA's tfrecord2idx, or set "
        "data.bad_samples to skip to find the records anew in each run"
    )


def _records(shard: Shard) -> int:
    if shard.index is None:
        return len(whole_records(shard.path))
    numbers = len(shard.index.read_bytes().split())
    if numbers % 2:
        raise DataError(
            f"{shard.index}: not an index of a TFRecord file: {numbers} numbers; expected is a "
            "line 'offset size' per record; delete it, and write it again with "
            f"`raysuite data check {shard.path.parent} --write-index`"
        )
    return numbers // 2


def class_names(data: DataOptions) -> tuple[str, ...]:
    """The names of the classes: those of `classes.txt` beside the shards, else their numbers.

    Raises DataError where the file has another number of them than `data.classes`.
    """
    path = root_of(data) / CLASSES_FILE
    known = NAMED[data.name].facts.classes if data.name in NAMED else data.classes
    if not path.is_file():
        return tuple(map(str, range(known or 0)))
    names = tuple(path.read_text("utf-8").splitlines())
    if not names or (data.classes is not None and len(names) != data.classes):
        raise DataError(
            f"{path} names {len(names)} classes, and data.classes is {data.classes}; correct one"
        )
    return names


def first_label(data: DataOptions) -> int:
    """The number of the first class in the records."""
    if data.features.first_label is not None:
        return data.features.first_label
    return NAMED[data.name].first_label if data.name in NAMED else 0


def walk(path: Path) -> Iterator[tuple[int, int]]:
    """Offset and size of each record, in bytes, headers included, found without an index.

    Only the records' lengths and their checksums are read. Raises DataError that names the offset
    where a record is cut short or its length is damaged: nothing behind it can be found.
    """
    with path.open("rb", buffering=0) as file:
        end = os.fstat(file.fileno()).st_size
        offset = 0
        while offset < end:
            head = os.pread(file.fileno(), HEAD.size, offset)
            if len(head) < HEAD.size:
                raise cut_short(f"{path} at byte {offset}", end - offset, FRAME)
            length, crc = HEAD.unpack(head)
            if crc != masked(crc32c(head[:8])):
                raise DataError(
                    f"{path} at byte {offset}: the checksum of the record's length differs; "
                    "copy it again"
                )
            size = FRAME + length
            if offset + size > end:
                raise cut_short(f"{path} at byte {offset}", end - offset, size)
            yield offset, size
            offset += size


def whole_records(path: Path) -> list[tuple[int, int]]:
    """What `walk` finds up to the first damage."""
    found: list[tuple[int, int]] = []
    with contextlib.suppress(DataError):
        found.extend(walk(path))
    return found


def cut_short(place: str, present: int, size: int) -> DataError:
    """The error that names a record which its file does not hold to the end."""
    return DataError(f"{place}: record cut short, {present} of {size} bytes; copy it again")


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli; RFC 3720, B.4) of a few bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """A CRC as records hold it: one over data that holds its own CRC is weak (TensorFlow's
    crc32c.h)."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
