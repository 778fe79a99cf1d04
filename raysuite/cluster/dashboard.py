"""HTTP requests to the dashboard of a running Ray cluster, without importing Ray."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.parse import quote

from raysuite.errors import RaysuiteError

_MANY = 10_000
RUNNING = ("PENDING", "RUNNING")


class NoAnswerError(RaysuiteError):
    """Ray's dashboard does not answer, or answers in an unknown format."""


class RefusedError(NoAnswerError):
    """No process listens at the dashboard's address."""


@dataclass(frozen=True)
class RayNode:
    """A node, with the properties that Ray reports."""

    address: str
    alive: bool
    cpus: float
    gpus: float


@dataclass(frozen=True)
class RayJob:
    """A job that was submitted to the cluster."""

    id: str
    status: str
    entrypoint: str


class Dashboard:
    """The head's dashboard at `url`, accessed with the cluster's token."""

    def __init__(self, url: str, token: str, timeout_s: float = 5.0) -> None:
        self._url, self._token, self._timeout_s = url, token, timeout_s

    def nodes(self) -> list[RayNode]:
        """All nodes that ever joined. Raises NoAnswerError, like all methods."""
        answer = self._ask(f"/api/v0/nodes?limit={_MANY}")
        try:
            return [_node(entry) for entry in answer["data"]["result"]["result"]]
        except (KeyError, TypeError) as error:
            raise NoAnswerError(f"{self._url} lists no nodes: {error!r}") from error

    def jobs(self) -> list[RayJob]:
        """All jobs that were submitted, the newest last."""
        found = [entry for entry in self._ask("/api/jobs/") if entry.get("type") == "SUBMISSION"]
        found.sort(key=lambda entry: entry.get("start_time") or 0)
        return [
            RayJob(entry["submission_id"], entry["status"], entry["entrypoint"]) for entry in found
        ]

    def submit(self, entrypoint: str, job: str) -> None:
        """Run the shell command `entrypoint` on the head, as a job with the id `job`."""
        self._ask("/api/jobs/", {"entrypoint": entrypoint, "submission_id": job})

    def log(self, job: str) -> bytes:
        """The whole output of a job, from the log file on the node where the job's driver runs."""
        node = self._ask(f"/api/jobs/{quote(job)}").get("driver_node_id")
        file = quote(f"job-driver-{job}.log")
        return self._read(f"/api/v0/logs/file?node_id={node}&filename={file}&lines=-1")

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        try:
            return json.loads(self._read(path, body))
        except ValueError as error:
            raise NoAnswerError(f"{self._url} does not answer: {error}") from error

    def _read(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        request = urllib.request.Request(
            self._url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"authorization": f"Bearer {self._token}", "content-type": "application/json"},
        )
        # no proxy: the addresses are those of the site's own nodes
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=self._timeout_s) as answer:
                content: bytes = answer.read()
                return content
        except (OSError, ValueError, HTTPException) as error:  # URLError is a subclass of OSError
            refused = isinstance(getattr(error, "reason", None), ConnectionRefusedError)
            kind = RefusedError if refused else NoAnswerError
            raise kind(f"{self._url} does not answer: {error}") from error


def _node(entry: dict[str, Any]) -> RayNode:
    total = entry.get("resources_total") or {}
    return RayNode(
        entry["node_ip"],
        entry["state"] == "ALIVE",
        float(total.get("CPU", 0.0)),
        float(total.get("GPU", 0.0)),
    )
