"""TFRecord files and their index, read and written without TensorFlow.

Their layout is told in raysuite.layouts.records.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from raysuite.errors import DataError
from raysuite.layouts.records import FRAME, HEAD, cut_short, masked, walk

__all__ = ["read_index", "read_record", "walk", "write_records"]

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")


def write_records(path: Path, records: Iterable[bytes]) -> None:
    """Write `records` to `path` and their index beside it, with the suffix .idx."""
    with path.open("wb") as file, path.with_suffix(".idx").open("w") as index:
        for data in records:
            length = _LENGTH.pack(len(data))
            index.write(f"{file.tell()} {FRAME + len(data)}\n")
            file.write(length + _crc(length) + data + _crc(data))


def read_index(path: Path) -> NDArray[np.int64]:
    """Offset and size of each record: [n, 2] int64, bytes. Raises DataError where damaged."""
    try:
        numbers = np.array(path.read_bytes().split(), dtype=np.int64)
        return numbers.reshape(-1, 2)
    except (OSError, ValueError, OverflowError) as error:
        raise DataError(
            f"{path}: not an index of a TFRecord file ({error}); expected is a line "
            "'offset size' per record; delete it, and write it again with "
            f"`raysuite data check {path.parent} --write-index`"
        ) from error


def read_record(descriptor: int, offset: int, size: int, place: str) -> bytes:
    """The data of the record of `size` bytes at `offset` of an open file.

    Safe from several threads and processes at once. Raises DataError, naming `place`, where the
    record is cut short or a checksum differs.
    """
    # an index may be damaged too: no more is asked for than the file has
    present = os.fstat(descriptor).st_size - offset
    if offset < 0 or size < FRAME:
        raise DataError(f"{place}: no record has {size} bytes; write the index again")
    record = b"" if size > present else os.pread(descriptor, size, offset)
    if len(record) < size:
        raise cut_short(place, max(0, min(present, size)), size)
    length, data = record[: _LENGTH.size], record[HEAD.size : -_CRC.size]
    if record[_LENGTH.size : HEAD.size] != _crc(length):
        raise DataError(f"{place}: the checksum of the record's length differs; copy it again")
    if _LENGTH.unpack(length)[0] != len(data):
        raise DataError(f"{place}: record and index disagree; write the index again")
    if record[-_CRC.size :] != _crc(data):
        raise DataError(f"{place}: the checksum of the record's data differs; copy it again")
    return data


def _crc(data: bytes) -> bytes:
    return _CRC.pack(masked(google_crc32c.value(data)))
