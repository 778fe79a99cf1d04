"""Blocks of ports: free, outside the kernel's own range, and held by one alone."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysuite.cluster import ports
from raysuite.cluster.ports import NoPortsError, Ports, block_size, candidates, take

USUAL = (32768, 60999)


def test_ports_of_a_block_differ_and_lie_within() -> None:
    block = Ports(20_000, block_size(4))
    singles = [
        *(block.guard, block.gcs, block.object_manager, block.node_manager, block.dashboard),
        *(block.agent_http, block.agent_grpc, block.runtime_env, block.metrics, block.mlflow),
        block.client,
    ]
    low, high = block.workers
    assert len(set(singles)) == len(singles)
    assert max(singles) < low < high == 20_000 + block.size - 1
    assert min(singles) == block.guard == 20_000


@given(seed=st.text(), cpus=st.integers(0, 512), low=st.integers(12_000, 33_000))
@settings(deadline=None)
def test_blocks_leave_the_ephemeral_range_alone(seed: str, cpus: int, low: int) -> None:
    size, high = block_size(cpus), 60_999
    for first in candidates(seed, size, (low, high)):
        assert first >= ports.LOWEST
        assert first + size - 1 <= ports.HIGHEST
        if low - ports.LOWEST >= size:
            assert first + size <= low or first > high


def test_each_block_once_from_a_place_of_the_seeds_own() -> None:
    orders = [list(candidates(seed, 128, USUAL)) for seed in ("one", "two", "one")]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(set(orders[1]))


def test_a_range_that_leaves_no_room_leaves_bind_tests() -> None:
    assert len(list(candidates("x", 128, (1024, 65_535)))) > 100


def test_a_block_is_held_by_one_alone() -> None:
    first, guard = take("seed", 128)
    with guard:
        second, other = take("seed", 128)
        with other:
            assert first.first != second.first
            with socket.socket() as ours:  # what Ray will do
                ours.bind(("127.0.0.1", first.gcs))
    again, guard = take("seed", 128)
    guard.close()
    assert again == first


def test_a_port_in_use_anywhere_passes_the_block_over() -> None:
    block, guard = take("another", 128)
    guard.close()
    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", block.first + 77))
        foreign.listen()
        found, guard = take("another", 128)
        guard.close()
    assert found.first != block.first


def test_a_full_host_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", 0))
        port = foreign.getsockname()[1]
        monkeypatch.setattr(ports, "candidates", lambda *_: iter([port]))
        with pytest.raises(NoPortsError, match="no 1 ports"):
            take("x", 1)
