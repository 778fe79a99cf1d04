"""What must be true of a suite after any fault: complete, recorded once, the same in MLflow."""

from __future__ import annotations

import base64
import contextlib
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.ports import ephemeral_range
from raysuite.records import EpochFinished, Results, RunFinished, run_figures
from raysuite.records.derive import current
from raysuite.track.entries import run_points
from raysuite.track.upload import RATIOS, system_points
from tests.lab.fault_cluster import FaultCluster
from tests.lab.listening import listening

_MANY = 25_000
_OWNERS = """
for pid in $(ps -u hpc1 -o pid=); do
  temp=$(tr '\\0' '\\n' 2>/dev/null </proc/$pid/environ | sed -n 's/^RAY_TMPDIR=//p')
  echo "${temp:--} $pid $(tr '\\0\\n' '  ' 2>/dev/null </proc/$pid/cmdline)"
done
"""
"""Each process of the user: the temporary folder of its node, or -, its id and its arguments."""
Row = tuple[int, float, int]
"""Step, value, milliseconds since 1970."""


class MlflowRest:
    """The cluster's MLflow server, asked as its owner."""

    def __init__(self, folder: ClusterFolder) -> None:
        user, head = folder.mlflow_user(), folder.head()
        assert user is not None
        assert head is not None
        assert head.mlflow, "not started yet"
        word = base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {word}", "Content-Type": "application/json"}
        self._url = f"{head.mlflow}/api/2.0/mlflow"

    def log(self, experiment: str, value: float) -> str:
        """Make a run of a user's own with one metric; its id."""
        with contextlib.suppress(urllib.error.HTTPError):  # it is there
            self._ask("experiments/create", {}, {"name": experiment})
        found = self._ask("experiments/get-by-name", {"experiment_name": experiment})
        begun = {"experiment_id": found["experiment"]["experiment_id"], "start_time": 1}
        run_id = str(self._ask("runs/create", {}, begun)["run"]["info"]["run_id"])
        metric = {"run_id": run_id, "key": "own", "value": value, "timestamp": 1, "step": 0}
        self._ask("runs/log-metric", {}, metric)
        return run_id

    def runs(self, experiment: str) -> list[dict[str, Any]]:
        """All runs of an experiment."""
        name = {"experiment_name": experiment}
        found = self._ask("experiments/get-by-name", name)["experiment"]["experiment_id"]
        body = {"experiment_ids": [found], "max_results": 1000}
        return list(self._ask("runs/search", {}, body).get("runs", []))

    def history(self, run_id: str, key: str) -> list[Row]:
        """Every value of a metric, sorted."""
        query = {"run_id": run_id, "metric_key": key, "max_results": str(_MANY)}
        rows = self._ask("metrics/get-history", query)["metrics"]
        return sorted((int(r.get("step", 0)), float(r["value"]), int(r["timestamp"])) for r in rows)

    def _ask(
        self, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        url = f"{self._url}/{path}?{urllib.parse.urlencode(query)}"
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(url, data, self._headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


def check_journals(results: Results) -> None:
    """Every run finished, in one journal, with every epoch and step once."""
    plans = results.plans()
    ids = [plan["run_id"] for plan in plans]
    assert len(ids) == len(set(ids))
    assert {path.name for path in (results.folder / "runs").iterdir()} == set(ids)
    for plan in plans:
        check_journal(results, plan)


def check_journal(results: Results, plan: Mapping[str, Any]) -> None:
    """One run finished, once, with every epoch and step once."""
    records = results.records(plan["run_id"])
    assert isinstance(records[-1], RunFinished), records[-1]
    assert sum(isinstance(record, RunFinished) for record in records) == 1
    epochs = [r for r in current(records) if isinstance(r, EpochFinished)]
    assert [epoch.epoch for epoch in epochs] == list(range(plan["spec"]["training"]["epochs"]))
    steps = [epoch.first_step + place for epoch in epochs for place in range(len(epoch.losses))]
    assert steps == list(range(plan["total_steps"]))


def check_mlflow(cluster: FaultCluster, results: Results, experiment: str) -> None:
    """One run in MLflow for each, with the journal's metrics: none missing, none twice."""
    rest = MlflowRest(cluster.folder)
    found = runs_by_id(rest, experiment)
    assert set(found) == {"", *(plan["run_id"] for plan in results.plans())}
    for plan in results.plans():
        run = found[plan["run_id"]]
        assert run["info"]["status"] == "FINISHED"
        check_metrics(rest, run, results, plan)


def runs_by_id(rest: MlflowRest, experiment: str) -> dict[str, dict[str, Any]]:
    """The runs in MLflow by raysuite's id, none twice; the suite's own has an empty one."""
    found: dict[str, dict[str, Any]] = {}
    for run in rest.runs(experiment):
        tags = {tag["key"]: tag["value"] for tag in run["data"]["tags"]}
        run_id = tags.get("raysuite.run_id", "")
        assert run_id not in found
        found[run_id] = run
    return found


def check_metrics(
    rest: MlflowRest, run: Mapping[str, Any], results: Results, plan: Mapping[str, Any]
) -> None:
    """A run in MLflow holds the journal's metrics: none missing, none twice."""
    expected: dict[str, list[Row]] = {}
    figures = run_figures(dict(plan), results.records(plan["run_id"]))
    samples = system_points(results.folder / "runs" / plan["run_id"])
    for point in (*run_points(figures), *samples):
        expected.setdefault(point.key, []).append((point.step, point.value, point.timestamp))
    # a variant's ratios come with the suite's figures, and change with its baseline's runs
    assert {metric["key"] for metric in run["data"]["metrics"]} - set(RATIOS) == set(expected)
    for key, rows in expected.items():
        assert rest.history(run["info"]["run_id"], key) == sorted(rows), key


def check_hosts(cluster: FaultCluster) -> None:
    """No process of an earlier start, and no port open beyond the nodes' own addresses."""
    lab = cluster.lab
    for host in lab.lab.hosts:
        with contextlib.suppress(AssertionError):  # what is left is shown below
            lab.wait(lambda at=host: not foreign(cluster, at), 120)  # type: ignore[misc]
        assert foreign(cluster, host) == []
        valid = {lab.lab.address(host), "127.0.0.1"}
        first, last = ephemeral_range()  # between them the ports are srun's own
        found = [
            (address, port)
            for address, port in listening(lab, host, "hpc1")
            if address not in valid and not first <= port <= last
        ]
        assert not found, (host, found)


def foreign(cluster: FaultCluster, host: str) -> list[str]:
    """Processes of the user on a host that belong to no node of the present start."""
    temps = {
        node.temp for node in cluster.folder.nodes() if node.incarnation == cluster.incarnation()
    }
    said = cluster.lab.run("bash", "-c", _OWNERS, host=host, user=None).stdout.splitlines()
    rows = [line.partition(" ") for line in said]
    return [f"{host}: {line}" for temp, _, line in rows if temp != "-" and temp not in temps]


def check_nothing_is_left(cluster: FaultCluster) -> None:
    """After `cluster down`: no process, file or job of the user on any host."""
    lab = cluster.lab
    assert lab.out("squeue", "-h", "-u", "hpc1") == ""
    for host in ("login", *lab.lab.hosts):
        lab.wait(lambda at=host: cluster.processes(at) == {}, 60)  # type: ignore[misc]
        assert lab.out("find", "/tmp", "/dev/shm", "-user", "hpc1", host=host) == ""
