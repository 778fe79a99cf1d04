"""A user's cluster on two hosts: a run on both, another user outside, and nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raysuite.cluster.folder import ClusterFolder
from raysuite.records import GateVerdict, Results, RunFinished
from raysuite.records.system import system_files
from tests.lab.closed import check_files_and_sockets, check_processes, check_refused
from tests.lab.fault_checks import MlflowRest
from tests.lab.listening import listening
from tests.lab.place import LabPlace
from tests.lab.residents import NODES, Resident, bring_up, status_of, visit
from tests.marks import LAB_MARKS

pytestmark = [*LAB_MARKS, pytest.mark.timeout(1200)]

USER, OTHER = "hpc1", "hpc2"
SUBMIT = """
set -e
eval "$(raysuite cluster status --env)"
test -n "$RAY_ADDRESS" && test "$RAY_AUTH_MODE" = token
ray job submit --no-wait --submission-id waits -- sleep 3600
ray job submit --submission-id trains -- raysuite run tiny.yaml --quiet
"""


@pytest.fixture(scope="module")
def resident(whole_lab: LabPlace) -> Iterator[Resident]:
    """The user, with a job that waits, and a run that has ended."""
    lab = whole_lab
    try:
        variables = bring_up(lab, USER, "one")
        lab.run("bash", "-c", SUBMIT, user=USER, timeout_s=600)
        run = suite_in_mlflow(variables)["info"]
        has = {"job": "trains", "victims": ["waits"], "artifact": "spec.yaml"}
        has |= {"experiment": run["experiment_id"], "run": run["run_id"]}
        yield Resident(lab, USER, status_of(lab, USER), variables, has)
    finally:
        down = ("raysuite", "cluster", "down", "--all", "--grace", "0")
        lab.run(*down, user=USER, check=False, timeout_s=200)


def suite_in_mlflow(variables: dict[str, str]) -> dict[str, Any]:
    """The one run there that has another below it; both have finished."""
    folder = ClusterFolder(Path(variables["RAYSUITE_CLUSTER"]))
    found: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for run in MlflowRest(folder).runs("tiny"):
        tags = {tag["key"] for tag in run["data"]["tags"]}
        found["mlflow.parentRunId" in tags].append(run)
        assert run["info"]["status"] == "FINISHED"
    assert [len(runs) for runs in found.values()] == [1, 1]
    return found[False][0]


def processes(lab: LabPlace, host: str) -> str:
    """What runs as the user on a host."""
    words = ("ps", "-u", USER, "-o", "args=")
    return lab.run(*words, host=host, user=None, check=False).stdout


def test_it_is_up_on_two_hosts(resident: Resident) -> None:
    assert resident.status["state"] == "up"
    assert {node["host"] for node in resident.status["nodes"]} == set(NODES)
    assert resident.status["nodes_alive"] == len(NODES)
    for node in resident.status["nodes"]:
        found = {address for address, _ in listening(resident.lab, node["host"], USER)}
        assert found == {node["address"], "127.0.0.1"}


def test_a_run_has_a_worker_on_each_and_passes_the_gate(resident: Resident) -> None:
    results = Results.open(resident.lab.lab.home(USER) / "results" / "tiny")
    (plan,) = results.plans()
    assert isinstance(results.end_of(plan["run_id"]), RunFinished)
    verdicts = [r for r in results.records(plan["run_id"]) if isinstance(r, GateVerdict)]
    assert [(verdict.passed, verdict.workers) for verdict in verdicts] == [(True, 2)]
    assert set(system_files(results.journal_file(plan["run_id"]).parent)) == set(NODES)


def test_files_sockets_and_processes_are_closed_to_another(resident: Resident) -> None:
    check_files_and_sockets(resident, OTHER)
    check_processes(resident, OTHER)


def test_servers_refuse_another_and_serve_the_owner(resident: Resident) -> None:
    lab = resident.lab
    lab.run("tee", "guessed", user=OTHER, text_in="0" * 64)
    guessed = lab.lab.home(OTHER) / "guessed"
    refused = visit(OTHER, resident, guessed, "raysuite:guessed-by-chance", 0, quick=True)
    check_refused(resident, refused)
    jobs = {job["id"]: job["status"] for job in status_of(lab, USER)["jobs"]}
    assert jobs["waits"] == "RUNNING"
    served = visit(USER, resident, resident.folder / "token", resident.login, 0, quick=True)
    assert {name: each for name, each in served.items() if not each["got"]} == {}
    assert set(served) == set(refused)


def test_down_leaves_nothing(resident: Resident) -> None:
    lab = resident.lab
    lab.run("raysuite", "cluster", "down", timeout_s=200)
    assert lab.out("squeue", "-h", "-u", USER) == ""
    for host in ("login", *NODES):
        lab.wait(lambda at=host: not processes(lab, at), 60)  # type: ignore[misc]
        assert lab.out("find", "/tmp", "/dev/shm", "-user", USER, host=host) == ""
