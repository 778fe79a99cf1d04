"""Files that nobody else may read: made so, never opened first and closed to others later."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

TOKEN_BYTES = 32
"""256 bits."""


def make_folder(path: Path) -> Path:
    """The folder `path`, made (0700) with what lacks above it."""
    if not path.is_dir():
        make_folder(path.parent)  # `parents=True` would give those the umask's mode
        path.mkdir(mode=0o700, exist_ok=True)
    return path


def create(path: Path, text: str) -> None:
    """Write a file that does not exist yet, mode 0600.

    Raises FileExistsError where it does, whatever it is.
    """
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())


def replace(path: Path, text: str) -> None:
    """Write a file whole, mode 0600: readers find the old text or the new one, never a part."""
    fresh = path.with_name(
        f".{path.name}.{os.uname().nodename}.{os.getpid()}.{secrets.token_hex(4)}"
    )
    try:
        create(fresh, text)
        os.replace(fresh, path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def new_token() -> str:
    """A secret that cannot be guessed, as hexadecimal digits."""
    return secrets.token_hex(TOKEN_BYTES)
