"""Blocks of ports: free, outside the kernel's own range, and held by one alone."""

from __future__ import annotations

import resource
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysuite.cluster import ports
from raysuite.cluster.ports import (
    NoPortsError,
    Ports,
    block_size,
    candidates,
    ephemeral_range,
    held_port,
    take,
)

USUAL = (32768, 60999)
PLACE = st.floats(0, 1, exclude_max=True)


def test_ports_of_a_block_differ_and_lie_within() -> None:
    block = Ports(20_000, block_size(4))
    singles = [
        *(block.gcs, block.object_manager, block.node_manager, block.dashboard),
        *(block.agent_http, block.agent_grpc, block.runtime_env, block.metrics, block.mlflow),
        block.client,
    ]
    low, high = block.workers
    assert len(set(singles)) == len(singles)
    assert max(singles) < low < high == 20_000 + block.size - 1
    assert min(singles) == 20_000


@given(seed=st.text(), cpus=st.integers(0, 512), low=st.integers(12_000, 33_000))
@settings(deadline=None)
def test_blocks_leave_the_ephemeral_range_alone(seed: str, cpus: int, low: int) -> None:
    size, high = block_size(cpus), 60_999
    for first in candidates(seed, size, (low, high)):
        assert first >= ports.LOWEST
        assert first + size - 1 <= ports.HIGHEST
        if low - ports.LOWEST >= size:
            assert first + size <= low or first > high


@given(cpus=st.tuples(st.integers(0, 512), st.integers(0, 512)), places=st.tuples(PLACE, PLACE))
def test_blocks_that_overlap_share_a_guard(
    cpus: tuple[int, int], places: tuple[float, float]
) -> None:
    blocks = []
    for count, place in zip(cpus, places, strict=True):
        size = block_size(count)
        firsts = sorted(candidates("any", size, (1024, 65_535)))
        block = Ports(firsts[int(place * len(firsts))], size)
        assert len(block.guards) * ports.STEP == block.size >= 8 * count
        assert ports.LOWEST <= min(block.guards) <= max(block.guards) < firsts[0]
        blocks.append(block)
    one, other = blocks
    overlap = one.first < other.first + other.size and other.first < one.first + one.size
    assert overlap == bool({*one.guards} & {*other.guards})


def test_each_block_once_from_a_place_of_the_seeds_own() -> None:
    orders = [list(candidates(seed, 128, USUAL)) for seed in ("one", "two", "one")]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(set(orders[1]))


def test_a_block_begins_above_the_ephemeral_range_or_ends_below_it() -> None:
    """Blocks of 128 ports; the range is one port, within or just outside the last block."""
    last = max(candidates("x", 128, (0, 0)))
    for port in (last, last + 127):
        assert last not in [*candidates("x", 128, (port, port))]
    for port in (last - 1, last + 128):
        assert last in [*candidates("x", 128, (port, port))]


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


def test_a_port_is_held_for_who_binds_it_later() -> None:
    with held_port() as port, held_port() as other:
        assert port != other
        block = Ports(port, ports.STEP)
        with socket.socket() as next_one, pytest.raises(OSError, match="in use"):
            next_one.bind(("", block.guards[0]))
        with socket.socket() as ours:
            ours.bind(("127.0.0.1", port))
        low, high = ephemeral_range()
        assert not low <= port <= high or low <= ports.GRID


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
def test_a_port_in_use_on_any_address_passes_the_block_over(address: str) -> None:
    block, guard = take("another", 128)
    guard.close()
    with socket.socket() as foreign:
        foreign.bind((address, block.first + 77))
        foreign.listen()
        found, guard = take("another", 128)
        guard.close()
    assert found.first != block.first


@pytest.mark.parametrize("sizes", [(256, 384), (384, 128), (384, 256)])
def test_a_block_of_another_size_is_held_too(
    sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    size, other = sizes
    block, guards = take("large", size)
    with guards:
        for first in range(block.first - other + ports.STEP, block.first + size, ports.STEP):
            monkeypatch.setattr(ports, "candidates", lambda *_, first=first: iter([first]))
            with pytest.raises(NoPortsError):
                take("x", other)


def test_a_large_node_needs_few_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
    try:
        block, guards = take("large", block_size(256))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    guards.close()
    assert block.size > 1024


def test_a_full_host_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    block, guards = take("x", 128)
    guards.close()
    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", block.first))
        monkeypatch.setattr(ports, "candidates", lambda *_: iter([block.first]))
        with pytest.raises(NoPortsError, match="no 128 consecutive ports"):
            take("x", 128)
