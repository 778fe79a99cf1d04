"""Compile raysuite's own C libraries into a folder of the user, on the machine that uses them."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import zlib
from pathlib import Path

log = logging.getLogger(__name__)

COMPILERS = ("cc", "gcc", "clang")
_PATIENCE_S = 60.0


class LibraryError(Exception):
    """A C library cannot be compiled, or cannot be used on this machine."""


def library_in(folder: Path, source: Path) -> Path:
    """The path to which `build` writes the library. The file name contains the architecture and a
    checksum of the source, because different machines and raysuite versions may share the folder.
    """
    version = zlib.crc32(source.read_bytes())
    return folder / f"{source.stem}-{platform.machine()}-{version:08x}.so"


def build(source: Path, folder: Path, *options: str) -> Path:
    """Compile a C file into a library in `folder`, with further compiler `options`; return its
    path.

    Raises LibraryError with the reason.
    """
    made = library_in(folder, source)
    compiler = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if compiler is None:
        raise LibraryError(f"no C compiler here (looked for {', '.join(COMPILERS)})")
    with tempfile.TemporaryDirectory(prefix=f".{source.stem}-", dir=folder) as scratch:
        fresh = Path(scratch) / made.name
        words = [compiler, "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-o", str(fresh)]
        done = run([*words, str(source), *options], {})
        if done.returncode != 0:
            raise LibraryError(f"{compiler} cannot compile {source}: {done.stderr.strip()}")
        os.replace(fresh, made)  # atomic: another node may compile the same library now
    return made


def loaded(source: Path, folder: Path, *options: str) -> ctypes.CDLL | None:
    """Load the library of a C file, which is compiled into `folder` on first use. Return None, and
    log the reason, if it cannot be compiled."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return ctypes.CDLL(str(library_in(folder, source)))
        except OSError:  # not compiled yet, or for another system
            return ctypes.CDLL(str(build(source, folder, *options)))
    except (OSError, LibraryError) as error:
        log.info("%s has no effect: %s", source.name, error)
        return None


def run(words: list[str], settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with `settings` added to the environment. Raises LibraryError if
    the command cannot be started, or takes longer than a minute."""
    try:
        return subprocess.run(
            words,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LibraryError(str(error)) from error
