"""Ports of one node: a free contiguous block, so that several clusters share a host.

`ray start` collides with another on the same host unless every port is set (ray#10154).
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from raysuite.errors import RaysuiteError

LOWEST = 10_000
HIGHEST = 65_535
_SERVICES = 16
"""Ports at the head of a block; the workers' follow."""
_WORKERS_AT_LEAST = 112
_WORKERS_PER_CPU = 8
"""Each worker process of Ray holds a port, also the idle ones and those of CPU-less actors."""
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True)
class Ports:
    """A block from `first` on, `size` ports long."""

    first: int
    size: int

    @property
    def guard(self) -> int:
        """Held by the agent, so that nobody else takes the block while Ray is starting."""
        return self.first

    @property
    def gcs(self) -> int:
        return self.first + 1

    @property
    def object_manager(self) -> int:
        return self.first + 2

    @property
    def node_manager(self) -> int:
        return self.first + 3

    @property
    def dashboard(self) -> int:
        return self.first + 4

    @property
    def agent_http(self) -> int:
        return self.first + 5

    @property
    def agent_grpc(self) -> int:
        return self.first + 6

    @property
    def runtime_env(self) -> int:
        return self.first + 7

    @property
    def metrics(self) -> int:
        return self.first + 8

    @property
    def mlflow(self) -> int:
        return self.first + 9

    @property
    def client(self) -> int:
        """Of Ray Client, which `ray start` cannot be told to leave out."""
        return self.first + 10

    @property
    def workers(self) -> tuple[int, int]:
        """The lowest and the highest port of Ray's workers."""
        return self.first + _SERVICES, self.first + self.size - 1


class NoPortsError(RaysuiteError):
    """No block of ports is free on this host."""


def free_port() -> int:
    """A port that is free on loopback just now, of the kernel's choice; nothing holds it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def block_size(cpus: int) -> int:
    """Ports that a node with that many CPUs needs."""
    return _SERVICES + max(_WORKERS_AT_LEAST, _WORKERS_PER_CPU * cpus)


def take(seed: str, size: int) -> tuple[Ports, socket.socket]:
    """A free block of ports and the socket that guards it; whoever holds that holds the block.

    The search begins at a place that depends on `seed`, so that clusters that start at the same
    time look at different places. Raises NoPortsError.
    """
    for first in candidates(seed, size, ephemeral_range()):
        guard = _guard(first, size)
        if guard is not None:
            return Ports(first, size), guard
    raise NoPortsError(f"no {size} ports in a row are free on this host; is it full of clusters?")


def candidates(seed: str, size: int, ephemeral: tuple[int, int]) -> Iterator[int]:
    """First ports of all blocks outside the ephemeral range, from a place given by `seed`."""
    low, high = ephemeral
    blocks = [*range(LOWEST, low - size + 1, size), *range(high + 1, HIGHEST - size + 2, size)]
    # a host whose ephemeral range leaves no room: bind tests alone must do
    blocks = [first for first in blocks if first >= LOWEST] or [
        *range(LOWEST, HIGHEST - size + 2, size)
    ]
    start = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8]) % len(blocks)
    yield from blocks[start:] + blocks[:start]


def ephemeral_range() -> tuple[int, int]:
    """Lowest and highest port that the kernel gives to connections on its own."""
    low, high = _EPHEMERAL.read_text("ascii").split()
    return int(low), int(high)


def _guard(first: int, size: int) -> socket.socket | None:
    """Bind every port of the block on all interfaces, and keep the first one bound."""
    guard = socket.socket()
    try:
        guard.bind(("", first))
        with ExitStack() as held:
            for port in range(first + 1, first + size):
                held.enter_context(socket.socket()).bind(("", port))
    except OSError:
        guard.close()
        return None
    return guard
