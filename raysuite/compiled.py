"""raysuite's own libraries in C, compiled where they are used, into a folder of the user's."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
import zlib
from pathlib import Path

COMPILERS = ("cc", "gcc", "clang")
_PATIENCE_S = 60.0


class LibraryError(Exception):
    """Why a library cannot be compiled, or has no effect here."""


def library_in(folder: Path, source: Path) -> Path:
    """Where `build` puts the library: nodes of several architectures may share the folder, and so
    may versions of the source."""
    version = zlib.crc32(source.read_bytes())
    return folder / f"{source.stem}-{platform.machine()}-{version:08x}.so"


def build(source: Path, folder: Path, *options: str) -> Path:
    """The library of a C file, compiled into `folder` with further `options`.

    Raises LibraryError, with what is missing.
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
        os.replace(fresh, made)  # other nodes may be doing the same
    return made


def run(words: list[str], settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A command that has ended, with `settings` in its environment. Raises LibraryError where it
    cannot be run, or takes too long."""
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
