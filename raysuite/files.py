"""Files that are never seen half written."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(file: Path, content: bytes) -> None:
    """Whole or not at all: a file may be read, and written by others, while it is written.

    Makes the folder where there is none. Raises OSError.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(file)
