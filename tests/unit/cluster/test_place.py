"""Which node an agent is, at which address, and what its Ray is told."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from raysuite.cluster.agent import place as place_module
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


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"SLURMD_NODENAME": "node"}, "10.0.0.5"),
        ({"SLURMD_NODENAME": "other", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.6"}, "10.0.0.6"),
        ({"SLURMD_NODENAME": "other", "SLURM_SUBMIT_HOST": "login"}, "10.0.0.7"),
    ],
)
def test_a_heads_address_is_that_of_its_name_or_on_the_route_to_the_login_node(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], wanted: str
) -> None:
    names = {"node": ["127.0.1.1", "10.9.9.9", "10.0.0.5"], "login": ["10.2.0.1"]}
    ours = {"127.0.1.1": "lo", "10.0.0.5": "a", "10.0.0.6": "b", "10.0.0.7": "c"}
    routes = {"10.2.0.1": "10.0.0.7"}
    monkeypatch.setattr(place_module, "own_addresses", lambda: ours)
    monkeypatch.setattr(place_module, "_resolved", lambda name: names.get(name, []))
    monkeypatch.setattr(place_module, "_route_to", routes.__getitem__)
    assert find_address(FAR, None, variables) == wanted


def test_ray_is_left_nothing_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = Ports(20_000, 128)
    head = Place("a", 0, "x", 8, 1, 10 * 2**30)
    free = SimpleNamespace(free=2**40)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    words = start_words(head, "10.0.0.1", ports, "", Path("/tmp/rs-x/r"))
    options = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
    assert options == {
        "--node-ip-address": "10.0.0.1",
        "--object-manager-port": "20001",
        "--node-manager-port": "20002",
        "--dashboard-agent-listen-port": "20004",
        "--dashboard-agent-grpc-port": "20005",
        "--runtime-env-agent-port": "20006",
        "--metrics-export-port": "20007",
        "--min-worker-port": "20016",
        "--max-worker-port": "20127",
        "--temp-dir": "/tmp/rs-x/r",
        "--num-cpus": "8",
        "--num-gpus": "1",
        "--memory": "7516192768",  # 7 of 10 GiB
        "--object-store-memory": "3221225472",
        "--port": "20000",
        "--dashboard-host": "10.0.0.1",
        "--dashboard-port": "20003",
        "--include-dashboard": "true",
        "--ray-client-server-port": "20009",
        "--log-color": "false",
    }
    assert "--head" in words
    free.free = 1000  # of /dev/shm, which holds the object store
    assert "--object-store-memory=900" in start_words(head, "10.0.0.1", ports, "", Path())
    node = start_words(Place("b", 1, "x", 8, 0, None), "10.0.0.2", ports, "10.0.0.1:5", Path())
    assert "--address=10.0.0.1:5" in node
    assert not [word for word in node if word.startswith(("--head", "--port", "--dashboard-port"))]
    assert not [word for word in node if word.startswith(("--memory", "--object-store"))]
    assert "--num-gpus=0" in node


def test_sockets_have_short_paths() -> None:
    check_temp(Path("/tmp/rs-abcdefgh/r"))
    check_temp(Path("/scratch/project/rs-abcdefgh/r"))
    with pytest.raises(UserError, match=r"bytes too long.*`scratch`"):
        check_temp(Path("/" + "x" * 60))
