"""Suites that are asked to stop, and nodes that go away: nothing is lost, nothing done twice."""

from __future__ import annotations

import secrets
import signal
import time
from pathlib import Path

import psutil
import pytest

from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.ports import free_port
from raysuite.cluster.state_files import Stop
from raysuite.cluster.suites import suites_to_resume
from raysuite.records import (
    EpochFinished,
    Record,
    Results,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    read_journal,
)
from tests.integration.workplace import Command, Workplace, has_checkpoint, until_ended
from tests.marks import SLOW_MARKS
from tests.waiting import until

pytestmark = [*SLOW_MARKS, pytest.mark.thorough, pytest.mark.timeout(900)]

SLOW = """\
name: slow
model: own:Slow
data: digits
strategy: ddp
training: {epochs: 3, global_batch: 24}
resources: {device: cpu, workers: 2}
measure: {warmup_steps: 2}
"""
STEPS = 60
"""Of an epoch of 1437 images."""
LEAVING = """\
name: leaving
model: own:Holding
data: digits
strategy: ddp
training: {epochs: 4, global_batch: 240}
resources: {device: cpu, workers: 2, retries: 1, wait_for_nodes_s: 1, elastic: true}
matrix: {seed: [0, 1]}
"""


HOLDING = """\
import os, pathlib, signal, time, torch
signal.signal(signal.SIGTERM, signal.SIG_IGN)
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    model(torch.randn(4, 4)).sum().backward()
    optimizer.step()
pathlib.Path(f"held-{os.getpid()}").touch()
while os.path.exists("hold"):
    time.sleep(0.05)
"""


def of_kind(results: Results, kind: type[Record]) -> list[Record]:
    (plan,) = results.plans()
    return [record for record in results.records(plan["run_id"]) if isinstance(record, kind)]


def slow_results(workplace: Workplace) -> Results:
    return Results.open(workplace.folder / "results" / "slow")


def losses(epochs: list[Record]) -> list[list[float]]:
    return [epoch.losses for epoch in epochs if isinstance(epoch, EpochFinished)]


class Nodes:
    """Ray nodes of one CPU each, at addresses of their own on this machine."""

    PORTS = (
        *("dashboard-agent-grpc", "dashboard-agent-listen"),
        *("metrics-export", "runtime-env-agent"),
    )

    def __init__(self, workplace: Workplace) -> None:
        self._workplace, self._nodes = workplace, 0
        address = f"127.0.0.1:{free_port()}"
        self.variables = {"RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_AUTH_MODE": "token"}
        port = address.partition(":")[2]
        words = ("--head", f"--port={port}", f"--temp-dir={workplace.temporary}")
        self.add(*words, "--include-dashboard=false")
        self.variables["RAY_ADDRESS"] = address

    def add(self, *words: str) -> Command:
        self._nodes += 1
        words = words or (f"--address={self.variables['RAY_ADDRESS']}",)
        words += ("--block", "--num-cpus=1", "--disable-usage-stats")
        words += tuple(f"--{name}-port={free_port()}" for name in self.PORTS)
        place = f"--node-ip-address=127.0.0.{self._nodes}"
        folder = self._workplace.folder / f"node{self._nodes}"
        folder.mkdir()
        variables = {name: each for name, each in self.variables.items() if name != "RAY_ADDRESS"}
        began = self._workplace.start("ray", "start", *words, place, folder=folder, **variables)
        until(lambda: "Ray runtime started" in began.stdout or began.process.poll() is not None)
        assert began.process.poll() is None, began.stdout + began.stderr
        return began


@pytest.fixture(scope="module")
def nodes(workplace: Workplace) -> Nodes:
    """The head alone."""
    return Nodes(workplace)


@pytest.fixture(scope="module")
def second(nodes: Nodes) -> Command:
    """Another node."""
    return nodes.add()


@pytest.fixture(scope="module")
def cluster_folder(workplace: Workplace) -> ClusterFolder:
    (workplace.folder / "cluster").mkdir()
    return ClusterFolder(workplace.folder / "cluster")


@pytest.fixture(scope="module")
def attempts(
    workplace: Workplace, cluster_folder: ClusterFolder, nodes: Nodes, second: Command
) -> list[str]:
    """What three attempts at one run said: its cluster stops the first, SIGTERM the second."""
    workplace.write("slow.yaml", SLOW)
    workplace.write("dawdle", "")
    here = {"RAYSUITE_CLUSTER": str(cluster_folder.path), **nodes.variables}
    first = workplace.start("raysuite", "run", "slow.yaml", "--no-mlflow", **here)
    until(lambda: reached(workplace, EpochFinished, 1) or first.process.poll() is not None)
    cluster_folder.write(Stop(reason="time_limit", deadline=time.time() + 300))
    assert first.wait() == 75, first.stdout + first.stderr
    said = [first.stderr]
    cluster_folder.forget(Stop)

    (resume,) = suites_to_resume(cluster_folder)
    assert resume.folder == workplace.folder
    assert "--no-mlflow" in resume.words
    again = workplace.start(*resume.words, "--stop-within", "300", **here)
    until(lambda: reached(workplace, RunStarted, 2) or again.process.poll() is not None)
    assert suites_to_resume(cluster_folder) == [], "its driver is at work"
    again.process.send_signal(signal.SIGTERM)
    assert again.wait() == 75, again.stdout + again.stderr
    said.append(again.stderr)
    assert suites_to_resume(cluster_folder) == [], "a person ended it"

    (workplace.folder / "dawdle").unlink()
    words = ("raysuite", "run", "--resume-from", str(workplace.results().folder))
    return [*said, workplace.run(*words, "--no-mlflow", **here).stderr]


def reached(workplace: Workplace, kind: type[Record], count: int) -> bool:
    journals = (workplace.folder / "results").glob("*/*/runs/*/journal.jsonl")
    return any(
        sum(isinstance(record, kind) for record in read_journal(journal)) >= count
        for journal in journals
    )


def test_it_says_how_to_go_on(attempts: list[str], workplace: Workplace) -> None:
    reasons = ("time limit", "interrupted")
    for said, reason in zip(attempts, reasons, strict=False):
        folder = slow_results(workplace).folder
        hint = f"stopped ({reason}); resume with: raysuite run --resume-from {folder}"
        assert hint in said
        assert "Traceback" not in said
    assert attempts[2] == ""


def test_it_stops_in_mid_epoch_and_is_taken_up_there(
    attempts: list[str], workplace: Workplace
) -> None:
    results = slow_results(workplace)
    stops = [stop for stop in of_kind(results, RunStopped) if isinstance(stop, RunStopped)]
    assert [stop.reason for stop in stops] == ["time_limit", "interrupted"]
    assert STEPS < stops[0].step < 2 * STEPS, "in the second epoch"
    assert stops[0].step < stops[1].step < 3 * STEPS
    starts = [start for start in of_kind(results, RunStarted) if isinstance(start, RunStarted)]
    assert [start.first_step for start in starts] == [0, *(stop.step for stop in stops)]
    assert isinstance(results.records(stops[0].run_id)[-1], RunFinished)


def test_it_trains_what_an_undisturbed_run_trains(
    attempts: list[str], workplace: Workplace
) -> None:
    alone = workplace.folder / "alone"
    words = ("torchrun", "--nproc-per-node", "2", "--master-port", str(free_port()))
    workplace.run(*words, "-m", "raysuite.train", "slow.yaml", "--results", str(alone))
    epochs = of_kind(slow_results(workplace), EpochFinished)
    assert [epoch.epoch for epoch in epochs if isinstance(epoch, EpochFinished)] == [0, 1, 2]
    expected = of_kind(Results.open(alone), EpochFinished)
    assert losses(epochs) == losses(expected)


def ranks(script: Path) -> list[psutil.Process]:
    """Processes with the path of a script on their command line, but for its driver."""
    found = psutil.process_iter(["cmdline"])
    return [
        each
        for each in found
        if str(script) in (words := each.info["cmdline"] or []) and "scale" not in words
    ]


def test_a_script_outlives_a_worker_and_is_stopped_and_resumed_without_orphans(
    workplace: Workplace, nodes: Nodes, second: Command
) -> None:
    script = workplace.folder / "train.py"
    script.write_text(HOLDING)
    hold = workplace.folder / "hold"
    hold.touch()
    words = ("raysuite", "scale", "--no-mlflow", "--workers", "2", "--repeats", "1")
    words += ("--device", "cpu", "--warmup-steps", "2", "--placement", "spread")
    command = workplace.start(*words, "--", str(script), **nodes.variables)

    def held(count: int) -> list[psutil.Process]:
        """Wait until that many ranks hold; the processes of both ranks and their guards."""
        until(lambda: len(list(workplace.folder.glob("held-*"))) == count or alive_no_more())
        assert command.process.poll() is None, command.stdout + command.stderr
        return ranks(script)

    def alive_no_more() -> bool:
        return command.process.poll() is not None

    first = held(2)
    assert len(first) == 4
    (rank,) = [each for each in first if each.environ().get("RANK") == "1" and is_guard(each)]
    worker = rank.parent()
    assert worker is not None
    assert worker.name().startswith("ray::RayTrainWorker")
    worker.kill()
    until_ended(first, 60)
    again = held(4)
    command.process.send_signal(signal.SIGTERM)
    assert command.wait() == 75, command.stdout + command.stderr
    until_ended(again, 5)
    hold.unlink()
    results = workplace.results()
    (plan,) = results.plans()
    assert results.end_of(plan["run_id"]) is None
    resume = ("raysuite", "scale", "--resume-from", str(results.folder), "--no-mlflow")
    workplace.run(*resume, **nodes.variables)
    records = results.records(plan["run_id"])
    assert isinstance(records[-1], RunFinished)
    assert sum(isinstance(record, RunStarted) for record in records) == 3
    assert not ranks(script)


def is_guard(process: psutil.Process) -> bool:
    return "raysuite.cluster.guard" in process.cmdline()


@pytest.fixture(scope="module")
def bereft(workplace: Workplace, nodes: Nodes, second: Command) -> tuple[Command, Results]:
    """Two runs on two nodes: the first loses one of them, and there is another; the second too."""
    workplace.write("leaving.yaml", LEAVING)
    for name in ("torch-0", "torch-1"):
        workplace.write(f"hold-{name}", "")
    command = workplace.start("raysuite", "run", "leaving.yaml", "--no-mlflow", **nodes.variables)

    def hold(place: int) -> None:
        workplace.held(command)
        results = workplace.results()
        until(lambda: has_checkpoint(results, results.plans()[place]["run_id"]))

    hold(0)
    third = nodes.add()
    second.end()
    (workplace.folder / "hold-torch-0").unlink()
    hold(1)
    third.end()
    (workplace.folder / "hold-torch-1").unlink()
    command.wait()
    return command, workplace.results()


def test_a_run_whose_node_is_lost_goes_on_with_another(bereft: tuple[Command, Results]) -> None:
    command, results = bereft
    records = results.records(results.plans()[0]["run_id"])
    assert isinstance(records[-1], RunFinished), command.stdout + command.stderr
    first, again = [record for record in records if isinstance(record, RunStarted)]
    assert (first.first_epoch, again.first_epoch > 0) == (0, True)
    assert not any(isinstance(record, RunFailed) for record in records)
    assert "node lost: " in command.stderr


def test_a_node_that_stays_away_is_told_and_fewer_workers_make_the_run(
    bereft: tuple[Command, Results],
) -> None:
    command, results = bereft
    assert command.process.returncode == 1
    _, lost, elastic = results.plans()
    end = results.end_of(lost["run_id"])
    assert isinstance(end, RunFailed)
    assert end.reason == "node_lost"
    assert end.message.startswith("2 workers with 1 CPU each need more than the 1 node(s)")
    assert isinstance(results.end_of(elastic["run_id"]), RunFinished)
    assert (elastic["workers"], elastic["global_batch"], elastic["seed"]) == (1, 240, 1)
    starts = [r for r in results.records(elastic["run_id"]) if isinstance(r, RunStarted)]
    assert [start.first_epoch for start in starts] == [0]
    assert "failed (node lost): " in command.stdout
    assert "elastic_of=2" in (results.folder / "rows.md").read_text("utf-8")
