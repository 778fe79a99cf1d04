"""What a node's processes find in their environment: paths of secrets, never secrets."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from raysuite.cluster import binding
from raysuite.cluster.agent.addresses import interface_of
from raysuite.cluster.environment import RAY_SETTINGS, TEMP, variables
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.proxies import past_proxies

_NEVER_INHERITED = (
    "RAY_ADDRESS",
    "RAY_AUTH_TOKEN",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
)
_RAY = {
    **RAY_SETTINGS,
    "PYTHONUNBUFFERED": "1",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300",  # its modules are read from a busy file system
    "RAY_agent_register_timeout_ms": "240000",  # so are its agents': patient_ray waits as long
    "RAY_JOB_STOP_WAIT_TIME_S": "70",  # a job that is stopped has a minute for a checkpoint
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "5",  # SLURM kills half a minute after its signal
}


def node_variables(
    folder: ClusterFolder,
    address: str,
    mlflow: str,
    temp: Path,
    site_environment: Mapping[str, str],
) -> dict[str, str]:
    """The environment of Ray's processes on this node, and so of the jobs that they start."""
    inherited = {name: value for name, value in os.environ.items() if name not in _NEVER_INHERITED}
    path = [str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)]
    base = {**inherited, **_RAY, **site_environment}
    head = folder.head()
    urls = (f"http://{address}", mlflow, head.dashboard if head else "")
    return {
        **base,
        **past_proxies(urls, base),
        **variables(folder, address, mlflow),
        **binding.variables(address, folder.path),
        "RAYSUITE_INTERFACE": interface_of(address),
        TEMP: str(temp),
        "TMPDIR": str(temp),
        "PATH": os.pathsep.join(path),
    }
