"""Where a secret can be found: it must be in the files that are meant for it, and nowhere else."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path


def processes_with(secret: str) -> list[str]:
    """Every process whose arguments or environment hold `secret`, as far as we may look."""
    needle = secret.encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                text = (process / name).read_bytes()
            except (FileNotFoundError, PermissionError, ProcessLookupError):
                continue
            if needle in text:
                found.append(f"{process.name} {name}: {_words(process)}")
    return found


def files_with(secret: str, *folders: Path) -> set[Path]:
    """Every file below `folders` that holds `secret`, links not followed."""
    return files_with_each([secret], *folders)[secret]


def files_with_each(
    secrets: Sequence[str], *folders: Path, since: float = 0.0
) -> dict[str, set[Path]]:
    """The same for several secrets, in files that were changed after `since`, in seconds since
    1970."""
    found: dict[str, set[Path]] = {secret: set() for secret in secrets}
    for path in _files(folders, since):
        text = _read(path)
        for secret in secrets:
            if secret.encode() in text:
                found[secret].add(path)
    return found


def others_may_read(*folders: Path) -> list[Path]:
    """Files below `folders` that their modes open to others, by the modes of the folders too."""
    found = []
    for folder in folders:
        if folder.stat().st_mode & 0o077 == 0:
            continue  # nobody else gets in
        found += [path for path in _files([folder]) if path.stat().st_mode & 0o044]
    return found


def _files(folders: Iterable[Path], since: float = 0.0) -> Iterator[Path]:
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in names:
                path = Path(parent, name)
                with contextlib.suppress(FileNotFoundError):  # removed while we look
                    found = path.lstat()
                    if stat.S_ISREG(found.st_mode) and found.st_mtime >= since:
                        yield path


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, PermissionError):
        return b""  # written and removed while we look


def _words(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes()[:80].replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return "it has ended"
