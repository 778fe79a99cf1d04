"""Find and run Apptainer."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from raysuite.ending import end_group
from raysuite.errors import MissingPartError, RaysuiteError

ENGINES = ("apptainer", "singularity")
"""Names of the program; the first one that is on PATH is used."""
_PATIENCE_S = 60.0
"""Seconds that an interrupted Apptainer is given to remove its unfinished image."""


class EngineError(RaysuiteError):
    """Apptainer ended with an error; the message contains the last lines that it printed."""


def engine() -> str:
    """The program's path. Raises MissingPartError if the program is not on PATH."""
    found = next((path for name in ENGINES if (path := shutil.which(name))), None)
    if found is None:
        raise MissingPartError(
            "apptainer is not on PATH; images need it: load your site's module, or install it as "
            "described in Apptainer's administrator guide (Ubuntu and EPEL have the package "
            "`apptainer`)"
        )
    return found


def streamed(
    command: Sequence[str],
    log: Path,
    say: Callable[[str], None],
    *,
    cwd: Path,
    environment: Mapping[str, str],
) -> None:
    """Run a command in its own process group; write each line of output to `log`, and call `say`
    with it.

    Raises EngineError with the last lines if the command fails. An interruption ends the command's
    process group.
    """
    lines: list[str] = []
    with (
        log.open("a") as file,
        subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                file.flush()
                lines = [*lines[-14:], line.rstrip()]
                say(line.rstrip())
            status = process.wait()
        except BaseException:
            end_group(process, _PATIENCE_S)
            raise
    if status:
        end = "\n".join(f"  {line}" for line in lines)
        raise EngineError(
            f"apptainer ended with exit status {status}; the whole log is {log}; its end:\n{end}"
        )


def asked(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `apptainer ARGUMENTS` and capture its output."""
    return subprocess.run(
        [engine(), *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
    )
