"""Files that are never seen half written."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(file: Path, content: bytes) -> None:
    """Write a file and rename it into place: readers and other writers never see a part of it.

    Makes the folder where there is none. Raises OSError.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(file)
