"""A cluster behind a login node, as if it were here: SSH carries its ports to loopback.

The token and the MLflow password come over SSH too, into files of the owner alone. What has come
lies in a folder like a cluster's own, whose addresses are those of the tunnel; it goes with it.
"""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from raysuite.cluster import private
from raysuite.cluster.ending import in_order
from raysuite.cluster.files import Head
from raysuite.cluster.folder import ClusterFolder, folder_of, home
from raysuite.cluster.ports import free_port
from raysuite.cluster.ssh import Connection, connected, last_line
from raysuite.errors import UserError

FETCHED = ("head.json", "token", "mlflow.json")
_MARK = b"raysuite-cluster "
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


class Forwarded(ClusterFolder):
    """A folder like the cluster's own, for as long as the connection lasts."""

    def __init__(self, path: Path, connection: Connection) -> None:
        super().__init__(path)
        self._connection = connection

    def wait(self) -> NoReturn:
        """Wait until the connection has ended; then raise RunError with ssh's last words."""
        self._connection.wait()


@contextmanager
def forwarded(login: str, name: str | None = None) -> Iterator[Forwarded]:
    """The cluster `name` of `ssh LOGIN`, or the only one there that is up, while in the context.

    A signal that ends us ends the context too. Raises UserError with what ssh or the login node
    said.
    """
    if name is not None:
        folder_of(name)  # raises for what can be no name
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
    """The cluster's name and its files."""
    # a name that folder_of takes has nothing that a shell would read
    done = connection.run(f"name={name or ''}\n{_SCRIPT}")
    login = connection.login
    if done.returncode != 0:
        hint = "; name one by --cluster" if done.returncode == 8 else ""
        raise UserError(f"no cluster reached by `ssh {login}`: {last_line(done.stderr)}{hint}")
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


def _near(connection: Connection, head: Head) -> Head:
    """`head` with the addresses of the near ends of what the connection now forwards."""
    ends = {"dashboard": head.dashboard, "mlflow": head.mlflow}
    for left in (2, 1, 0):
        near = {name: free_port() for name, url in ends.items() if url}
        try:
            connection.forward({port: urlsplit(ends[name]).netloc for name, port in near.items()})
            break
        except UserError:  # as where somebody took a port meanwhile
            if not left:
                raise
    urls = {name: f"http://127.0.0.1:{port}" for name, port in near.items()}
    return head.model_copy(update={"gcs": "", **urls})
