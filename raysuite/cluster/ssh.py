"""One SSH connection for all that a command does at a site: what ssh asks, it asks once.

It is a shared connection (ControlMaster) of our own, so that it ends with us and what it forwards
with it. ssh asks for passwords, second factors and host keys in the terminal.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NoReturn

from raysuite.cluster.ending import end_with_parent
from raysuite.errors import RunError, UserError

_PATIENCE_S = 60.0
_PAUSE_S = 0.05
_MANY = 65_536
_OPTIONS = ("ControlPersist=no", "ServerAliveInterval=15")


class Connection:
    """What goes through the connection to `login`."""

    def __init__(
        self, login: str, socket: Path, child: subprocess.Popen[bytes], said: IO[bytes]
    ) -> None:
        self.login = login
        self._socket, self._child, self._said = socket, child, said

    def run(self, script: str) -> subprocess.CompletedProcess[bytes]:
        """Run a script of POSIX shell there; none of it is ever an argument of a command."""
        return self._ssh("-T", "--", self.login, "sh", "-s", script=script)

    def forward(self, ends: Mapping[int, str]) -> None:
        """Carry ports of our loopback to HOST:PORT. Raises UserError with ssh's words."""
        words = [word for port, end in ends.items() for word in ("-L", f"127.0.0.1:{port}:{end}")]
        done = self._ssh("-O", "forward", *words, "--", self.login)
        if done.returncode != 0:
            said = last_line(done.stderr)
            raise UserError(f"`ssh {self.login}` forwards no ports: {said}")

    def wait(self) -> NoReturn:
        """Wait until the connection has ended; then raise RunError with ssh's last words."""
        self._child.wait()
        raise RunError(f"`ssh {self.login}` has ended: {self._last_words()}")

    def _begin(self) -> None:
        told = 0
        while not self._socket.exists():
            # what goes with a question, such as where a second factor is got
            new = os.pread(self._said.fileno(), _MANY, told)
            sys.stderr.write(new.decode(errors="replace"))
            sys.stderr.flush()
            told += len(new)
            if self._child.poll() is not None:
                raise UserError(f"no cluster reached by `ssh {self.login}`: {self._last_words()}")
            time.sleep(_PAUSE_S)

    def _end(self) -> None:
        self._child.terminate()
        self._child.send_signal(signal.SIGCONT)  # one that is stopped hears nothing else
        try:
            self._child.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _ssh(self, *words: str, script: str = "") -> subprocess.CompletedProcess[bytes]:
        shared = ["ssh", "-S", str(self._socket), "-o", "ControlMaster=no"]
        return subprocess.run(
            [*shared, *words], input=script.encode(), capture_output=True, check=False
        )

    def _last_words(self) -> str:
        self._said.seek(0)
        return last_line(self._said.read())


@contextmanager
def connected(login: str) -> Iterator[Connection]:
    """A connection that lasts as long as the context. Raises UserError with ssh's words."""
    with (
        # a socket's path is short: 104 bytes at most, and ssh adds some to ours
        tempfile.TemporaryDirectory(prefix="raysuite-ssh-", dir="/tmp") as place,  # 0700
        tempfile.TemporaryFile() as said,
    ):
        socket = Path(place, "ssh")
        words = ["ssh", "-M", "-N", "-T", "-S", str(socket)]
        words += [word for option in _OPTIONS for word in ("-o", option)]
        try:
            child = subprocess.Popen(
                [*words, "--", login],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                preexec_fn=_before_it_runs,
            )
        except FileNotFoundError:
            raise UserError("--via needs the program ssh, which is not installed here") from None
        connection = Connection(login, socket, child, said)
        try:
            connection._begin()
            yield connection
        finally:
            connection._end()


def last_line(said: bytes) -> str:
    """The last line that a program said."""
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _before_it_runs() -> None:
    # Ctrl-C is for us: a job's log goes on until we say so. A process group of ssh's own would not
    # hear it either, but a terminal stops whoever reads from it in the background, as to ask does
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
