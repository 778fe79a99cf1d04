"""By which variables programs find a cluster: paths of secrets, never secrets."""

from __future__ import annotations

from raysuite.cluster.files import Head
from raysuite.cluster.folder import VARIABLE, ClusterFolder

TRACKING_AUTH = "raysuite"
"""The provider of raysuite/track that reads the MLflow password from the cluster's folder."""


def client_environment(folder: ClusterFolder, head: Head) -> dict[str, str]:
    """For a shell: `ray job submit` takes RAY_ADDRESS as the dashboard's URL."""
    gcs_host = head.gcs.rpartition(":")[0]
    return {"RAY_ADDRESS": head.dashboard, **variables(folder, gcs_host, head.mlflow)}


def variables(folder: ClusterFolder, address: str, mlflow: str) -> dict[str, str]:
    """What a program needs to speak with the cluster, but for Ray's address."""
    found = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder.token_file),
        VARIABLE: str(folder.path),
    }
    if mlflow:
        found["MLFLOW_TRACKING_URI"] = mlflow
        found["MLFLOW_TRACKING_AUTH"] = TRACKING_AUTH
    if address.startswith("127."):
        # Ray replaces 127.0.0.1 by an address that others can reach unless clusters are off: on
        # Linux too, whatever the name says
        found["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    return found
