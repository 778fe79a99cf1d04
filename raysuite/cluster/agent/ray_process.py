"""`ray start` for one node, with every port and address given."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
from pathlib import Path

from raysuite.cluster.agent.place import Place
from raysuite.cluster.ports import Ports
from raysuite.errors import UserError

LONGEST_SOCKET_PATH = 107
"""Maximum length of a Unix socket's path on Linux, in bytes (ray#17161)."""
_BELOW_TEMP = len("/session_2026-01-01_00-00-00_000000_4194304/sockets/dash_MetricsHead")
_OBJECT_STORE_SHARE = 0.3
"""The object store's share of the allocation's memory. Ray's default is 0.3 of all host memory."""
_SHARED_MEMORY = Path("/dev/shm")


def start_words(place: Place, address: str, ports: Ports, gcs: str, temp: Path) -> list[str]:
    """The command line that starts Ray on this node; `gcs` is the HOST:PORT of the head's GCS."""
    low, high = ports.workers
    options = {
        "node-ip-address": address,
        "object-manager-port": ports.object_manager,
        "node-manager-port": ports.node_manager,
        "dashboard-agent-listen-port": ports.agent_http,
        "dashboard-agent-grpc-port": ports.agent_grpc,
        "runtime-env-agent-port": ports.runtime_env,
        "metrics-export-port": ports.metrics,
        "min-worker-port": low,
        "max-worker-port": high,
        "temp-dir": temp,
        "num-cpus": place.cpus,
        "num-gpus": place.gpus,
        "memory": place.memory and int(place.memory * (1 - _OBJECT_STORE_SHARE)),
        "object-store-memory": place.memory and _object_store(place.memory),
    }
    if place.is_head:
        options |= {
            "port": ports.gcs,
            "dashboard-host": address,
            "dashboard-port": ports.dashboard,
            "include-dashboard": "true",
            "ray-client-server-port": ports.client,
        }
        role = ["--head"]
    else:
        role = [f"--address={gcs}"]
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    program = [sys.executable, "-P", "-m", "raysuite.cluster.ray_start", "start"]
    return [*program, "--block", "--disable-usage-stats", "--log-color=false", *role, *given]


def check_temp(temp: Path) -> None:
    """Raise UserError if the paths of Ray's sockets below `temp` would be too long."""
    length = len(os.fsencode(temp)) + _BELOW_TEMP
    if length > LONGEST_SOCKET_PATH:
        raise UserError(
            f"the path of the temporary folder {temp} is {length - LONGEST_SOCKET_PATH} bytes too "
            "long for Ray's sockets; set TMPDIR, or a site's `scratch`, to a folder with a shorter "
            "path, such as /tmp"
        )


def answers(address: str, port: int, timeout_s: float = 2.0) -> bool:
    """Whether a program listens at this address and port."""
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout_s):
        return True
    return False


def refuses(address: str, port: int, timeout_s: float = 2.0) -> bool:
    """Whether the host is up but no program listens; False for a host that does not respond."""
    try:
        socket.create_connection((address, port), timeout_s).close()
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False


def _object_store(memory: int) -> int:
    wanted = int(memory * _OBJECT_STORE_SHARE)
    with contextlib.suppress(OSError):
        wanted = min(wanted, int(shutil.disk_usage(_SHARED_MEMORY).free * 0.9))
    return wanted
