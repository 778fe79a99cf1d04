"""Measure every node of a cluster before training, with one probe per node."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from raysuite.cluster.ports import free_port
from raysuite.measure.node_speed import node_figures
from raysuite.measure.transport import Transport, fast_networks
from raysuite.orchestrate.capacity import alive_nodes
from raysuite.orchestrate.groups import INTERFACE
from raysuite.parallel.comm import join_torch_group, leave_torch_group
from raysuite.records.node_checks import NodeFigures, lasting
from raysuite.train.world import torch_device

_BYTES = 4 * 2**20
_REPEATS = 10
_MOST_ROUNDS = 16
"""Maximum number of partners of a node: all pairs are measured in clusters of up to 16 nodes."""
_PATIENCE_S = 300.0


def check_nodes(folder: Path, patience_s: float = _PATIENCE_S) -> list[NodeFigures]:
    """Measure all nodes of the cluster that this driver has joined. `folder` is on the disk whose
    read rate is measured.

    Raises ray.exceptions.RayError if a node is lost, or if no CPU of a node becomes free in time.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    alive = [node for node in alive_nodes() if node["Resources"].get("CPU")]
    size = len(alive)
    actor: Any = ray.remote(Probe)  # Ray adds the actor's methods at run time
    probes = [
        actor.options(
            num_cpus=1,
            num_gpus=min(1, node["Resources"].get("GPU", 0)),
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        ).remote(rank, size)
        for rank, node in enumerate(sorted(alive, key=lambda node: node["NodeManagerAddress"]))
    ]

    def measured() -> list[NodeFigures]:
        place = ray.get(probes[0].place.remote(), timeout=patience_s)
        found = [probe.measure.remote(*place, str(folder)) for probe in probes]
        return [NodeFigures.model_validate(each) for each in ray.get(found, timeout=patience_s)]

    try:
        return lasting(measured)
    finally:
        for probe in probes:  # otherwise the CPU of a waiting probe would stay allocated
            ray.kill(probe)


class Probe:
    """A Ray actor that measures the node on which it runs."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def place(self) -> tuple[str, int]:
        """Address and port at which all probes meet; called on the first probe."""
        import ray

        return ray.util.get_node_ip_address(), free_port()

    def measure(self, address: str, port: int, folder: str) -> dict[str, Any]:
        """Measure this node, and the network together with the other probes; return plain data."""
        interface = os.environ.get(INTERFACE)
        if interface:
            os.environ.update(GLOO_SOCKET_IFNAME=interface, NCCL_SOCKET_IFNAME=interface)
        os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
        torch.set_num_threads(1)
        on_gpu = torch.cuda.is_available()
        device = torch_device("gpu" if on_gpu else "cpu", 0)
        transport = Transport(on_gpu and self._size > 1)
        figures, all_reduce_s = node_figures(device, Path(folder)), 0.0
        if self._size > 1:
            join_torch_group(self._rank, self._size, device)
            if (pairs := pair_speed(self._rank, self._size, device)) is not None:
                figures["pairs"] = pairs
            all_reduce_s = _all_reduce_s(device)
            names = transport.names()
            leave_torch_group()
        return {
            "host": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
            "when": time.time(),
            "figures": figures,
            "all_reduce_s": all_reduce_s,
            "transports": names if self._size > 1 else [],
            "networks": fast_networks(),
        }


def rounds(size: int) -> Iterator[list[tuple[int, int]]]:
    """Yield each round's pairs of ranks, until every rank was in a pair with every other rank
    (circle method)."""
    ring: list[int] = [*range(size), *([-1] if size % 2 else [])]
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        yield [(min(pair), max(pair)) for pair in pairs if -1 not in pair]
        ring = [ring[0], ring[-1], *ring[1:-1]]


def pair_speed(rank: int, size: int, device: torch.device) -> float | None:
    """MB/s in each direction with the fastest partner: a slow node is slow with every partner."""
    speeds = []
    for number, pairs in enumerate(rounds(size)):
        if number == _MOST_ROUNDS:
            break
        dist.barrier()
        for pair in pairs:
            if rank in pair:
                speeds.append(_exchange(sum(pair) - rank, rank, device))
    return max(speeds, default=None)


def _exchange(other: int, rank: int, device: torch.device) -> float:
    own, others = torch.ones(_BYTES // 4, device=device), torch.empty(_BYTES // 4, device=device)
    best = float("inf")
    for _ in range(_REPEATS):
        began = time.perf_counter()
        first, second = ((dist.isend, own), (dist.irecv, others))[:: 1 if rank < other else -1]
        operations = [dist.P2POp(work, tensor, other) for work, tensor in (first, second)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return _BYTES / best / 1e6


def _all_reduce_s(device: torch.device) -> float:
    tensor, best = torch.ones(_BYTES // 4, device=device), float("inf")
    for _ in range(_REPEATS):
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return best
