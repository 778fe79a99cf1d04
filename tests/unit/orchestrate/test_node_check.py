"""Which nodes exchange data with which, and what a node is measured by."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from raysuite.measure.node_speed import node_figures
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


def test_a_node_is_measured_by_itself(tmp_path: Path) -> None:
    found = node_figures(torch.device("cpu"), tmp_path)
    assert set(found) == set(CHECKS) - {"pairs"}
    assert all(value > 0 for value in found.values())
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
