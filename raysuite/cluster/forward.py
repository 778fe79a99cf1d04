"""Use a cluster behind a login node: SSH forwards local ports to the cluster's ports.

The token and the MLflow password are also copied over SSH, into files that only the owner can read.
The copied files and the forwarded addresses are in a folder with the layout of a cluster's folder;
this folder is removed when the connection ends.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NoReturn
from urllib.parse import urlsplit

from raysuite.cluster import private
from raysuite.cluster.folder import ClusterFolder, folder_of, home
from raysuite.cluster.ports import free_port
from raysuite.cluster.process import end_with_parent, in_order
from raysuite.cluster.state_files import Head
from raysuite.errors import RunError, UserError

# A command uses one SSH connection for everything at a site, so that ssh asks for a password once.
# The connection is a ControlMaster of this process: it and its forwarded ports end with the
# process. ssh asks for passwords, second factors and host keys in the terminal.

_PATIENCE_S = 60.0
_PAUSE_S = 0.05
_MANY = 65_536
_OPTIONS = ("ControlPersist=no", "ServerAliveInterval=15")


class Connection:
    """An SSH connection to `login`, which runs commands and forwards ports."""

    def __init__(
        self, login: str, socket: Path, child: subprocess.Popen[bytes], said: IO[bytes]
    ) -> None:
        self.login = login
        self._socket, self._child, self._said = socket, child, said

    def run(self, script: str) -> subprocess.CompletedProcess[bytes]:
        """Run a POSIX shell script on the login node. The script is passed as standard input."""
        return self._ssh("-T", "--", self.login, "sh", "-s", script=script)

    def forward(self, ends: Mapping[int, str]) -> None:
        """Forward each local port to its HOST:PORT. Raises UserError with ssh's message."""
        words = [word for port, end in ends.items() for word in ("-L", f"127.0.0.1:{port}:{end}")]
        done = self._ssh("-O", "forward", *words, "--", self.login)
        if done.returncode != 0:
            said = last_line(done.stderr)
            raise UserError(f"`ssh {self.login}` cannot forward ports: {said}")

    def wait(self) -> NoReturn:
        """Wait until the connection has ended; then raise RunError with ssh's last line."""
        self._child.wait()
        raise RunError(f"`ssh {self.login}` has ended: {self._last_words()}")

    def _begin(self) -> None:
        told = 0
        while not self._socket.exists():
            # ssh may explain its questions, for example where to get a second factor
            new = os.pread(self._said.fileno(), _MANY, told)
            sys.stderr.write(new.decode(errors="replace"))
            sys.stderr.flush()
            told += len(new)
            if self._child.poll() is not None:
                raise UserError(f"no cluster reached by `ssh {self.login}`: {self._last_words()}")
            time.sleep(_PAUSE_S)

    def _end(self) -> None:
        self._child.terminate()
        self._child.send_signal(signal.SIGCONT)  # a suspended process handles no SIGTERM
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
    """Keep a connection open within the context. Raises UserError with ssh's message."""
    with (
        # a socket's path has at most 104 bytes, and ssh appends some to it
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
    """The last line in a program's output."""
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


def _before_it_runs() -> None:
    # Only this process handles Ctrl-C: ssh must forward a job's log until this process ends ssh.
    # (ssh is not in another process group, because the terminal would then stop it when it reads a
    # password.)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


FETCHED = ("head.json", "token", "mlflow.json")
_MARK = b"raysuite-cluster "
# The script prints _MARK before the cluster's name, because a login shell may print other text.
_SCRIPT = """\
cd "${RAYSUITE_HOME:-$HOME/.raysuite}/clusters" 2>/dev/null ||
  { echo "no cluster there" >&2; exit 9; }
if [ -z "$name" ]; then
  for head in */head.json; do
    [ -e "$head" ] || { echo "no cluster is up there" >&2; exit 9; }
    [ -z "$name" ] || { echo "several clusters there:" */; exit 8; } >&2
    name=${head%/head.json}
  done
fi
[ -e "$name/head.json" ] || { echo "cluster $name is not up there; there are:" * >&2; exit 9; }
printf 'raysuite-cluster %s\\n' "$name"
exec tar -C "$name" -cf - head.json token mlflow.json
"""


class Forwarded(ClusterFolder):
    """A local folder with the layout of a cluster's folder. The folder is removed after the
    connection has ended."""

    def __init__(self, path: Path, connection: Connection) -> None:
        super().__init__(path)
        self._connection = connection

    def wait(self) -> NoReturn:
        self._connection.wait()


@contextmanager
def forwarded(login: str, name: str | None = None) -> Iterator[Forwarded]:
    """Within the context, forward the ports of the cluster `name` behind the login node `login`.

    Without a name, the only cluster that is up there is used. A signal that ends this process
    ends the context too. Raises UserError with the message of ssh or of the login node.
    """
    if name is not None:
        folder_of(name)  # raises UserError for an invalid name
    with in_order(), connected(login) as connection:
        found, files = _fetched(connection, name)
        parent = private.make_folder(home() / "forwarded")
        place = Path(tempfile.mkdtemp(prefix=f"{found}-", dir=parent))  # 0700
        try:
            for each, text in files.items():
                private.create(place / each, text)
            folder = Forwarded(place, connection)
            head = folder.head()
            if head is None:
                raise UserError(
                    f"cluster {found!r} at {login} is not up: its head has not answered"
                )
            folder.write(_near(connection, head))
            yield folder
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _fetched(connection: Connection, name: str | None) -> tuple[str, dict[str, str]]:
    """The name of the cluster, and the contents of the files FETCHED by file name."""
    # a valid name contains nothing that a shell would interpret
    done = connection.run(f"name={name or ''}\n{_SCRIPT}")
    login = connection.login
    if done.returncode != 0:
        hint = "; name one by --cluster" if done.returncode == 8 else ""
        raise UserError(f"no cluster reached by `ssh {login}`: {last_line(done.stderr)}{hint}")
    _, mark, rest = done.stdout.partition(_MARK)
    line, _, archive = rest.partition(b"\n")
    if not mark:
        raise UserError(
            f"`ssh {login}` succeeded but returned no cluster; `ssh {login} hostname` should print "
            "the name of the login node: check that this login may run commands"
        )
    return folder_of(line.decode()).name, _unpacked(archive)


def _unpacked(archive: bytes) -> dict[str, str]:
    files = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        for name in FETCHED:
            member = opened.extractfile(name)
            assert member is not None
            files[name] = member.read().decode()
    return files


def _near(connection: Connection, head: Head) -> Head:
    """Forward the head's ports; return `head` with the local addresses of these ports."""
    ends = {"dashboard": head.dashboard, "mlflow": head.mlflow}
    for left in (2, 1, 0):
        near = {name: free_port() for name, url in ends.items() if url}
        try:
            connection.forward({port: urlsplit(ends[name]).netloc for name, port in near.items()})
            break
        except UserError:  # another process may be using a port
            if not left:
                raise
    urls = {name: f"http://127.0.0.1:{port}" for name, port in near.items()}
    return head.model_copy(update={"gcs": "", **urls})
