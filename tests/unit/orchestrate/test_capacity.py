"""Resources of the nodes that are alive."""

from __future__ import annotations

import math

import pytest

from raysuite.orchestrate import capacity
from raysuite.orchestrate.capacity import Capacity, Node, alive_nodes


def test_a_dead_node_has_no_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 2.0, "memory": 9e9}},
        {"Alive": False, "Resources": {"CPU": 8.0}},
        {"Alive": True, "Resources": {}},
    ]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    assert alive_nodes() == [nodes[0], nodes[2]]
    found = Capacity.now()
    assert found == Capacity((Node(4.0, 2.0, 9e9), Node(0.0, 0.0, math.inf)), "the cluster")
    assert (found.cpus, found.gpus, found.nodes) == (4.0, 2.0, 2)
    assert [found.holds(cpus, gpu) for cpus, gpu in ((1, False), (3, False), (1, True))] == [
        4,
        1,
        2,
    ]


def test_this_machine_is_one_node_of_the_cpus_of_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 3, 5})
    monkeypatch.setattr(capacity, "local_gpus", lambda: 2)
    assert Capacity.here() == Capacity((Node(3.0, 2.0),), "this machine")
