"""The CPUs of each worker, on simulated hosts of several sites, as Linux's sysfs describes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raysuite.errors import UserError
from raysuite.measure.topology import (
    Core,
    Topology,
    bind,
    bound_cpus,
    cpu_list,
    gpu_node,
    read_cpus,
    read_topology,
    shares,
)


def host(
    sys: Path,
    sockets: int,
    nodes_per_socket: int,
    cores_per_node: int,
    threads: int = 1,
    gpus: dict[str, int] | None = None,
) -> list[int]:
    """Write the sysfs of a host; its logical CPUs. Second threads have the higher numbers."""
    nodes, total = sockets * nodes_per_socket, sockets * nodes_per_socket * cores_per_node
    for node in range(nodes):
        folder = sys / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        first = node * cores_per_node
        own = [core + total * thread for thread in range(threads)
               for core in range(first, first + cores_per_node)]  # fmt: skip
        (folder / "cpulist").write_text(cpu_list(own) + "\n")
        far = [10 if other == node else 11 + abs(other - node) if other // nodes_per_socket
               == node // nodes_per_socket else 32 for other in range(nodes)]  # fmt: skip
        (folder / "distance").write_text(" ".join(map(str, far)) + "\n")
        for cpu in own:
            place = sys / f"devices/system/cpu/cpu{cpu}/topology"
            place.mkdir(parents=True)
            siblings = [cpu % total + total * thread for thread in range(threads)]
            (place / "thread_siblings_list").write_text(cpu_list(siblings) + "\n")
            (place / "physical_package_id").write_text(f"{node // nodes_per_socket}\n")
    for pci, node in (gpus or {}).items():
        place = sys / "bus/pci/devices" / pci
        place.mkdir(parents=True)
        (place / "numa_node").write_text(f"{node}\n")
    return list(range(total * threads))


SITES = {
    # two EPYC of four memory nodes of 6 cores each, GPUs on four of the eight nodes
    "booster": ((2, 4, 6, 2), (3, 1, 7, 5),
                ["12-23,60-71", "0-11,48-59", "36-47,84-95", "24-35,72-83"]),
    # one EPYC of 64 cores in four memory nodes, a GPU on each, in the opposite order
    "perlmutter": ((1, 4, 16, 2), (3, 2, 1, 0),
                   ["48-63,112-127", "32-47,96-111", "16-31,80-95", "0-15,64-79"]),
    # four GH200 of 72 cores
    "gh200": ((4, 1, 72, 1), (0, 1, 2, 3), ["0-71", "72-143", "144-215", "216-287"]),
    # two sockets of one memory node, four GPUs each
    "dgx": ((2, 1, 8, 1), (0, 0, 0, 0, 1, 1, 1, 1),
            ["0-1", "2-3", "4-5", "6-7", "8-9", "10-11", "12-13", "14-15"]),
}  # fmt: skip


@pytest.mark.parametrize("site", SITES)
def test_workers_are_next_to_their_gpus(tmp_path: Path, site: str) -> None:
    layout, nodes, wanted = SITES[site]
    pci = {f"0000:{number:02x}:00.0": node for number, node in enumerate(nodes)}
    topology = read_topology(host(tmp_path, *layout, pci), tmp_path)
    near = [gpu_node(each.upper(), tmp_path) for each in pci]
    assert near == list(nodes)
    assert [cpu_list(each) for each in shares(topology, len(nodes), near)] == wanted


def test_without_gpus_cores_are_shared_evenly_and_their_threads_stay_together(
    tmp_path: Path,
) -> None:
    topology = read_topology(host(tmp_path, 2, 1, 4, 2), tmp_path)
    assert shares(topology, 4) == [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]
    assert shares(topology, 9) == [[]] * 9
    assert topology.cpus_of(1) == [4, 12, 5, 13, 6, 14, 7, 15]
    assert topology.nodes_of([0, 9]) == [0]
    assert topology.nodes_of([0, 4]) == [0, 1]


def test_a_share_is_on_one_memory_node_also_if_their_cpus_alternate(tmp_path: Path) -> None:
    cpus = host(tmp_path, 2, 1, 2)
    for node, own in enumerate(("0,2", "1,3")):
        (tmp_path / f"devices/system/node/node{node}/cpulist").write_text(own)
    assert shares(read_topology(cpus, tmp_path), 2) == [[0, 2], [1, 3]]


def test_a_gpu_of_no_known_node_leaves_an_even_share(tmp_path: Path) -> None:
    topology = read_topology(host(tmp_path, 2, 1, 2, 1, {"0000:00:00.0": -1}), tmp_path)
    near = [gpu_node("0000:00:00.0", tmp_path), gpu_node("0000:ff:00.0", tmp_path)]
    assert near == [None, None]
    assert shares(topology, 2, near) == [[0, 1], [2, 3]]


def test_cpus_of_others_are_left_out(tmp_path: Path) -> None:
    host(tmp_path, 2, 1, 4, 2)
    topology = read_topology([1, 9, 2, 5], tmp_path)
    assert [core.cpus for core in topology.cores] == [(1, 9), (2,), (5,)]
    assert shares(topology, 3, [0, 0, 1]) == [[1, 9], [2], [5]]


def test_a_gpu_next_to_no_usable_core_leaves_an_even_share(tmp_path: Path) -> None:
    host(tmp_path, 2, 1, 4)
    topology = read_topology([0, 1, 2, 3], tmp_path)
    assert shares(topology, 2, [0, 1]) == [[0, 1], [2, 3]]


def test_without_sysfs_all_cpus_are_cores_of_one_node(tmp_path: Path) -> None:
    topology = read_topology([3, 1], tmp_path)
    assert topology == Topology((Core((1,), 0, 0), Core((3,), 0, 0)), {})


def test_one_memory_node_is_left_as_it_is_unless_asked(tmp_path: Path) -> None:
    topology = read_topology(host(tmp_path, 1, 1, 4), tmp_path)
    assert bound_cpus("auto", 0, 2, [], topology) == []
    assert bound_cpus(("0-1", "3"), 1, 2, [], topology) == [3]
    with pytest.raises(UserError, match="1 lists of CPUs, but 2 workers"):
        bound_cpus(("0-1",), 1, 2, [], topology)
    with pytest.raises(UserError, match="usable on this host are only 0-3"):
        bound_cpus(("0-9",), 0, 1, [], topology)


def test_several_memory_nodes_are_bound_by_default_and_none_is_none(tmp_path: Path) -> None:
    topology = read_topology(host(tmp_path, 2, 1, 2), tmp_path)
    assert bound_cpus("auto", 1, 2, [], topology) == [2, 3]
    assert bound_cpus("none", 1, 2, [], topology) == []


def test_this_process_is_bound_with_all_its_threads() -> None:
    before = os.sched_getaffinity(0)
    try:
        bind({min(before)})
        threads = map(int, os.listdir("/proc/self/task"))
        assert all(os.sched_getaffinity(each) == {min(before)} for each in threads)
        assert [core.cpus for core in read_topology().cores] == [(min(before),)]
    finally:
        bind(before)
    assert {cpu for core in read_topology().cores for cpu in core.cpus} == before


@pytest.mark.parametrize("text", ["0", "0-3", "0-3,8,10-11", ""])
def test_lists_of_cpus_are_read_and_written(text: str) -> None:
    assert cpu_list(read_cpus(text + "\n")) == text
