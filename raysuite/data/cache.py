"""Folders that are written once, appear only when complete, and are checked on every use."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from raysuite.data.node_share import found_once
from raysuite.errors import DataError
from raysuite.spec.data_set import DataOptions, root_of

SETTLED_S = 2.0
"""Age in seconds from which a modification time is reliable. Some file systems (FAT) store times in
units of two seconds, so a file that has just changed can change again and keep its time."""
_whole: dict[Path, tuple[int, int, int]] = {}
"""Files that this process has found intact -> their inode, size and modification time."""
_MANIFEST = "manifest.json"


def publish(folder: Path, write: Callable[[Path], None]) -> None:
    """Create `folder`, unless it exists, with the files that `write(temporary_folder)` writes.

    Any number of processes may call this at once: each writes its own temporary folder next to
    `folder`, and the first rename succeeds. Unlike locks, this is safe on network file systems.

    Raises DataError if the cache cannot be written.
    """
    if (folder / _MANIFEST).is_file():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            write(temporary)
            files = (path for path in temporary.rglob("*") if path.is_file())
            manifest = {path.relative_to(temporary).as_posix(): _digest(path) for path in files}
            (temporary / _MANIFEST).write_text(json.dumps(manifest, indent=0, sort_keys=True))
            temporary.chmod(0o755)  # mkdtemp's folder is private to its owner
            with contextlib.suppress(OSError):  # another process was faster
                temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"the data set cannot be written to {folder}: {error}; "
            "set RAYSUITE_CACHE to a writable folder with free space"
        ) from error
    if not (folder / _MANIFEST).is_file():
        raise DataError(f"{folder} exists but is not a complete data set; delete it")


def converted(
    cache: Path, name: str, sources: Iterable[Path], write: Callable[[Path], None]
) -> Path:
    """The folder to which `write(folder)` has converted `sources`. `write` is called only if the
    cache does not have this conversion yet; the key is the SHA-256 digest of the sources' content.

    Raises the errors of `publish` and `verify`.
    """
    digest = hashlib.sha256()
    for path in sources:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    folder = cache / "data" / f"{name}-{digest.hexdigest()[:16]}"

    def write_files(target: Path) -> None:
        (target / "files").mkdir()
        write(target / "files")

    publish(folder, write_files)
    verify(folder, ("files",))
    return folder / "files"


def listed_once(data: DataOptions, cache: Path, write: Callable[[], Path]) -> Path:
    """Call `write`, which lists the splits' samples in a folder of `cache`/data; return the folder.

    One process of the node calls `write`; the processes that wait for it return the same folder. A
    later run calls `write` again, because the set may have changed.
    """
    asked = repr((str(root_of(data).absolute()), data.model_dump_json()))
    name = f"{data.form}-{hashlib.sha256(asked.encode()).hexdigest()[:16]}"
    return cache / "data" / found_once(name, lambda: write().name, cache / "data")


def verify(folder: Path, parts: tuple[str, ...]) -> None:
    """Compare the files below `folder`/part with their recorded checksums, for each of `parts`.

    A file that this process has checked is read again only if its inode, size or modification time
    changes.

    Raises DataError, which names the first file that is missing or differs.
    """
    remedy = f"delete {folder}, and it will be written again"
    try:
        manifest: dict[str, str] = json.loads((folder / _MANIFEST).read_text())
    except ValueError as error:
        raise DataError(f"{folder / _MANIFEST} is damaged; {remedy}") from error
    for name, digest in manifest.items():
        if not name.startswith(tuple(f"{part}/" for part in parts)):
            continue
        path = folder / name
        if not path.is_file():
            raise DataError(f"{path} is missing; {remedy}")
        if not _is_whole(path, digest):
            raise DataError(f"{path} is damaged: its checksum differs; {remedy}")


def _is_whole(path: Path, digest: str) -> bool:
    found = path.stat()
    state = (found.st_ino, found.st_size, found.st_mtime_ns)
    if _whole.get(path) == state:
        return True
    if _digest(path) != digest:
        return False
    if found.st_mtime < time.time() - SETTLED_S:
        _whole[path] = state
    return True


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
