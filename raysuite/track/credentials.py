"""Read user and password of a cluster's MLflow server from a file; send them to this server only.

MLflow finds `ClusterCredentials` by the entry point group `mlflow.request_auth_provider` if
MLFLOW_TRACKING_AUTH is raysuite. This variable is set for a cluster's processes, and `raysuite
cluster status --env` prints it for a shell. No variable, argument or address contains the password.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

if TYPE_CHECKING:
    from requests import PreparedRequest

NAME = "raysuite"
"""The value of MLFLOW_TRACKING_AUTH."""
FOLDER_VARIABLE = "RAYSUITE_CLUSTER"


def read_told(folder: str, name: str) -> dict[str, Any]:
    """The content of a JSON file in a cluster's folder; empty if there is no such file."""
    try:
        found: dict[str, Any] = json.loads((Path(folder) / name).read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return found


class ClusterCredentials:
    """Implements MLflow's request_auth_provider: a name, and an authenticator of requests."""

    def get_name(self) -> str:
        return NAME

    def get_auth(self) -> BasicAuth:
        return BasicAuth(os.environ.get(FOLDER_VARIABLE, ""))


class BasicAuth:
    """Add user and password to requests to the MLflow server that `folder`/head.json names, and to
    no other requests.

    head.json and mlflow.json in `folder` are read for each request, because the address changes
    when the head is restarted.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        from requests.auth import HTTPBasicAuth

        server = read_told(self._folder, "head.json").get("mlflow", "")
        if server and _origin(server) == _origin(request.url or ""):
            user = read_told(self._folder, "mlflow.json")
            if user:
                HTTPBasicAuth(user["username"], user["password"])(request)
        return request


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts: SplitResult = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port
