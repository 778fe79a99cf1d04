"""Find which CPUs are near which GPU and memory, from Linux's sysfs, and divide them among workers.

The files are described in Linux, Documentation/ABI: sysfs-devices-node, sysfs-devices-system-cpu
and sysfs-bus-pci. torch.numa binds workers only for CUDA, and only in torch's own launcher.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from raysuite.errors import UserError

SYS = Path("/sys")
Binding = Literal["auto", "none"] | tuple[str, ...]


@dataclass(frozen=True)
class Core:
    """The usable logical CPUs of a physical core."""

    cpus: tuple[int, ...]
    node: int
    """The core's memory (NUMA) node."""
    socket: int


@dataclass(frozen=True)
class Topology:
    """The usable cores of a host, by memory node, and the distances between the nodes."""

    cores: tuple[Core, ...]
    distances: dict[int, list[int]]
    """Memory node -> its distances to all memory nodes, in order of their numbers, in the units of
    the firmware (10 for the node itself)."""

    @property
    def nodes(self) -> list[int]:
        """The memory nodes that have usable cores."""
        return sorted({core.node for core in self.cores})

    def cpus_of(self, node: int) -> list[int]:
        return [cpu for core in self.cores if core.node == node for cpu in core.cpus]

    def nodes_of(self, cpus: Collection[int]) -> list[int]:
        return sorted({core.node for core in self.cores if set(core.cpus) & set(cpus)})


def read_topology(usable: Collection[int] | None = None, sys: Path = SYS) -> Topology:
    """The topology of the CPUs `usable`, by default the CPUs that this process may use. Without
    sysfs, all cores are assigned to memory node 0."""
    usable = os.sched_getaffinity(0) if usable is None else usable
    node_of, distances = dict.fromkeys(usable, 0), {}
    for folder in (sys / "devices/system/node").glob("node[0-9]*"):
        number = int(folder.name.removeprefix("node"))
        node_of |= {
            cpu: number for cpu in read_cpus(read_sys(folder / "cpulist")) if cpu in node_of
        }
        distances[number] = [int(each) for each in read_sys(folder / "distance").split()]
    cores = {}
    for cpu in sorted(usable):
        folder = sys / f"devices/system/cpu/cpu{cpu}/topology"
        siblings = read_cpus(read_sys(folder / "thread_siblings_list")) or [cpu]
        mine = tuple(each for each in siblings if each in usable)
        cores[mine] = Core(mine, node_of[cpu], int(read_sys(folder / "physical_package_id") or 0))
    ordered = sorted(cores.values(), key=lambda core: (core.node, core.cpus))
    return Topology(tuple(ordered), distances)


def gpu_node(pci: str, sys: Path = SYS) -> int | None:
    """The memory node of a GPU, by its PCI address such as 0000:03:00.0; None if not known."""
    number = int(read_sys(sys / "bus/pci/devices" / pci.lower() / "numa_node") or -1)
    return number if number >= 0 else None


def shares(topology: Topology, workers: int, near: Sequence[int | None] = ()) -> list[list[int]]:
    """The CPUs of each worker of this host; an empty list for a worker with less than one core.

    `near` are the memory nodes of the workers' GPUs. Workers whose GPUs have the same memory node
    share its cores evenly. Cores of a memory node without a GPU are added to the nearest memory
    node with a GPU on the same socket. Without GPUs, or if the node of a GPU is not known, all
    cores are split evenly.
    """
    by_node = {core.node: core.socket for core in topology.cores}
    if len(near) != workers or any(node not in by_node for node in near):
        return _split(topology.cores, workers)
    pools: dict[int, list[Core]] = {node: [] for node in by_node if node in near}
    for node, socket in by_node.items():
        own = [core for core in topology.cores if core.node == node]
        homes = [home for home in pools if by_node[home] == socket]
        if homes:
            distance = dict(enumerate(topology.distances.get(node, [])))
            nearest = min(homes, key=lambda home: (home != node, distance.get(home, 0),
                                                   len(pools[home]), home))  # fmt: skip
            pools[nearest] += own
    found: list[list[int]] = [[] for _ in near]
    for node, pool in pools.items():
        mine = [index for index, each in enumerate(near) if each == node]
        for index, cpus in zip(mine, _split(pool, len(mine)), strict=True):
            found[index] = cpus
    return found


def _split(cores: Sequence[Core], parts: int) -> list[list[int]]:
    if len(cores) < parts:
        return [[] for _ in range(parts)]
    ends = [len(cores) * part // parts for part in range(parts + 1)]
    return [
        sorted(cpu for core in cores[begin:end] for cpu in core.cpus)
        for begin, end in pairwise(ends)
    ]


def bound_cpus(
    binding: Binding, index: int, workers: int, near: Sequence[int | None], topology: Topology
) -> list[int]:
    """The CPUs of worker `index` of this host; empty if the worker is not bound.

    `auto` binds only on hosts with several memory nodes. Raises UserError if `binding` has
    no list of CPUs for the worker, or if the list contains CPUs that are not usable here.
    """
    if binding == "none" or (binding == "auto" and len(topology.nodes) < 2):
        return []
    if binding == "auto":
        return shares(topology, workers, near)[index]
    if index >= len(binding):
        raise UserError(
            f"resources.binding has {len(binding)} lists of CPUs, but {workers} workers are on "
            "one host; give a list for each worker, or auto"
        )
    cpus = read_cpus(binding[index])
    usable = {cpu for core in topology.cores for cpu in core.cpus}
    if not set(cpus) <= usable:
        raise UserError(
            f"resources.binding names the CPUs {binding[index]}, but usable on this host are only "
            f"{cpu_list(usable)}; name only these"
        )
    return cpus


def bind(cpus: Collection[int]) -> None:
    """Bind all threads of this process, and those that it starts later, to `cpus`. Memory is then
    allocated on the node of the thread that writes it first (Linux, set_mempolicy(2),
    MPOL_DEFAULT)."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # the thread has just ended
            os.sched_setaffinity(int(thread), cpus)


def read_cpus(text: str) -> list[int]:
    """Read CPUs in the kernel's notation: `0-2,8` -> 0, 1, 2, 8.

    Raises ValueError for other texts.
    """
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def cpu_list(cpus: Iterable[int]) -> str:
    """CPUs in the kernel's notation: 0, 1, 2, 8 -> `0-2,8`."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def read_sys(file: Path) -> str:
    """The text of a file below /sys; empty if it cannot be read."""
    try:
        return file.read_text("utf-8").strip()
    except OSError:
        return ""
