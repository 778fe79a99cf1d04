"""IDX files whose bytes are read where they lie; a .gz is unpacked once."""

from __future__ import annotations

import gzip
import math
import shutil
import zlib
from pathlib import Path

from raysuite.errors import DataError
from raysuite.layouts.idx import head_size, shape

_CHUNK = 1 << 20


def unpack(path: Path, dimensions: int, target: Path) -> None:
    """Write an IDX file of unsigned bytes, plain or .gz, to `target`, plain.

    Never writes more than its header tells. Raises DataError where the file is damaged.
    """
    if path.suffix != ".gz":
        shutil.copyfile(path, target)
        return
    left = head_size(dimensions) + math.prod(shape(path, dimensions))
    try:
        with gzip.open(path) as file, target.open("wb") as out:
            while chunk := file.read(_CHUNK):
                left -= len(chunk)
                if left < 0:
                    break
                out.write(chunk)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be unpacked ({error}); copy it again") from error
    if left:
        raise DataError(f"{path}: it does not unpack to what its header tells; copy it again")
