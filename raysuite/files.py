"""Files that are never seen half written, locks on them, and the URIs of databases."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote


def write_whole(file: Path, content: bytes) -> None:
    """Write a file and rename it into place: readers and other writers never see a part of it.

    Makes the folder where there is none. Raises OSError.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(file)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def continued_lines(file: Path) -> list[Any]:
    """The values of a JSON Lines file, one a line, before more are appended: a line that was cut
    off by a crash is removed. Raises OSError."""
    found = []
    for line in file.read_text("utf-8").splitlines() if file.is_file() else ():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    write_whole(file, "".join(f"{json.dumps(each)}\n" for each in found).encode())
    return found


def lock(file: Path, how: int) -> int:
    """An open descriptor of `file`, locked by flock(2); the lock ends with the process.

    Whoever holds the lock may remove the file. Raises BlockingIOError with LOCK_NB, and OSError
    where the file system has no locks.
    """
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, how)
            if os.path.samestat(os.fstat(descriptor), os.stat(file)):
                return descriptor
        except FileNotFoundError:
            pass  # removed by the one who held the lock before: the name is free again
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def sqlite_uri(file: Path) -> str:
    """The URI by which SQLAlchemy, and so MLflow, opens an SQLite file, whatever its folder's name.

    SQLAlchemy takes what follows a `?` for options and decodes percent signs. MLflow would make a
    folder of the encoded name, but for a URI that names the driver too.
    """
    path = re.sub("[%?]", lambda found: quote(found[0]), str(file.absolute()))
    driver = "" if path == str(file.absolute()) else "+pysqlite"
    return f"sqlite{driver}:///{path}"
