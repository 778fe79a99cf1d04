"""A command in a terminal of its own, as a person starts it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 120


def _takes_the_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """`raysuite ...` of this checkout in a new session, whose terminal is ours to type in."""

    def __init__(self, program: str, *words: str) -> None:
        self.said = ""
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", program, *words],
            cwd=ROOT,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_takes_the_terminal,
        )
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.close()

    def until(self, text: str) -> str:
        """Everything that was said, once `text` is in it."""
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self.said:
            ready, _, _ = select.select([self._ours], [], [], deadline - time.monotonic())
            assert ready, self.said
            try:
                self.said += os.read(self._ours, 4096).decode()
            except OSError:  # nobody has it open any more
                raise AssertionError(self.said) from None
        return self.said

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._ours, text.encode())

    def close(self) -> None:
        """Close the terminal's window."""
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1

    def wait(self) -> int:
        """The command's exit code."""
        return self.process.wait(TIMEOUT_S)
