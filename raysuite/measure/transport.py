"""Find the transport between ranks: TCP on an interface, or the transport that NCCL has chosen."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from pathlib import Path

import psutil

from raysuite.measure.topology import read_sys

INFINIBAND = Path("/sys/class/infiniband")
"""InfiniBand devices, with the state and link layer of their ports (kernel.org,
Documentation/ABI/stable/sysfs-class-infiniband)."""
SLINGSHOT = Path("/sys/class/cxi")
"""Devices of HPE Slingshot (github.com/HewlettPackard/shs-cassini-headers)."""
_STORES = ("MASTER_PORT", "HOROVOD_GLOO_RENDEZVOUS_PORT")
"""Environment variables with the ports of the stores through which ranks find each other.
Connections to these ports are ignored, because they carry no gradients."""
_VIA = re.compile(r"Channel .* -> .* via (\S+)")
_DEVICE = re.compile(r"\d+(\(\d+\))?")

Connection = tuple[str, int, str, int]
"""Local address and port, remote address and port."""


class Transport:
    """The transports of the connections that this process opens after this object is made.

    NCCL's choice is read from its log, which is written to memory. If the user sets NCCL_DEBUG, the
    log is left to the user, and is not read.
    """

    def __init__(self, on_gpu: bool) -> None:
        self._before = connections()
        self._log = _nccl_log() if on_gpu else None
        self._start = os.lseek(self._log, 0, os.SEEK_END) if self._log is not None else 0

    def names(self) -> list[str]:
        """Names of the transports, such as "TCP, eth0", "TCP, this host", "NCCL, NET/IB/GDRDMA"."""
        return sorted({*tcp_names(connections() - self._before), *self._nccl()})

    def _nccl(self) -> set[str]:
        if self._log is None:
            return set()
        size = os.fstat(self._log).st_size
        start = self._start if size >= self._start else 0  # shorter: NCCL has begun a new log
        return nccl_names(os.pread(self._log, size - start, start).decode(errors="replace"))


def connections() -> set[Connection]:
    """This process's TCP connections, except to stores; empty if they cannot be read."""
    stores = {int(os.environ.get(name) or 0) for name in _STORES}
    with contextlib.suppress(psutil.Error, OSError):
        return {
            (_plain(each.laddr.ip), each.laddr.port, _plain(each.raddr.ip), each.raddr.port)
            for each in psutil.Process().net_connections("tcp")
            if each.raddr and stores.isdisjoint((each.laddr.port, each.raddr.port))
        }
    return set()


def tcp_names(found: set[Connection]) -> set[str]:
    """Names of the transports: `TCP, ` and the interface of the local address, or `this host` if
    both addresses are local."""
    interfaces = {
        _plain(address.address.partition("%")[0]): name
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family in (socket.AF_INET, socket.AF_INET6)
    }
    return {
        f"TCP, {'this host' if other in interfaces else interfaces.get(own, own)}"
        for own, _, other, _ in found
    }


def nccl_names(log: str) -> set[str]:
    """The names of the transports in NCCL's log (INFO, INIT), from the lines on how NCCL connects
    two ranks. Device numbers are left out of the names."""
    found = (_VIA.search(line) for line in log.splitlines())
    parts = (each[1].split("/") for each in found if each)
    return {
        f"NCCL, {'/'.join(part for part in each if not _DEVICE.fullmatch(part))}" for each in parts
    }


def infiniband(root: Path = INFINIBAND) -> list[str]:
    """This host's InfiniBand devices with an active port, without RoCE devices (Ethernet)."""
    return sorted(
        {
            port.parent.parent.name
            for port in root.glob("*/ports/*")
            if read_sys(port / "link_layer") == "InfiniBand"
            and "ACTIVE" in read_sys(port / "state")
        }
    )


_log: int | None = None
"""NCCL's log: one per process, because NCCL reads its environment once and keeps the log open."""


def _nccl_log() -> int | None:
    """Descriptor of the file in memory to which NCCL logs; None if the user sets NCCL_DEBUG."""
    global _log
    if _log is None and "NCCL_DEBUG" not in os.environ:
        _log = os.memfd_create("nccl")
        file = f"/proc/self/fd/{_log}"
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT", NCCL_DEBUG_FILE=file)
    return _log


def _plain(address: str) -> str:
    return address.removeprefix("::ffff:")


def fast_networks(infiniband_root: Path = INFINIBAND, slingshot: Path = SLINGSHOT) -> list[str]:
    """Devices of this host that NCCL can use instead of sockets: InfiniBand and Slingshot."""
    return infiniband(infiniband_root) + sorted(each.name for each in slingshot.glob("cxi*"))
