"""How clusters are told to people and to programs."""

from __future__ import annotations

import time
from typing import Any

from raysuite.cluster.files import Head
from raysuite.cluster.status import Status


def in_words(status: Status) -> str:
    """The state with its reason."""
    return f"{status.state} ({status.why})" if status.why else status.state


def node_in_words(status: Status, index: int) -> str:
    """The state of a node: its own word, checked against Ray's count."""
    node = status.nodes[index]
    if status.state == "up" and node.state == "joined" and not status.is_alive(node):
        return "lost"
    return f"{node.state} ({node.message})" if node.message else node.state


def mlflow_in_words(head: Head) -> str:
    """Where the MLflow server is, and whether it answers yet."""
    if not head.mlflow:
        return f"none ({head.mlflow_error})" if head.mlflow_error else "none"
    return head.mlflow if head.mlflow_answers else f"{head.mlflow} (starting)"


def age(since: float) -> str:
    """How long ago, in the largest unit that fits twice."""
    seconds = max(0, int(time.time() - since))
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"


def as_data(status: Status) -> dict[str, Any]:
    """For --json; no secret is in it."""
    cluster, head = status.cluster, status.head
    return {
        "name": cluster.name,
        "state": status.state,
        "why": status.why,
        "site": cluster.site.name,
        "backend": cluster.backend,
        "job": cluster.job,
        "slurm_state": status.job.state,
        "slurm_reason": status.job.reason,
        "created": cluster.created,
        "working_folder": cluster.working_folder,
        "nodes_wanted": status.wanted,
        "nodes_alive": status.alive_count,
        "cpus": status.alive.cpus if status.alive else 0.0,
        "gpus": status.alive.gpus if status.alive else 0.0,
        "gcs": head.gcs if head else None,
        "client": head.client if head else None,
        "dashboard": head.dashboard if head else None,
        "mlflow": head.mlflow if head else None,
        "mlflow_answers": bool(head and head.mlflow_answers),
        "mlflow_error": head.mlflow_error if head else "",
        "nodes": [
            {
                "host": node.host,
                "address": node.address,
                "state": node_in_words(status, index),
                "alive": status.is_alive(node),
                "seconds": node.seconds,
            }
            for index, node in enumerate(status.nodes)
        ],
    }
