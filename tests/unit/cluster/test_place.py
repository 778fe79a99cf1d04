"""Which node an agent is, at which address, and what its Ray is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.cluster.agent.place import Place, find_address, find_place, own_addresses
from raysuite.cluster.agent.ray_process import check_temp, start_words
from raysuite.cluster.ports import Ports
from raysuite.errors import UserError
from raysuite.spec.site import LocalSite, SlurmSite

LOCAL = LocalSite(name="local")
FAR = SlurmSite(name="far", gpus_per_node=4)
ALLOCATION = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "2",
    "SLURM_NODEID": "3",
    "SLURMD_NODENAME": "gpu-7",
    "SLURM_CPUS_ON_NODE": "48",
    "SLURM_GPUS_ON_NODE": "2",
    "SLURM_MEM_PER_NODE": "1024",
}


def test_a_place_in_an_allocation() -> None:
    place = find_place(FAR, ALLOCATION)
    assert place == Place("gpu-7", 3, "17-0-2", 48, 2, 2**30)
    assert not place.is_head
    assert find_place(FAR, {**ALLOCATION, "SLURM_NODEID": "0"}).is_head


def test_a_start_after_a_requeue_is_another_incarnation() -> None:
    again = find_place(FAR, {**ALLOCATION, "SLURM_RESTART_COUNT": "1"})
    assert again.incarnation == "17-1-2"


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ({"SLURM_GPUS_ON_NODE": ""}, 4),  # it can be empty: the site's word counts
        ({"SLURM_GPUS_ON_NODE": "", "CUDA_VISIBLE_DEVICES": "0,1,2"}, 3),
        ({"SLURM_GPUS_ON_NODE": "0"}, 0),
        ({"SLURM_GPUS_ON_NODE": "", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"SLURM_GPUS_ON_NODE": "", "CUDA_VISIBLE_DEVICES": "GPU-1b,MIG-7a,7,-1,3"}, 3),
    ],
)
def test_gpus(variables: dict[str, str], gpus: int) -> None:
    assert find_place(FAR, {**ALLOCATION, **variables}).gpus == gpus


@pytest.mark.parametrize(
    ("variables", "memory"),
    [
        ({"SLURM_MEM_PER_NODE": "0"}, None),  # all of the node's
        ({"SLURM_MEM_PER_NODE": "", "SLURM_MEM_PER_CPU": "10"}, 480 * 2**20),
        ({"SLURM_MEM_PER_NODE": ""}, None),
    ],
)
def test_memory(variables: dict[str, str], memory: int | None) -> None:
    assert find_place(FAR, {**ALLOCATION, **variables}).memory == memory


def test_this_machine_is_the_head_whatever_slurm_says() -> None:
    site = LocalSite(name="local", cpus=3)
    place = find_place(site, ALLOCATION)
    assert (place.index, place.cpus, place.gpus) == (0, 3, None)


def test_a_host_name_is_safe_in_a_path() -> None:
    place = find_place(FAR, {**ALLOCATION, "SLURMD_NODENAME": "../x/y.cluster"})
    assert "/" not in place.host
    assert "." not in place.host


def test_addresses() -> None:
    loopback = next(name for address, name in own_addresses().items() if address == "127.0.0.1")
    assert find_address(LOCAL, None) == "127.0.0.1"
    named = SlurmSite(name="far", interface=loopback)
    assert find_address(named, None).startswith("127.")
    assert find_address(FAR, "127.0.0.1") == "127.0.0.1"
    with pytest.raises(UserError, match=f"'nope0'.*valid:.*{loopback}"):
        find_address(SlurmSite(name="far", interface="nope0"), None)


def test_loopback_is_no_address_for_others() -> None:
    with pytest.raises(UserError, match="interface"):
        find_address(FAR, None, {"SLURMD_NODENAME": "localhost"})


def test_ray_is_left_nothing_to_choose() -> None:
    ports = Ports(20_000, 128)
    head = Place("a", 0, "x", 8, 1, 10 * 2**30)
    words = start_words(head, "10.0.0.1", ports, "", Path("/tmp/rs-x/r"))
    options = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
    given = {value for name, value in options.items() if name.endswith("port")}
    assert len(given) == 11
    assert all(20_000 <= int(port) < 20_128 for port in given)
    assert options["--node-ip-address"] == options["--dashboard-host"] == "10.0.0.1"
    assert (options["--num-cpus"], options["--num-gpus"]) == ("8", "1")
    assert int(options["--memory"]) + int(options["--object-store-memory"]) <= 10 * 2**30
    assert "--head" in words
    node = start_words(Place("b", 1, "x", 8, 0, None), "10.0.0.2", ports, "10.0.0.1:5", Path())
    assert "--address=10.0.0.1:5" in node
    assert not [word for word in node if word.startswith(("--head", "--port", "--dashboard-port"))]
    assert not [word for word in node if word.startswith(("--memory", "--object-store"))]


def test_sockets_have_short_paths() -> None:
    check_temp(Path("/tmp/rs-abcdefgh/r"))
    check_temp(Path("/scratch/project/rs-abcdefgh/r"))
    with pytest.raises(UserError, match=r"bytes too long.*`scratch`"):
        check_temp(Path("/" + "x" * 60))
