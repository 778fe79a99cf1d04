"""What is made of nodes that leave, come back, or stay away."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from raysuite.orchestrate import controller, leaving_nodes
from raysuite.orchestrate.capacity import Capacity, Node
from raysuite.orchestrate.controller import (
    DeadlineError,
    NodeKeeper,
    StoppedError,
)
from raysuite.orchestrate.leaving_nodes import Need, NodesGoneError, changes, with_fewer
from raysuite.orchestrate.preflight import too_large
from raysuite.orchestrate.stopping import request_stop
from raysuite.plan import RunPlan, make_plans
from raysuite.records import Journal, Results, RunFailed
from raysuite.spec import parse_document
from raysuite.train.stop_together import Stop

FULL, HALF = Capacity((Node(2, 0), Node(2, 0))), Capacity((Node(2, 0),))


def plan_of(resources: str = "workers: 4") -> RunPlan:
    text = (
        "name: a\nmodel: resnet20\ndata: digits\nstrategy: ddp\n"
        f"training: {{epochs: 1, global_batch: 120}}\nresources: {{device: cpu, {resources}}}\n"
    )
    return make_plans(parse_document(text, "x.yaml"), gpus=0)[0]


@pytest.mark.parametrize(
    ("need", "capacity", "fit"),
    [
        (Need(4, 1, False), FULL, 4),
        (Need(4, 1, False), HALF, 2),
        (Need(4, 2, False), FULL, 2),
        (Need(4, 1, True), FULL, 0),
        (Need(4, 1, True), Capacity((Node(9, 3),)), 3),
        (Need(4, 3, False), HALF, 0),
        (Need(4, 12, False), Capacity((Node(16, 0),) * 3), 3),
        (Need(8, 4, True), Capacity((Node(64, 0), Node(8, 8))), 2),
    ],
)
def test_how_many_workers_fit(need: Need, capacity: Capacity, fit: int) -> None:
    assert need.fit(capacity) == fit


def test_a_worker_that_no_node_holds_is_told_beforehand() -> None:
    plan = plan_of("workers: 4, cpus_per_worker: 12")
    assert too_large(plan, Capacity((Node(16, 0),) * 4)) == []
    (mistake,) = too_large(plan, Capacity((Node(40, 0), Node(8, 0))))
    assert "48 CPUs and 0 GPUs" in mistake.message
    assert mistake.message.endswith("at most 3 workers fit")


def test_images_that_no_node_holds_are_told_beforehand() -> None:
    plan = plan_of("workers: 1")
    large = plan.model_copy(update={"dataset": replace(plan.dataset, image_size=10**6)})
    room = Capacity((Node(16, 0, 2.0**34), Node(16, 0, 2.0**30)))
    assert too_large(plan, room) == []
    need = 120 * 64 * 4  # images of 8 x 8 values of 4 bytes
    for memory, count in ((need, 0), (need - 1, 1)):
        assert len(too_large(plan, Capacity((Node(1, 0, memory), Node(1, 0, 9))))) == count
    (mistake,) = too_large(large, room)
    assert mistake.key == "data.image_size"
    assert "16.0 GiB" in mistake.message


class Cluster:
    """A cluster whose nodes are what a list says, look by look; the last look stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *seen: Capacity) -> None:
        self.looks, self._seen = 0, seen
        monkeypatch.setattr(Capacity, "now", self.look)
        monkeypatch.setattr(controller, "_POLL_S", 0.01)

    def look(self) -> Capacity:
        self.looks += 1
        return self._seen[min(self.looks, len(self._seen)) - 1]


def keeper_of(results: Path, wait_s: float = 60.0, deadline: float | None = None) -> NodeKeeper:
    plan = plan_of()
    return NodeKeeper(
        Need.of(plan), wait_s, results, results / "hosts.json", [plan.run_id], deadline
    )


def test_workers_start_when_the_node_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(monkeypatch, HALF, HALF, HALF, FULL)
    keeper_of(tmp_path).wait()
    assert cluster.looks == 4


def test_it_is_waited_for_so_long_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(monkeypatch, HALF)
    began = time.monotonic()
    with pytest.raises(NodesGoneError) as raised:
        keeper_of(tmp_path, 0.3).wait()
    assert time.monotonic() - began >= 0.3
    assert cluster.looks > 1
    message = (
        "4 workers with 1 CPU each need more than the 1 node(s) that are left: 2 CPUs and 0 GPUs "
        "are enough for 2 worker(s), and no node returned within 0.3 s"
    )
    assert str(raised.value) == message


def test_who_waits_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Cluster(monkeypatch, HALF)
    request_stop(tmp_path, Stop("preempted"))
    with pytest.raises(StoppedError):
        keeper_of(tmp_path).wait()


def test_who_waits_has_no_longer_than_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cluster(monkeypatch, HALF)
    keeper = keeper_of(tmp_path, wait_s=0.01, deadline=time.time() - 1)
    with pytest.raises(DeadlineError):
        keeper.wait()
    keeper.follow([plan_of()], time.time() + 600)  # the next runs have a limit of their own
    with pytest.raises(NodesGoneError):
        keeper.wait()
    keeper.follow([plan_of()], time.time() - 1)
    with pytest.raises(DeadlineError):
        keeper.wait()


def test_workers_that_do_not_stop_in_time_are_ended(tmp_path: Path) -> None:
    keeper = keeper_of(tmp_path)
    keeper.check()
    for deadline in (None, time.time() + 600):
        request_stop(tmp_path, Stop("preempted", deadline))
        keeper.check()
    request_stop(tmp_path, Stop("preempted", time.time() + 1))
    with pytest.raises(StoppedError):
        keeper.check()
    request_stop(tmp_path, Stop("preempted"))
    keeper.follow([plan_of()], time.time() - 1)
    with pytest.raises(DeadlineError):
        keeper.check()
    keeper.follow([plan_of()], None)
    keeper.check()


def test_no_workers_start_for_runs_that_have_all_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, results = Cluster(monkeypatch, FULL), Results(tmp_path)
    plans = [plan_of(), plan_of("workers: 2")]
    keeper = NodeKeeper(Need.of(plans[0]), 60.0, tmp_path, tmp_path / "h", ["another"], None)
    keeper.wait()
    keeper.follow(plans, None)
    for looks, plan in enumerate(plans, 1):
        assert cluster.looks == looks
        assert keeper.wait()
        end = RunFailed(run_id=plan.run_id, reason="error", message="boom")
        Journal(results.journal_file(plan.run_id)).write(end)
    assert not keeper.wait()


def test_nodes_that_leave_and_join_are_reported_after_the_first_look_and_despite_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = iter([["a", "b"], None, ["a"], ["a"], ["a", "c"]])
    said, over = list[str](), threading.Event()

    def nodes() -> list[dict[str, Any]]:
        names = next(looks, [])
        if names == []:
            over.set()
            names = ["a", "c"]
        if names is None:
            raise RuntimeError("Ray restarts")
        return [node(name) for name in names]

    monkeypatch.setattr(leaving_nodes, "_WATCH_S", 0.001)
    monkeypatch.setattr(ray, "nodes", nodes)
    with leaving_nodes.reporting(1, said.append):
        assert not over.wait(0.02), "one node is not watched"
    with leaving_nodes.reporting(2, said.append):
        assert over.wait(60)
    assert said == ["node lost: host-b; 1 left", "node joined: host-c; now 2 node(s)"]


def node(name: str, alive: bool = True) -> dict[str, Any]:
    return {"NodeID": name, "NodeManagerHostname": f"host-{name}", "Alive": alive}


def keeper_on(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *looks: list[dict[str, Any]],
    verdict_s: float = 0.3,
) -> NodeKeeper:
    seen = list(looks)
    answer = lambda: seen.pop(0) if len(seen) > 1 else seen[0]  # noqa: E731
    monkeypatch.setattr(ray, "nodes", answer)
    monkeypatch.setattr(controller, "_POLL_S", 0.01)
    monkeypatch.setattr(controller, "_VERDICT_S", verdict_s)
    (folder / "hosts.json").write_text('{"a": "host-a", "b": "host-b"}')
    return keeper_of(folder)


def test_the_hosts_of_dead_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead, alive = [node("a"), node("b", False), node("c")], [node("a"), node("b"), node("c")]
    assert keeper_on(tmp_path, monkeypatch, dead).lost(patient=False) == ["host-b"]
    assert keeper_on(tmp_path, monkeypatch, alive).lost(patient=False) == []
    assert keeper_on(tmp_path, monkeypatch, alive).lost(patient=True) == []
    late = keeper_on(tmp_path, monkeypatch, alive, alive, dead, verdict_s=60.0)
    assert late.lost(patient=True) == ["host-b"]
    assert (
        keeper_on(tmp_path, monkeypatch, [node("a"), node("b"), node("c", False)]).lost(False) == []
    )
    assert keeper_on(tmp_path, monkeypatch, [node("a")]).lost(patient=False) == ["host-b"]


def test_a_single_node_whose_driver_still_lives_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(seconds: float) -> None:
        raise AssertionError("it waits")

    keeper = keeper_on(tmp_path, monkeypatch, [node("a"), node("b")], verdict_s=60.0)
    monkeypatch.setattr(controller, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    with pytest.raises(AssertionError, match="it waits"):
        keeper.lost(patient=True)
    keeper.hosts_file.write_text('{"a": "host-a"}')
    assert keeper.lost(patient=True) == []


def test_changes_of_nodes() -> None:
    two = {"a": "host-a", "b": "host-b"}
    assert changes(two, two) == []
    assert changes(two, {"a": "host-a"}) == ["node lost: host-b; 1 left"]
    assert changes({"a": "host-a"}, {"a": "host-a", "c": "host-c"}) == [
        "node joined: host-c; now 2 node(s)"
    ]


def test_fewer_workers_where_the_spec_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    Cluster(monkeypatch, Capacity((Node(3, 0),)))
    assert with_fewer(plan_of(), 1) is None
    made = with_fewer(plan_of("workers: 4, elastic: true"), 1)
    assert made is not None
    assert (made.workers, made.index) == (3, 1)
    assert with_fewer(plan_of("workers: 4, elastic: true, cpus_per_worker: 2"), 1).workers == 1
    assert with_fewer(plan_of("workers: 4, elastic: true, min_workers: 4"), 1) is None


def test_a_suite_is_ready_before_ray_is_imported() -> None:
    """Ray reads its settings and its token's place then, and `connect` makes them before."""
    seen = "import sys, raysuite.orchestrate.suite; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", seen], check=False).returncode == 0


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([Node(4, 4)], ""),
        ([Node(9, 3)], "need 4 GPUs, and the cluster has 9 CPUs and 3 GPUs on 1 node(s)"),
        ([Node(3, 4)], "need 4 CPUs, and the cluster has 3 CPUs and 4 GPUs on 1 node(s); at most"),
        ([Node(4, 0), Node(2, 4)], "on one node; at most 2 workers fit"),
    ],
)
def test_gpus_and_cpus_are_both_needed_and_by_each_worker_on_its_node(
    nodes: list[Node], message: str
) -> None:
    plan = plan_of().model_copy(update={"device": "gpu"})
    found = too_large(plan, Capacity(tuple(nodes)))
    assert [mistake.key for mistake in found] == ["resources.workers"] * bool(message)
    assert all(message in mistake.message for mistake in found)
