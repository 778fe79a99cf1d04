"""Everything that a user of a site may try against a cluster: what she got, and what she was told.

Run as a program, with the cluster's addresses as JSON on standard input (`Known`). Her own token
comes by Ray's variables, as everywhere; her MLflow name and password stand in the input. What is
tried by the cluster's owner succeeds, so that a refusal is one.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypedDict

PATIENCE_S = 240


class Known(TypedDict):
    """What anybody on the nodes can find out: addresses, ports, and how ids look."""

    gcs: str
    client: str
    dashboard: str
    mlflow: str
    listening: list[tuple[str, int]]
    """Address and port of all that the cluster's processes listen on."""
    job: str
    victim: str
    """A job that may be stopped."""
    experiment: str
    run: str
    artifact: str
    """A file of that run."""
    login: str
    """NAME:PASSWORD for MLflow; empty for none."""
    quick: bool
    """Leave out what starts a whole driver of Ray's."""


RAY = """
import sys, ray
ray.init(sys.argv[1], log_to_driver=False)
print(sorted(ray.cluster_resources()), ray.get(ray.remote(num_cpus=0)(lambda: 6 * 7).remote()))
"""
GCS = """
import sys, ray._raylet as r
print(len(r.GcsClient(address=sys.argv[1]).get_all_node_info(timeout=60)), "nodes")
"""
STATE = """
import sys
from ray.util.state import list_actors
print(len(list_actors(address=sys.argv[1])), "actors")
"""
PAGES = {
    "jobs page": "/api/jobs/",
    "nodes page": "/nodes?view=summary",
    "nodes API": "/api/v0/nodes",
    "actors API": "/api/v0/actors",
    "state of the cluster": "/api/cluster_status",
    "version": "/api/version",
}
MLFLOW = {
    "MLflow's pages": ("GET", "/", None),
    "MLflow's sign-up": ("GET", "/signup", None),
    "a new user": (
        "POST",
        "/api/2.0/mlflow/users/create",
        {"username": "guest", "password": "guest-of-the-house"},
    ),
    "experiments": ("GET", "/api/2.0/mlflow/experiments/search?max_results=9", None),
    "experiments for pages": ("GET", "/ajax-api/2.0/mlflow/experiments/search?max_results=9", None),
    "runs": ("POST", "/api/2.0/mlflow/runs/search", {"experiment_ids": ["{experiment}"]}),
    "a run": ("GET", "/api/2.0/mlflow/runs/get?run_id={run}", None),
    "a metric's history": (
        "GET",
        "/api/2.0/mlflow/metrics/get-history?run_id={run}&metric_key=metric",
        None,
    ),
    "a metric written": (
        "POST",
        "/api/2.0/mlflow/runs/log-metric",
        {"run_id": "{run}", "key": "forged", "value": 1.0, "timestamp": 1},
    ),
    "a run renamed": (
        "POST",
        "/api/2.0/mlflow/runs/update",
        {"run_id": "{run}", "run_name": "forged"},
    ),
    "artifacts listed": ("GET", "/api/2.0/mlflow/artifacts/list?run_id={run}", None),
    "an artifact read": (
        "GET",
        "/api/2.0/mlflow-artifacts/artifacts/{experiment}/{run}/artifacts/{artifact}",
        None,
    ),
    "an artifact for pages": ("GET", "/get-artifact?path={artifact}&run_uuid={run}", None),
    "an artifact written": (
        "PUT",
        "/api/2.0/mlflow-artifacts/artifacts/{experiment}/{run}/artifacts/forged",
        {},
    ),
}
METHODS = (
    "NodeInfoGcsService/GetAllNodeInfo",
    "InternalKVGcsService/InternalKVKeys",
    "NodeManagerService/GetNodeStats",
    "ReporterService/GetTraceback",
    "CoreWorkerService/GetCoreWorkerStats",
    "RayletDriver/KVList",
)
BARE = ("/", "/metrics", "/logs/", "/api/jobs/", "/api/job_agent/jobs/")


def attempts(known: Known) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each thing to try, by name; it raises where it is refused."""
    yield "GCS", lambda: program(GCS, known["gcs"])
    if not known["quick"]:
        yield "ray.init", lambda: program(RAY, known["gcs"])
        yield "Ray Client", lambda: patiently(RAY, f"ray://{known['client']}")
        yield "state API", lambda: program(STATE, known["dashboard"])
    for name, path in PAGES.items():
        yield name, lambda path=path: asked(known["dashboard"] + path, ray_token())
    yield from jobs(known)
    values = {name: known[name] for name in ("experiment", "run", "artifact")}
    sign = basic(known["login"])
    for name, (verb, path, body) in MLFLOW.items():
        url = known["mlflow"] + _filled(path, values)
        filled = None if body is None else json.loads(_filled(json.dumps(body), values))
        yield name, lambda u=url, v=verb, b=filled: asked(u, sign, v, b)
    for method in METHODS:
        yield f"gRPC {method}", lambda method=method: rpc(known["listening"], method)
    yield "bare HTTP", lambda: bare(known["listening"])


def patiently(code: str, *words: str) -> Any:
    """Ray Client's server looks at every process of the host, and fails where one just ends; the
    one that it starts for each client may not be there in its time."""
    for _ in range(4):
        try:
            return program(code, *words)
        except RuntimeError as error:
            if not any(word in str(error) for word in ("zombi", "Initialization failure")):
                raise
    return program(code, *words)


def jobs(known: Known) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Ray's job API, through its own client."""
    from ray.job_submission import JobSubmissionClient

    def client() -> JobSubmissionClient:
        return JobSubmissionClient(known["dashboard"])

    yield "jobs listed", lambda: len(client().list_jobs())
    yield "a job's logs", lambda: client().get_job_logs(known["job"])
    yield "a job submitted", lambda: client().submit_job(entrypoint="id")
    yield "a job stopped", lambda: client().stop_job(known["victim"])


def program(code: str, *words: str) -> str:
    """What Python code prints, in a process of its own, which may hang."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-400:])
    return done.stdout.strip()


def asked(url: str, sign: str, verb: str = "GET", body: Any = None) -> str:
    """The answer's first words; HTTPError where the status is no success."""
    headers = {"content-type": "application/json"} | ({"authorization": sign} if sign else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers, method=verb)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as answer:
        return str(answer.read(200))


def ray_token() -> str:
    file = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return f"Bearer {Path(file).read_text('utf-8').strip()}" if file else ""


def basic(login: str) -> str:
    return f"Basic {base64.b64encode(login.encode()).decode()}" if login else ""


def rpc(listening: list[tuple[str, int]], method: str) -> str:
    """Where an empty message is answered well; raises where that is nowhere."""
    import grpc

    token = ray_token()
    told = []
    for address, port in listening:
        with grpc.insecure_channel(f"{address}:{port}") as channel:
            call = channel.unary_unary(
                f"/ray.rpc.{method}",
                request_serializer=lambda message: message,
                response_deserializer=lambda message: message,
            )
            try:
                sign = [("authorization", token)] if token else []
                call(b"", timeout=20, metadata=[*sign, ("client_id", "visitor")])
                told.append(f"{port} OK")
            except grpc.RpcError as error:
                told.append(f"{port} {error.code().name}")
    words = ", ".join(told)
    if "OK" not in words:
        raise PermissionError(words)
    return words


def bare(listening: list[tuple[str, int]]) -> list[str]:
    """PORT PATH of all that is given to everyone; raises where that is nothing."""
    given = []
    for address, port in listening:
        for path in BARE:
            try:
                asked(f"http://{address}:{port}{path}", "")
                given.append(f"{port} {path}")
            except (OSError, HTTPException):  # refused; or gRPC, which answers in frames
                pass
    if not given:
        raise PermissionError("nothing")
    return given


def _filled(text: str, values: dict[str, Any]) -> str:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def outcome(attempt: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"got": True, "said": attempt()}
    except Exception as error:
        return {"got": False, "said": f"{type(error).__name__}: {error}"[:400]}


def main() -> None:
    known: Known = json.load(sys.stdin)
    names, tries = zip(*attempts(known), strict=True)
    with ThreadPoolExecutor(4) as pool:
        print(json.dumps(dict(zip(names, pool.map(outcome, tries), strict=True)), indent=1))


if __name__ == "__main__":
    main()
