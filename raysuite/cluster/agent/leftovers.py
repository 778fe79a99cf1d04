"""What an earlier agent of the cluster left on this host when it was killed."""

from __future__ import annotations

import logging
from pathlib import Path

import psutil

from raysuite.cluster.agent.mlflow import MlflowServer
from raysuite.cluster.agent.place import Place
from raysuite.cluster.files import Cluster, Node
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.local import kill_left_behind, remove_temp

_SAME_START_S = 1.0
_DATABASE = "mlflow.db"
log = logging.getLogger("raysuite.cluster")


def clear_away(folder: ClusterFolder, cluster: Cluster, place: Place) -> None:
    """End its processes and remove its temporary folder.

    MLflow's database in there is newer than the copy in the cluster's folder: on the head it is
    brought home first. An agent that lives is left alone.
    """
    for node in folder.nodes():
        if node.host == place.host and node.temp and not _lives(node):
            for pid in kill_left_behind(node.temp):
                log.warning("process %d had outlived its agent", pid)
            temp = Path(node.temp)
            if place.is_head and _is_newer(temp / "mlflow" / _DATABASE, folder.mlflow / _DATABASE):
                log.warning("MLflow's database is taken over from %s", temp)
                MlflowServer(folder, cluster.site.mlflow, node.address, 0, temp).save()
            remove_temp(node.temp)


def _lives(node: Node) -> bool:
    try:
        process = psutil.Process(node.pid)
        return (
            abs(process.create_time() - node.began) < _SAME_START_S
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.Error:
        return False


def _is_newer(left: Path, kept: Path) -> bool:
    try:
        changed = left.stat().st_mtime
    except OSError:
        return False
    return not kept.exists() or changed > kept.stat().st_mtime
