"""Which nodes exchange data with which, and what a node is measured by."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from raysuite.measure import node_speed
from raysuite.orchestrate import node_check
from raysuite.orchestrate.node_check import rounds
from raysuite.records.node_checks import CHECKS


@pytest.mark.parametrize("size", range(2, 9))
def test_every_two_nodes_meet_once_and_a_node_once_in_a_round(size: int) -> None:
    found = list(rounds(size))
    assert all(len({rank for pair in each for rank in pair}) == 2 * len(each) for each in found)
    pairs = sorted(pair for each in found for pair in each)
    assert pairs == [(a, b) for a in range(size) for b in range(a + 1, size)]
    assert len(found) == size - 1 + size % 2


def test_a_node_is_measured_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two products of 512 x 512 in 0.5 s, a copy of 2^25 bytes in 0.5 s, and a file of 2^26 bytes
    in 0.25 s at best."""
    product, copy, disk = (0.0, 0.125, 0.25, 0.5), (1.0, 1.25, 1.5), (2, 3, 4, 4.25, 5, 7)
    clock = iter([*product, *copy, *disk])
    monkeypatch.setattr(node_speed, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(node_speed, "now", lambda device: next(clock))
    found = node_speed.node_figures(torch.device("cpu"), tmp_path)
    assert found == {"matrix": 1.073741824, "memory": 0.134217728, "disk": 268.435456}
    assert set(found) == set(CHECKS) - {"pairs"}
    assert list(tmp_path.iterdir()) == []


def test_the_shortest_of_several_exchanges_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take 3, 1 and 2 s."""
    clock = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0])
    done = SimpleNamespace(wait=lambda: None)
    monkeypatch.setattr(node_check, "_REPEATS", 3)
    monkeypatch.setattr(node_check, "_BYTES", 8_000_000)
    monkeypatch.setattr(node_check, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(dist, "P2POp", lambda work, tensor, other: (work, tensor.nbytes, other))
    asked: list[object] = []
    monkeypatch.setattr(dist, "batch_isend_irecv", lambda given: asked.append(given) or [done])
    assert node_check._exchange(1, 0, torch.device("cpu")) == 8.0
    assert asked == [[(dist.isend, 8_000_000, 1), (dist.irecv, 8_000_000, 1)]] * 3


@pytest.mark.parametrize(
    ("rank", "size", "most", "met"),
    [
        (0, 1, 16, []),
        (1, 3, 16, [0, 2]),
        (0, 4, 16, [1, 2, 3]),
        (3, 4, 16, [0, 1, 2]),
        (0, 6, 2, [4, 5]),
    ],
)
def test_a_node_has_the_speed_of_its_fastest_partner(
    monkeypatch: pytest.MonkeyPatch, rank: int, size: int, most: int, met: list[int]
) -> None:
    """With partner n it exchanges 10 - n MB/s; all nodes meet before each round."""
    asked, barriers = list[int](), list[int]()

    def exchange(other: int, own: int, device: torch.device) -> float:
        assert own == rank
        asked.append(other)
        return 10.0 - other

    monkeypatch.setattr(node_check, "_MOST_ROUNDS", most)
    monkeypatch.setattr(node_check, "_exchange", exchange)
    monkeypatch.setattr(dist, "barrier", lambda: barriers.append(1))
    found = node_check.pair_speed(rank, size, torch.device("cpu"))
    assert sorted(asked) == met
    assert found == (10.0 - met[0] if met else None)
    assert len(barriers) == min(most, size - 1 + size % 2)


def test_the_shortest_of_several_all_reduces_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take 3, 1 and 2 s."""
    clock, calls = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0]), list[object]()
    monkeypatch.setattr(node_check, "_REPEATS", 3)
    monkeypatch.setattr(node_check, "_BYTES", 800)
    monkeypatch.setattr(node_check, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(dist, "barrier", lambda: calls.append("barrier"))
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: calls.append(tensor.nbytes))
    assert node_check._all_reduce_s(torch.device("cpu")) == 1.0
    assert calls == ["barrier", 800] * 3
