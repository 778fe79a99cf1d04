"""A cluster behind a login node, as if it were here: SSH carries its ports to loopback.

The token and the MLflow password come over SSH too, into files of the owner alone. What has come
lies in a folder like a cluster's own, whose addresses are those of the tunnel; it goes with it.
"""

from __future__ import annotations

import io
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from raysuite.cluster import private
from raysuite.cluster.files import Head
from raysuite.cluster.folder import ClusterFolder, folder_of, home
from raysuite.cluster.ports import free_port
from raysuite.errors import UserError

FETCHED = ("head.json", "token", "mlflow.json")
_MARK = b"raysuite-cluster "
_PATIENCE_S = 60.0
_PAUSE_S = 0.1
# The folder's name stands in the first line; what a login shell prints comes before the mark.
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


@contextmanager
def forwarded(login: str, name: str | None = None) -> Iterator[ClusterFolder]:
    """The cluster `name` of `ssh LOGIN`, or the only one there that is up, while in the context.

    Raises UserError with what ssh or the login node said.
    """
    if name is not None:
        folder_of(name)  # raises for what can be no name
    found, files = _fetched(login, name)
    parent = private.make_folder(home() / "forwarded")
    place = Path(tempfile.mkdtemp(prefix=f"{found}-", dir=parent))  # 0700
    try:
        for each, text in files.items():
            private.create(place / each, text)
        folder = ClusterFolder(place)
        head = folder.head()
        if head is None:
            raise UserError(f"cluster {found!r} at {login} is not up: its head has not answered")
        with _tunnel(login, head) as near:
            folder.write(near)
            yield folder
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _fetched(login: str, name: str | None) -> tuple[str, dict[str, str]]:
    """The cluster's name and its files; none of it is ever an argument of a command."""
    # a name that folder_of takes has nothing that a shell would read
    script = f"name={name or ''}\n{_SCRIPT}".encode()
    try:
        done = subprocess.run(
            ["ssh", "-T", "--", login, "sh", "-s"], input=script, capture_output=True, check=False
        )
    except FileNotFoundError:
        raise UserError("--via needs the program ssh, which is not installed here") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        hint = "; name one by --cluster" if done.returncode == 8 else ""
        raise UserError(f"no cluster reached by `ssh {login}`: {said[-1]}{hint}")
    _, mark, rest = done.stdout.partition(_MARK)
    line, _, archive = rest.partition(b"\n")
    if not mark:
        raise UserError(f"`ssh {login}` ended well, but gave no cluster; try `ssh {login} true`")
    return folder_of(line.decode()).name, _unpacked(archive)


def _unpacked(archive: bytes) -> dict[str, str]:
    files = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        for name in FETCHED:
            member = opened.extractfile(name)
            assert member is not None
            files[name] = member.read().decode()
    return files


@contextmanager
def _tunnel(login: str, head: Head) -> Iterator[Head]:
    """`head` with the addresses of the near end of an SSH tunnel that lasts as long as this."""
    ends = {"dashboard": head.dashboard, "mlflow": head.mlflow}
    near = {name: free_port() for name, url in ends.items() if url}
    words = ["ssh", "-N", "-T"]
    # a forward that a shared connection holds would outlive this one
    for option in ("ExitOnForwardFailure=yes", "ControlPath=none", "ServerAliveInterval=15"):
        words += ["-o", option]
    for name, port in near.items():
        parts = urlsplit(ends[name])
        words += ["-L", f"127.0.0.1:{port}:{parts.hostname}:{parts.port}"]
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [*words, "--", login],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            process_group=0,  # Ctrl-C is for us: a job's log goes on until we say so
        )
        try:
            _wait(login, child, list(near.values()), said)
            urls = {name: f"http://127.0.0.1:{port}" for name, port in near.items()}
            yield head.model_copy(update={"gcs": "", **urls})
        finally:
            child.terminate()
            try:
                child.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _wait(login: str, child: subprocess.Popen[bytes], ports: list[int], said: IO[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    for port in ports:
        while not _listens(port):
            if child.poll() is not None or time.monotonic() > deadline:
                raise UserError(f"`ssh {login}` forwards no ports: {_last_line(said)}")
            time.sleep(_PAUSE_S)


def _last_line(said: IO[bytes]) -> str:
    said.seek(0)
    lines = said.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
