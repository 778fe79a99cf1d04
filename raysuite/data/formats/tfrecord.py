"""TFRecord files and their index, read and written without TensorFlow.

A record is: length (uint64), masked CRC-32C of the length (uint32), the data, masked CRC-32C of
the data (uint32), all little-endian: https://www.tensorflow.org/tutorials/load_data/tfrecord
The index has a line `offset size` per record, in bytes, headers included, as NVIDIA's
tfrecord2idx writes it.
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

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEAD = _LENGTH.size + _CRC.size
_FRAME = _HEAD + _CRC.size
"""Bytes of a record beside its data."""


def write_records(path: Path, records: Iterable[bytes]) -> None:
    """Write `records` to `path` and their index beside it, with the suffix .idx."""
    with path.open("wb") as file, path.with_suffix(".idx").open("w") as index:
        for data in records:
            length = _LENGTH.pack(len(data))
            index.write(f"{file.tell()} {_FRAME + len(data)}\n")
            file.write(length + _crc(length) + data + _crc(data))


def read_index(path: Path) -> NDArray[np.int64]:
    """Offset and size of each record: [n, 2] int64, bytes. Raises DataError where damaged."""
    try:
        numbers = np.array(path.read_text().split(), dtype=np.int64)
        return numbers.reshape(-1, 2)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: not an index of a TFRecord file ({error}); expected is a line "
            "'offset size' per record; write it again with tfrecord2idx"
        ) from error


def read_record(descriptor: int, offset: int, size: int, place: str) -> bytes:
    """The data of the record of `size` bytes at `offset` of an open file.

    Safe from several threads and processes at once. Raises DataError, naming `place`, where the
    record is cut short or a checksum differs.
    """
    record = os.pread(descriptor, size, offset)
    if len(record) < size or size < _FRAME:
        raise DataError(f"{place}: record cut short, {len(record)} of {size} bytes; copy it again")
    length, data = record[: _LENGTH.size], record[_HEAD : -_CRC.size]
    if record[_LENGTH.size : _HEAD] != _crc(length):
        raise DataError(f"{place}: the checksum of the record's length differs; copy it again")
    if _LENGTH.unpack(length)[0] != len(data):
        raise DataError(f"{place}: record and index disagree; write the index again")
    if record[-_CRC.size :] != _crc(data):
        raise DataError(f"{place}: the checksum of the record's data differs; copy it again")
    return data


def _crc(data: bytes) -> bytes:
    # Masked, because a CRC over data that holds its own CRC is weak (TensorFlow's crc32c.h).
    crc: int = google_crc32c.value(data)
    return _CRC.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
