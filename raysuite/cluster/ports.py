"""Ports of one node: a free contiguous block, so that several clusters can share a host.

`ray start` collides with another `ray start` on the same host unless every port is set (ray#10154).
All blocks are aligned to the same grid. Each cell of the grid has a guard: a port that the agent
binds and Ray never uses.
"""

from __future__ import annotations

import hashlib
import socket
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from raysuite.errors import RaysuiteError

LOWEST = 10_000
HIGHEST = 65_535
STEP = 128
"""Number of ports in a cell of the grid. Each block starts at the first port of a cell, and covers
whole cells."""
_STEPS = (HIGHEST + 1 - LOWEST) // (STEP + 1)
GRID = LOWEST + _STEPS
"""The grid's first port. The ports LOWEST to GRID - 1 are the guards: one per cell of the grid."""
_SERVICES = 16
"""Number of ports at the start of a block that are for servers; the workers' ports follow."""
_WORKERS_AT_LEAST = 112
_WORKERS_PER_CPU = 8
"""Worker ports per CPU. Each Ray worker process has a port, even if it is idle, or if it runs an
actor that reserves no CPU."""
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def _service(number: int) -> property:
    return property(lambda ports: ports.first + number)


@dataclass(frozen=True)
class Ports:
    """A block of `size` ports, starting at `first`."""

    first: int
    size: int

    @property
    def guards(self) -> range:
        """Ports bound by the agent to reserve the block for itself; Ray does not use them."""
        step = LOWEST + (self.first - GRID) // STEP
        return range(step, step + self.size // STEP)

    gcs = _service(0)
    object_manager = _service(1)
    node_manager = _service(2)
    dashboard = _service(3)
    agent_http = _service(4)
    agent_grpc = _service(5)
    runtime_env = _service(6)
    metrics = _service(7)
    mlflow = _service(8)
    client = _service(9)
    """Port of Ray Client, which `ray start` always starts."""

    @property
    def workers(self) -> tuple[int, int]:
        """The lowest and the highest port of Ray's workers."""
        return self.first + _SERVICES, self.first + self.size - 1


class NoPortsError(RaysuiteError):
    """No block of ports is free on this host."""


def free_port() -> int:
    """A port that is now free on loopback, chosen by the kernel; it is not reserved."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def held_port() -> Iterator[int]:
    """A port for a server to bind later; within the context no other raysuite process gets it.

    Raises NoPortsError.
    """
    block, guards = take(uuid.uuid4().hex, STEP)
    with guards:
        yield block.first


def block_size(cpus: int) -> int:
    """Number of ports for a node with that many CPUs, rounded up to whole cells of the grid."""
    needed = _SERVICES + max(_WORKERS_AT_LEAST, _WORKERS_PER_CPU * cpus)
    return -(-needed // STEP) * STEP


def take(seed: str, size: int) -> tuple[Ports, ExitStack]:
    """A free block of ports, and the sockets that guard it: open sockets reserve the block.

    The search starts at a position that depends on `seed`, so that clusters that start at the same
    time try different blocks. Raises NoPortsError.
    """
    for first in candidates(seed, size, ephemeral_range()):
        block = Ports(first, size)
        guards = _guards(block)
        if guards is not None:
            return block, guards
    raise NoPortsError(
        f"no {size} consecutive ports are free on this host; end other clusters on it"
    )


def candidates(seed: str, size: int, ephemeral: tuple[int, int]) -> Iterator[int]:
    """The first port of each block outside the ephemeral range or, if there is no such block, of
    each block. `seed` determines with which block the sequence begins."""
    low, high = ephemeral
    grid = range(GRID, HIGHEST - size + 2, STEP)
    # If the ephemeral range overlaps all blocks, try all blocks: only bind(2) shows which are free.
    blocks = [first for first in grid if first + size <= low or first > high] or [*grid]
    start = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8]) % len(blocks)
    yield from blocks[start:] + blocks[:start]


def ephemeral_range() -> tuple[int, int]:
    """Lowest and highest port that the kernel assigns to connections."""
    low, high = _EPHEMERAL.read_text("ascii").split()
    return int(low), int(high)


def _guards(block: Ports) -> ExitStack | None:
    """Bind the guards of a block on all interfaces; return None if a guard, or a port of the block,
    cannot be bound."""
    with ExitStack() as held:
        try:
            for port in block.guards:
                held.enter_context(socket.socket()).bind(("", port))
            for port in range(block.first, block.first + block.size):
                with socket.socket() as probe:
                    probe.bind(("", port))
        except OSError:
            return None
        return held.pop_all()
