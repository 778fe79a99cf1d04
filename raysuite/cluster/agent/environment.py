"""What a node's processes find in their environment: paths of secrets, never secrets."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from raysuite.cluster import binding
from raysuite.cluster.agent.addresses import interface_of, is_loopback
from raysuite.cluster.folder import VARIABLE, ClusterFolder

TRACKING_AUTH = "raysuite"
"""The provider of raysuite/track that reads the MLflow password from the cluster's folder."""
_NEVER_INHERITED = (
    "RAY_ADDRESS",
    "RAY_AUTH_TOKEN",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
)
_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    # workers stay in the working folder, where relative paths and the user's modules are found
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "1",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "PYTHONUNBUFFERED": "1",
}


def client_variables(folder: ClusterFolder, address: str, mlflow: str) -> dict[str, str]:
    """What a program needs to speak with the cluster, but for Ray's address."""
    variables = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder.token_file),
        VARIABLE: str(folder.path),
    }
    if mlflow:
        variables["MLFLOW_TRACKING_URI"] = mlflow
        variables["MLFLOW_TRACKING_AUTH"] = TRACKING_AUTH
    if is_loopback(address):
        # Ray replaces 127.0.0.1 by an address that others can reach unless clusters are off: on
        # Linux too, whatever the name says
        variables["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    return variables


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
    return {
        **inherited,
        **_RAY,
        **site_environment,
        **client_variables(folder, address, mlflow),
        **binding.variables(address, folder.path),
        "RAYSUITE_INTERFACE": interface_of(address),
        "RAY_TMPDIR": str(temp),
        "TMPDIR": str(temp),
        "PATH": os.pathsep.join(path),
    }
