"""A cluster is up before its MLflow server answers: the first to send something waits for it."""

from __future__ import annotations

import os
import time

from raysuite.track.credentials import FOLDER_VARIABLE, read_told

LONGEST_S = 120.0
_LOOK_EACH_S = 0.5


def wait_while_starting(address: str, longest_s: float = LONGEST_S) -> None:
    """Wait while RAYSUITE_CLUSTER/head.json says that its server, at `address`, is still starting.

    Returns at once for any other server, and without an answer after `longest_s` seconds.
    """
    folder = os.environ.get(FOLDER_VARIABLE, "")
    deadline = time.monotonic() + longest_s
    while _is_starting(folder, address) and time.monotonic() < deadline:
        time.sleep(_LOOK_EACH_S)


def _is_starting(folder: str, address: str) -> bool:
    try:
        said = read_told(folder, "head.json")
    except (OSError, ValueError):
        return False
    same = said.get("mlflow", "").rstrip("/") == address.rstrip("/")
    return same and not said.get("mlflow_answers", True)
