"""This node's number, size and addresses in the cluster."""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import psutil

from raysuite.cluster.hosts import PLACE
from raysuite.errors import UserError
from raysuite.spec.resources import gpus_in
from raysuite.spec.site import HostsSite, LocalSite, Site, SlurmSite

_MEGABYTE = 2**20


@dataclass(frozen=True)
class Place:
    """A node of the cluster. If `cpus`, `gpus` or `memory` is None, Ray detects the value."""

    host: str
    index: int
    """0 for the head."""
    incarnation: str
    """An id that is new whenever the agents are started, and equal on all nodes."""
    cpus: int | None
    gpus: int | None
    memory: int | None = None
    """Bytes."""

    @property
    def is_head(self) -> bool:
        return self.index == 0


def find_place(site: Site, variables: Mapping[str, str] = os.environ) -> Place:
    """The node of this process: from the site if it is local, else from environment variables that
    SLURM or the launcher sets."""
    here = _file_name(platform.node())
    if isinstance(site, LocalSite):
        return Place(here, 0, f"pid-{os.getpid()}", site.cpus, site.gpus)
    if isinstance(site, HostsSite):
        index, _, start = variables.get(PLACE, "").partition(":")
        if not index.isdecimal():
            raise UserError(f"{PLACE} is not set; start agents only by `raysuite cluster up`")
        return Place(here, int(index), start, site.cpus_per_node, site.gpus_per_node)
    cpus = _number(variables, "SLURM_CPUS_ON_NODE")
    attempt = _number(variables, "SLURM_RESTART_COUNT") or 0
    step = variables.get("SLURM_STEP_ID") or variables.get("SLURM_STEPID") or ""
    return Place(
        host=_file_name(variables.get("SLURMD_NODENAME") or platform.node()),
        index=_number(variables, "SLURM_NODEID") or 0,
        incarnation=f"{variables.get('SLURM_JOB_ID', '')}-{attempt}-{step}",
        cpus=cpus,
        gpus=_gpus(site, variables),
        memory=_memory(variables, cpus),
    )


def _gpus(site: SlurmSite, variables: Mapping[str, str]) -> int:
    """The number of GPUs, from SLURM_GPUS_ON_NODE or CUDA_VISIBLE_DEVICES, or from the site if
    SLURM sets neither of them."""
    said = _number(variables, "SLURM_GPUS_ON_NODE")
    if said is not None:
        return said
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return gpus_in(visible)
    return site.gpus_per_node


def _memory(variables: Mapping[str, str], cpus: int | None) -> int | None:
    node = _number(variables, "SLURM_MEM_PER_NODE")  # 0 means all memory of the node
    each = _number(variables, "SLURM_MEM_PER_CPU")
    if node:
        return node * _MEGABYTE
    return each * cpus * _MEGABYTE if each and cpus else None


def _number(variables: Mapping[str, str], name: str) -> int | None:
    value = variables.get(name, "").strip()
    return int(value) if value.isdecimal() else None


def _file_name(host: str) -> str:
    short = host.partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]", "_", short) or "node"


LOOPBACK = "127.0.0.1"


def own_addresses() -> dict[str, str]:
    """IPv4 address -> the interface that has it."""
    found = {}
    for interface, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family == socket.AF_INET:
                found[each.address] = interface
    return found


def find_address(site: Site, head: str | None, variables: Mapping[str, str] = os.environ) -> str:
    """This node's IPv4 address on the site's interface. If the site names no interface, the address
    is the loopback address for a local site, and the address on the route to `head` for others.

    On the head itself `head` is None, and the address is found by the node's name and SLURM's
    variables. Raises UserError if no address is found.
    """
    ours = own_addresses()
    if site.interface is not None:
        return _on(site.interface, ours)
    if isinstance(site, LocalSite):
        return LOOPBACK
    if head is not None:
        return _route_to(head)
    for candidate in _candidates(variables):
        if candidate in ours and not candidate.startswith("127."):
            return candidate
    raise UserError(
        f"found no address of this node that other nodes can reach; it has "
        f"{', '.join(sorted(ours)) or 'no IPv4 address, and raysuite needs one'}; set the site's "
        "`interface` to the network interface between the nodes (`ip -br address` lists all)"
    )


def client_address(site: Site, address: str) -> str:
    """The head's address for clients; `address` is the head's address for nodes."""
    if site.client_interface is None:
        return address
    return _on(site.client_interface, own_addresses(), "client_interface")


def interface_of(address: str) -> str:
    """The interface that has `address`; empty if there is none."""
    return own_addresses().get(address, "")


def _on(interface: str, ours: Mapping[str, str], key: str = "interface") -> str:
    for address, name in ours.items():
        if name == interface:
            return address
    raise UserError(
        f"the site's {key} is {interface!r}, which has no IPv4 address on this node, and "
        f"raysuite needs one; valid: {', '.join(sorted(set(ours.values()))) or 'none'}"
    )


def _candidates(variables: Mapping[str, str]) -> Iterator[str]:
    name = variables.get("SLURMD_NODENAME") or socket.gethostname()
    yield from _resolved(name)
    yield variables.get("SLURM_LAUNCH_NODE_IPADDR", "")
    submit = variables.get("SLURM_SUBMIT_HOST")
    for address in _resolved(submit) if submit else ():
        yield _route_to(address)


def _resolved(name: str) -> list[str]:
    try:
        return socket.gethostbyname_ex(name)[2]
    except OSError:
        return []


def _route_to(address: str) -> str:
    """This host's address on the route to `address`. Raises UserError if there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as prober:
        try:
            prober.connect((address, 9))  # sends nothing
        except OSError as error:
            raise UserError(f"no route leads from this node to {address}: {error}") from error
        return str(prober.getsockname()[0])
