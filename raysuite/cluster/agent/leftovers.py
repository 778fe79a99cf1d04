"""Remove the processes and files that a killed agent of the cluster left on this host."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

from raysuite.cluster import private
from raysuite.cluster.agent.mlflow import ANSWERED, DATABASE, MlflowServer
from raysuite.cluster.agent.place import Place, find_place
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.process import find_process, kill_left_behind
from raysuite.cluster.state_files import NONCE, Cluster, Node
from raysuite.spec.site import LocalSite


def clear_away(
    folder: ClusterFolder, cluster: Cluster, place: Place, tell: Callable[[str], None]
) -> list[str]:
    """End the processes of killed agents on this host, and remove their temporary folders. Return a
    line for each unexpected finding.

    On the head, MLflow's database is first copied from the temporary folder to the cluster's
    folder, if it is newer than the copy there and its server has answered. The folder of a running
    agent is kept. A folder that no agent of the cluster made is kept too: /tmp may have been
    emptied, and another user may have made a folder of the same name.
    """
    wrong = []
    left = folder.left_nodes()
    for node in [*left.values(), *folder.nodes()]:
        if node.host != place.host or not node.temp:
            continue
        if find_process(node.pid, node.birth):
            wrong.append(f"agent {node.pid} still runs in {node.temp}; `kill {node.pid}` ends it")
            continue
        for pid in kill_left_behind(node.temp):
            wrong.append(f"process {pid} had not ended with its agent; it was killed")
        if problem := _not_ours(node):
            wrong.append(f"{node.temp} is left alone: {problem}")
            continue
        try:
            if place.is_head:
                _bring_home(folder, cluster, node, tell)
        except (OSError, sqlite3.Error) as error:
            wrong.append(f"MLflow's database cannot be copied: {error}; it stays in {node.temp}")
        else:
            private.remove(Path(node.temp), last=NONCE)
    for path, node in left.items():
        if node.host == place.host and not Path(node.temp).exists():
            path.unlink(missing_ok=True)
    return wrong


def clear_local(folder: ClusterFolder, cluster: Cluster, tell: Callable[[str], None]) -> list[str]:
    """Call `clear_away` for a cluster on this machine; do nothing for any other cluster."""
    if not isinstance(cluster.site, LocalSite):
        return []
    return clear_away(folder, cluster, find_place(cluster.site), tell)


def _not_ours(node: Node) -> str:
    """Why the folder `node.temp` is not the one that the agent of `node` made; empty if the agent
    made this folder, or if the folder does not exist."""
    temp = Path(node.temp)
    try:
        found = temp.lstat()
    except OSError:
        return ""  # the folder is gone
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return "it is not a folder of yours"
    if found.st_mode & 0o077:
        return f"it is open to others (mode {stat.S_IMODE(found.st_mode):o})"
    nonce = temp / NONCE
    is_its_own = nonce.exists() and nonce.read_text("ascii") == node.nonce
    return "" if is_its_own else "another cluster's agent made it"


def _bring_home(
    folder: ClusterFolder, cluster: Cluster, node: Node, tell: Callable[[str], None]
) -> None:
    temp = Path(node.temp)
    if not (temp / "mlflow" / ANSWERED).exists():
        return  # the database may be incomplete, or only partly migrated
    if _is_newer(temp / "mlflow" / DATABASE, folder.mlflow / DATABASE):
        tell(f"MLflow's database is copied from {temp}")
        MlflowServer(folder, cluster.site.mlflow, node.address, 0, temp).save()


def _is_newer(left: Path, kept: Path) -> bool:
    try:
        changed = left.stat().st_mtime
    except OSError:
        return False
    return not kept.exists() or changed > kept.stat().st_mtime
