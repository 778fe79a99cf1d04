"""The IPv4 address at which the other nodes reach this one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping

import psutil

from raysuite.errors import UserError
from raysuite.spec.site import LocalSite, SlurmSite

LOOPBACK = "127.0.0.1"


def is_loopback(address: str) -> bool:
    return address.startswith("127.")


def own_addresses() -> dict[str, str]:
    """IPv4 address -> the interface that has it."""
    found = {}
    for interface, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family == socket.AF_INET:
                found[each.address] = interface
    return found


def find_address(
    site: LocalSite | SlurmSite, head: str | None, variables: Mapping[str, str] = os.environ
) -> str:
    """The address on the site's interface, else the one with the route to `head`.

    `head` is None on the head itself: there it is the address of the name that SLURM knows the
    node by. Raises UserError where there is none.
    """
    ours = own_addresses()
    if site.interface is not None:
        return _on(site.interface, ours)
    if isinstance(site, LocalSite):
        return LOOPBACK
    if head is not None:
        return _route_to(head)
    for candidate in _candidates(variables):
        if candidate in ours and not is_loopback(candidate):
            return candidate
    raise UserError(
        f"no address of this node is found by which others reach it; it has "
        f"{', '.join(sorted(ours))}: name the interface between the nodes in the site's "
        "`interface`, as `ip -br address` lists them"
    )


def interface_of(address: str) -> str:
    """The interface that has `address`; empty where none has."""
    return own_addresses().get(address, "")


def _on(interface: str, ours: Mapping[str, str]) -> str:
    for address, name in ours.items():
        if name == interface:
            return address
    raise UserError(
        f"the site's interface is {interface!r}, which has no IPv4 address on this node; valid "
        f"are {', '.join(sorted(set(ours.values())))}"
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
    """The address that this host shows to that one. Raises UserError where no route leads there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as prober:
        try:
            prober.connect((address, 9))  # sends nothing
        except OSError as error:
            raise UserError(f"no route leads from this node to {address}: {error}") from error
        return str(prober.getsockname()[0])
