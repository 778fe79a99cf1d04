"""The folder of one cluster: the client's request, and the states that the nodes' agents write.

The folder is on a file system that the login node and the compute nodes share.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from raysuite.cluster import private
from raysuite.cluster.state_files import Alive, Cluster, File, Head, Mlflow, Node, Stop, Timings
from raysuite.errors import UserError
from raysuite.files import write_whole

VARIABLE = "RAYSUITE_CLUSTER"
"""The environment variable that names the folder in every process of the cluster."""
_LEFT = ".left"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
_AnyFile = TypeVar("_AnyFile", bound=File)


class ClusterFolder:
    """Paths in the folder, and the content of its files.

    Most methods that read a file return None if the file does not exist; methods that return a list
    or a dictionary leave out missing files.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        self.lock = path.with_name(f".{path.name}.lock")
        """The file that a command locks to start or end the cluster; `down --remove` does not
        remove it."""
        self.token_file = path / "token"
        self.mlflow_file = path / "mlflow.json"
        self.mlflow = path / "mlflow"
        """The folder of the MLflow server's artifacts, and of copies of its database. While the
        server runs, the database is on the head's disk."""
        self.script = path / "job.sh"
        self.suites = path / "suites"
        self.logs = path / "logs"
        self.slurm_log = self.logs / "slurm.log"
        self.over = path / "over"
        """A file that exists once the head's agent has ended or was killed. The batch script and
        the other nodes look for it."""
        self.end = path / "end"
        """A file that exists once `cluster down` has requested the agents' end."""
        self.ending = path / "ending"
        """A file that the head's agent creates when a signal ends it, and removes at its next
        start. SLURM sends such a signal to all processes of a job; if this file exists, the drivers
        of suites know that the whole cluster ends."""

    def log_of(self, host: str) -> Path:
        return self.logs / f"{host}.log"

    def cluster(self) -> Cluster:
        """The arguments of `cluster up`, and the cluster's job. Raises UserError if the folder has
        no cluster."""
        found = self._read("cluster.json", Cluster)
        if found is None:
            raise UserError(
                f"{self.path} contains no cluster (no readable cluster.json); "
                "`raysuite cluster status --all` lists all clusters"
            )
        return found

    def head(self) -> Head | None:
        return self._read("head.json", Head)

    def alive(self) -> Alive | None:
        return self._read("nodes.json", Alive)

    def stop(self) -> Stop | None:
        return self._read("stop.json", Stop)

    def mlflow_user(self) -> Mlflow | None:
        return self._read("mlflow.json", Mlflow)

    def timings(self) -> dict[str, float]:
        found = self._read("timings.json", Timings)
        return found.seconds if found else {}

    def token(self) -> str:
        return self.token_file.read_text("utf-8")

    def nodes(self) -> list[Node]:
        """All nodes that have written their state, the head first."""
        names = sorted((self.path / "nodes").glob("*.json"))
        found = [self._read(f"nodes/{path.name}", Node) for path in names]
        return sorted((each for each in found if each), key=lambda node: (node.index, node.host))

    def write(self, file: File) -> None:
        """Write `file` under a temporary name, and rename it."""
        place = f"nodes/{file.host}" if isinstance(file, Node) else _PLACES[type(file)]
        content = file.model_dump_json(indent=1) + "\n"
        write_whole(self.path / f"{place}.json", content.encode(), private.MODE)

    def forget(self, kind: type[File]) -> None:
        """Remove the file of that kind, if it exists."""
        (self.path / f"{_PLACES[kind]}.json").unlink(missing_ok=True)

    def forget_secrets(self) -> None:
        """Remove the cluster's secrets and addresses; call it after the cluster has ended."""
        self.token_file.unlink(missing_ok=True)
        for kind in (Mlflow, Head, Alive):
            self.forget(kind)

    def left_nodes(self) -> dict[Path, Node]:
        """Nodes of earlier starts whose agents were killed before they removed their temporary
        folders, by the path of each node's record."""
        paths = (self.path / "nodes").glob(f"*{_LEFT}")
        read = {path: self._read(f"nodes/{path.name}", Node) for path in paths}
        return {path: node for path, node in read.items() if node}

    def forget_nodes(self) -> None:
        """Remove the state files of the nodes of an earlier start. If an agent could not remove its
        temporary folder, the node's file is renamed instead: `left_nodes` finds it for the next
        agent on that host."""
        for path in (self.path / "nodes").glob("*.json"):
            node = self._read(f"nodes/{path.name}", Node)
            if node and node.temp and node.state in ("starting", "joined"):
                path.rename(path.with_name(f"{node.host}.{Path(node.temp).name}{_LEFT}"))
            else:
                path.unlink(missing_ok=True)

    def _read(self, name: str, kind: type[_AnyFile]) -> _AnyFile | None:
        try:
            return kind.model_validate_json((self.path / name).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValidationError as error:
            raise UserError(
                f"{self.path / name} cannot be read: {error.errors()[0]['msg']}; it was written by "
                "another version of raysuite, or by hand"
            ) from error


_PLACES: dict[type[File], str] = {
    Cluster: "cluster",
    Head: "head",
    Alive: "nodes",
    Stop: "stop",
    Mlflow: "mlflow",
    Timings: "timings",
}


def home() -> Path:
    """The folder for the user's own files of raysuite: $RAYSUITE_HOME, else ~/.raysuite."""
    return Path(os.environ.get("RAYSUITE_HOME") or "~/.raysuite").expanduser().absolute()


def clusters_home() -> Path:
    """The folder that contains the folders of all clusters of the user."""
    return home() / "clusters"


def folder_of(name: str) -> ClusterFolder:
    """The folder of the cluster `name`, which need not exist.

    Raises UserError for an invalid name.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            f"a cluster cannot be called {name!r}; use up to 60 letters, digits, '.', '_' and "
            "'-', beginning with a letter or a digit"
        )
    return ClusterFolder(clusters_home() / name)


def all_folders() -> list[ClusterFolder]:
    """The folders of all clusters, sorted by name.

    Raises UserError if the folder that contains them cannot be read.
    """
    try:
        paths = sorted(clusters_home().glob("*/cluster.json"))
    except PermissionError as error:
        raise UserError(
            f"{error.filename} cannot be read: permission denied; set RAYSUITE_HOME to a folder "
            "of your own"
        ) from error
    return [ClusterFolder(path.parent) for path in paths]


def current_folder() -> ClusterFolder | None:
    """The folder of the cluster in which this process runs; None outside clusters."""
    named = os.environ.get(VARIABLE)
    return ClusterFolder(Path(named)) if named else None


def prepare(cluster: Cluster, resume: bool = False) -> ClusterFolder:
    """Make the folder of a cluster that is about to start, with a new token and MLflow password.

    Files of an earlier cluster of that name are removed, except its MLflow database and its logs.
    With `resume` the registered suites are not removed either, and the head resumes them.
    """
    folder = folder_of(cluster.name)
    private.make_folder(folder.path)
    for name in ("nodes", "logs", "suites", "mlflow"):
        private.make_folder(folder.path / name)
    for kind in _PLACES:
        folder.forget(kind)
    if not resume:
        for suite in folder.suites.glob("*.json"):
            suite.unlink(missing_ok=True)
    folder.forget_nodes()
    for path in (folder.token_file, folder.over, folder.end, folder.ending):
        path.unlink(missing_ok=True)
    private.create(folder.token_file, private.new_token())
    folder.write(Mlflow(username="raysuite", password=private.new_token()))
    folder.write(cluster)
    return folder
