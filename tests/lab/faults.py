"""The faults: each finds a run in its midst, and returns once the run may go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from raysuite.orchestrate.groups import checkpoint_folder
from raysuite.orchestrate.stopping import requested_stop
from raysuite.records import RunFailed, RunStarted, RunStopped
from tests.lab.fault_cluster import FaultCluster

OUTAGE_S = 60.0
Fault = Callable[[FaultCluster, int], None]
"""Strikes the run of a seed."""
ALONE = ("mlflow", "mlflow_killed")
"""Runs that MLflow is to be told of at once."""


def worker(cluster: FaultCluster, seed: int) -> None:
    """A worker's process is killed."""
    held = cluster.held(seed)
    cluster.release(seed)
    cluster.kill(held.host, held.pid)
    _taken_up(cluster, seed)


def raylet(cluster: FaultCluster, seed: int) -> None:
    """A node's raylet is killed; the node joins again."""
    cluster.held(seed)
    host = _second(cluster)
    address = cluster.node(host).address
    cluster.kill(host, cluster.find(host, "/raylet"))
    cluster.release(seed)
    cluster.wait(lambda: not _is_alive(cluster, address), f"{host} counted as dead")
    cluster.wait(lambda: _is_alive(cluster, address), f"{host} back")
    _taken_up(cluster, seed)


def mlflow(cluster: FaultCluster, seed: int) -> None:
    """MLflow's server answers nothing for a minute, in which the run ends."""
    held = cluster.held(seed)
    assert held
    server = _mlflow_server(cluster)
    cluster.kill(cluster.head().host, -server, signal="STOP")
    cluster.release(seed)
    end = time.monotonic() + OUTAGE_S
    results, run_id = cluster.results(), cluster.run_id(seed)
    cluster.wait(lambda: results.end_of(run_id) is not None, "the end of the run")
    cluster.wait(lambda: time.monotonic() > end, "the end of the outage")
    cluster.kill(cluster.head().host, -server, signal="CONT")


def mlflow_killed(cluster: FaultCluster, seed: int) -> None:
    """MLflow's server is killed."""
    cluster.held(seed)
    server = _mlflow_server(cluster)
    cluster.kill(cluster.head().host, -server)
    cluster.release(seed)
    cluster.wait(lambda: _mlflow_server(cluster) != server, "another server")


def mlflow_six(cluster: FaultCluster, seed: int) -> None:
    """MLflow's server is killed six times, each time as soon as there is another."""
    cluster.held(seed)
    for _ in range(6):
        server = _mlflow_server(cluster)
        cluster.kill(cluster.head().host, -server)
        cluster.wait(lambda old=server: _mlflow_server(cluster) not in (0, old), "another server")  # type: ignore[misc]
    cluster.release(seed)


def step(cluster: FaultCluster, seed: int) -> None:
    """slurmd's step on a node is killed; the others go on without it until the step starts anew."""
    cluster.held(seed)
    host = _second(cluster)
    address = cluster.node(host).address
    cluster.kill(host, _slurmstepd(cluster, host))
    cluster.wait(lambda: not _is_alive(cluster, address), f"{host} counted as dead")
    cluster.release(seed)
    _taken_up(cluster, seed)


def whole_step(cluster: FaultCluster, seed: int) -> None:
    """The job's step is killed on all nodes; the batch script starts another."""
    cluster.held(seed)
    before = cluster.incarnation()
    number = before.rpartition("-")[2]
    cluster.lab.run("scancel", "--signal=KILL", f"{cluster.job}.{number}")
    cluster.release(seed)
    _started_again(cluster, before)
    _taken_up(cluster, seed)


def head(cluster: FaultCluster, seed: int) -> None:
    """Ray's head dies; the cluster is started again in the same allocation."""
    cluster.held(seed)
    before = cluster.incarnation()
    host = cluster.head().host
    cluster.kill(host, cluster.find(host, "/gcs_server"))
    cluster.release(seed)
    _started_again(cluster, before)
    _taken_up(cluster, seed)


def agent(cluster: FaultCluster, seed: int) -> None:
    """The head's agent is killed, which nothing can catch."""
    cluster.held(seed)
    before = cluster.incarnation()
    host = cluster.head().host
    cluster.kill(host, cluster.node(host).pid)
    cluster.release(seed)
    _started_again(cluster, before)
    _taken_up(cluster, seed)


def node(cluster: FaultCluster, seed: int) -> None:
    """A node falls silent: the run goes on on the others, and the cable is mended later."""
    _without_second(cluster, seed, lambda host, on: cluster.lab.link(host, up=on))


def head_host(cluster: FaultCluster, seed: int) -> None:
    """The head's host loses its power: SLURM queues the job again, and the suite goes on."""
    cluster.held(seed)
    before, host = cluster.incarnation(), cluster.head().host
    cluster.lab.power(host, on=False)
    cluster.release(seed)
    cluster.wait(lambda: cluster.lab.node_state(host).startswith("down"), f"SLURM gives up {host}")
    cluster.lab.power(host, on=True)
    _started_again(cluster, before)
    _taken_up(cluster, seed)


def time_limit(cluster: FaultCluster, seed: int) -> None:
    """The job's time is up: the run stops with a checkpoint, and the job is queued again."""
    cluster.held(seed)
    before = cluster.incarnation()
    cluster.lab.end_soon(cluster.job)
    results = cluster.results().folder
    cluster.wait(lambda: requested_stop(results) is not None, "the warning")
    cluster.release(seed)
    cluster.wait(lambda: bool(cluster.records(seed, RunStopped)), "a checkpoint in mid-epoch")
    (stop,) = (r for r in cluster.records(seed, RunStopped) if isinstance(r, RunStopped))
    assert stop.reason == "time_limit"
    _started_again(cluster, before)
    cluster.lab.set_limit(cluster.job, 45)
    _taken_up(cluster, seed)
    begins = [r.first_step for r in cluster.records(seed, RunStarted) if isinstance(r, RunStarted)]
    assert begins[-1] == stop.step


def preempt(cluster: FaultCluster, seed: int) -> None:
    """The job is put back into the queue."""
    cluster.held(seed)
    before = cluster.incarnation()
    cluster.lab.run("scontrol", "requeue", cluster.job, user=None)
    cluster.release(seed)
    _started_again(cluster, before)
    _taken_up(cluster, seed)


def host(cluster: FaultCluster, seed: int) -> None:
    """A host without the head loses its power, and comes back later."""
    _without_second(cluster, seed, lambda host, on: cluster.lab.power(host, on=on))


def _without_second(
    cluster: FaultCluster, seed: int, switch: Callable[[str, bool], object]
) -> None:
    cluster.held(seed)
    name = _second(cluster)
    switch(name, False)
    cluster.release(seed)
    _taken_up(cluster, seed)
    cluster.wait(
        lambda: cluster.lab.node_state(name).startswith(("down", "idle")), f"SLURM gives up {name}"
    )
    switch(name, True)


def driver(cluster: FaultCluster, seed: int) -> None:
    """The suite's driver is killed: the head's agent notices, and hands the suite in again."""
    cluster.held(seed)
    before = cluster.driver()
    cluster.kill(cluster.head().host, before)
    cluster.release(seed)
    cluster.wait(lambda: cluster.driver() not in (0, before), "another driver")
    _taken_up(cluster, seed)


def results_full(cluster: FaultCluster, seed: int) -> None:
    """The users' homes, and results with them, are full until the driver has ended."""
    cluster.held(seed)
    before, host = cluster.driver(), cluster.head().host
    cluster.lab.fill_home()
    cluster.release(seed)
    cluster.wait(lambda: before not in cluster.processes(host), "the end of the driver")
    cluster.lab.empty_home()
    cluster.wait(lambda: cluster.driver() not in (0, before), "another driver")
    _taken_up(cluster, seed)


def results_read_only(cluster: FaultCluster, seed: int) -> None:
    """The results are read-only on all hosts until the driver has ended."""
    cluster.held(seed)
    before, host = cluster.driver(), cluster.head().host
    folder, hosts = str(cluster.results().folder), cluster.lab.lab.hosts
    for each in hosts:
        cluster.lab.out("mount", "--bind", folder, folder, host=each, user=None)
        cluster.lab.out("mount", "-o", "remount,bind,ro", folder, host=each, user=None)
    cluster.release(seed)
    cluster.wait(lambda: before not in cluster.processes(host), "the end of the driver")
    for each in hosts:
        cluster.lab.out("umount", "--lazy", folder, host=each, user=None)
    cluster.wait(lambda: cluster.driver() not in (0, before), "another driver")
    _taken_up(cluster, seed)


def checkpoint_damaged(cluster: FaultCluster, seed: int) -> None:
    """Bytes in the middle of each file of a checkpoint are overwritten, and a worker is killed."""
    held = cluster.held(seed)
    folder = checkpoint_folder(cluster.results(), cluster.run_id(seed))
    for file in (each for each in folder.rglob("*") if each.is_file()):
        _overwrite(file)
    cluster.release(seed)
    cluster.kill(held.host, held.pid)
    _taken_up(cluster, seed, least_epoch=0)


def journal_damaged(cluster: FaultCluster, seed: int) -> None:
    """Bytes in the middle of a run's journal are overwritten, and the driver is killed."""
    cluster.held(seed)
    before = cluster.driver()
    journal = cluster.results().journal_file(cluster.run_id(seed))
    _overwrite(journal)
    cluster.kill(cluster.head().host, before)
    cluster.release(seed)
    cluster.wait(lambda: cluster.driver() not in (0, before), "another driver")


def _overwrite(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.seek(file.stat().st_size // 2)
        stream.write(b"\xff" * 16)


def scratch_full(cluster: FaultCluster, seed: int) -> None:
    """/tmp on the head's host is full while the run ends: Ray and MLflow write there."""
    cluster.held(seed)
    host, run_id = cluster.head().host, cluster.run_id(seed)
    used = cluster.lab.out("df", "--output=used", "-B1", "/tmp", host=host).split()[-1]
    cluster.lab.out("mount", "-o", f"remount,size={used}", "/tmp", host=host, user=None)
    cluster.release(seed)
    results = cluster.results()
    cluster.wait(lambda: results.end_of(run_id) is not None, "the end of the run")
    cluster.lab.out("mount", "-o", "remount,size=8g", "/tmp", host=host, user=None)


def database(cluster: FaultCluster, seed: int) -> None:
    """A part of MLflow's database is overwritten, and its server is killed."""
    cluster.held(seed)
    head, server = cluster.head().host, _mlflow_server(cluster)
    file = f"{cluster.node(head).temp}/mlflow/mlflow.db"
    words = ("if=/dev/urandom", f"of={file}", "bs=4096", "seek=2", "count=40", "conv=notrunc")
    cluster.lab.out("dd", *words, host=head, user=None)
    cluster.kill(head, -server)
    cluster.release(seed)
    cluster.wait(lambda: _mlflow_server(cluster) not in (0, server), "another server")


def _second(cluster: FaultCluster) -> str:
    """A host that is not the head's and holds a worker of ours: each of three does."""
    alive = cluster.folder.alive()
    assert alive is not None
    hosts = (node for node in cluster.folder.nodes() if node.address in alive.addresses)
    return [node.host for node in hosts if node.host != cluster.head().host][-1]


def _is_alive(cluster: FaultCluster, address: str) -> bool:
    alive = cluster.folder.alive()
    return alive is not None and address in alive.addresses


def _mlflow_server(cluster: FaultCluster) -> int:
    found = cluster.processes(cluster.head().host).items()
    return next((pid for pid, args in found if "-m mlflow server" in args), 0)


def _slurmstepd(cluster: FaultCluster, host: str) -> int:
    """The process that holds the step of the agents on a host."""
    step = cluster.incarnation().rpartition("-")[2]
    title = f"slurmstepd: [{cluster.job}.{step}]"
    words = ("ps", "-e", "-o", "pid=,args=")
    rows = cluster.lab.run(*words, host=host, user=None).stdout.splitlines()
    return next(int(row.split()[0]) for row in rows if title in row)


def _started_again(cluster: FaultCluster, before: str) -> None:
    cluster.wait(lambda: cluster.incarnation() not in ("", before), "another start of the head")


def _taken_up(cluster: FaultCluster, seed: int, least_epoch: int = 2) -> None:
    """Wait until the run is resumed, from a checkpoint of that epoch or a later one."""

    def begins() -> list[int]:
        found = cluster.records(seed, RunStarted)
        return [record.first_epoch for record in found if isinstance(record, RunStarted)]

    cluster.wait(lambda: len(begins()) > 1, f"run {seed} taken up")
    assert begins()[-1] >= least_epoch, begins()
    assert not cluster.records(seed, RunFailed)
