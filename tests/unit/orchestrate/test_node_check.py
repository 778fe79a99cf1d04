"""Which nodes exchange data with which, and what a node is measured by."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from raysuite.measure.node_speed import node_figures
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
