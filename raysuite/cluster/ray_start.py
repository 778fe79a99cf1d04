"""Start Ray on a node with longer timeouts, and find the reason in its logs if the start fails.

On each node, Ray starts two agents as Python programs. On a busy node, or if the agents' files are
on a busy shared file system, the agents start slowly, and Ray gives up: the raylet waits 15 s for
the file in which an agent writes its port (ray#65983), and Ray's Python code waits 30 s for the
raylet. No setting changes these two timeouts; ENVIRONMENT extends all other timeouts. If the
shortcuts of ray_shortcuts are off, the limit of 30 s remains, but this module still writes the
files of late agents.

As a program, this module is the `ray` command with these longer timeouts.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from raysuite.cluster import private, ray_shortcuts
from raysuite.errors import RayStartError
from raysuite.files import write_whole

TRIES = 3
"""Maximum number of attempts to start Ray."""
PATIENCE_S = 240.0
ENVIRONMENT = {
    "RAY_agent_register_timeout_ms": f"{PATIENCE_S * 1000:.0f}",
    "RAY_gcs_server_port_wait_time_s": f"{PATIENCE_S:.0f}",
    "RAY_worker_register_timeout_seconds": f"{PATIENCE_S:.0f}",
}
_LISTEN = "dashboard_agent_listen_port"
NO_SERVER = {"metrics_agent_port": -1, "metrics_export_port": -1, _LISTEN: -1}
"""The ports of a dashboard's agent that runs no server: it writes -1 for each."""
_SOCKET = "sockets/raylet"
"""The raylet's socket. The raylet makes the socket after reading all ports, before registering."""
_STEP_S = 0.05
_EACH_S = 12.0
"""Seconds to wait for an agent to write a port's file. If the file is still missing then, this
module writes it. The raylet waits up to 15 s for each port in turn, and for the runtime
environments' agent last."""
_LOGS = ("raylet.err", "gcs_server.err", "runtime_env_agent.err", "dashboard_agent.err")
_MESSAGE = re.compile(r"^\[[^\]]*\] \(\w+\) [\w.]+:\d+: +(?:.*Check failed: \S+ )?(.*)$", re.M)
"""A line of the logs of Ray's C++ programs, `[TIME LEVEL PID TID] (raylet) file.cc:LINE: TEXT`; its
group is the message."""
_LONGEST = 300


@contextmanager
def patience(
    temp: Path, agent_ports: Mapping[str, int] = NO_SERVER, no_agent: bool = False
) -> Iterator[None]:
    """Extend the timeouts of a Ray node that starts within the context; `temp` is its folder.

    `agent_ports` are the ports of the dashboard's agent that the raylet reads from files; -1 is
    the port of a server that the agent does not run. With `no_agent`, no agent is started, and the
    files are written at once. Raises RayStartError if the raylet ends or does not answer in time.
    """
    from ray.exceptions import RaySystemError

    def patient(find: Callable[..., Any]) -> Callable[[str, str], Any]:
        def find_patiently(gcs: str, node_id: str) -> Any:
            """Call `find` until it succeeds; Ray's Python code calls this for each new raylet."""
            session, deadline = temp / "session_latest", time.monotonic() + PATIENCE_S
            socket = session / _SOCKET
            _write_ports(session, node_id, agent_ports, 0.0 if no_agent else _EACH_S)
            # `find` would wait half a minute, even for a raylet that has ended
            while raylet_lives() and not socket.exists() and time.monotonic() < deadline:
                time.sleep(_STEP_S)
            while raylet_lives():
                try:
                    return find(gcs, node_id)
                except (RuntimeError, RaySystemError) as error:  # no raylet, or no GCS yet
                    if time.monotonic() > deadline:
                        late = f"the raylet did not answer within {PATIENCE_S:.0f} s: {error}"
                        raise RayStartError(late) from error
                time.sleep(_STEP_S)
            raise RayStartError(reason(temp) or "the raylet ended without a message")

        return find_patiently

    ended = threading.Event()
    if not ray_shortcuts.enabled():
        given = (ended, temp / "session_latest", agent_ports)
        threading.Thread(target=_write_ports_of_a_raylet, args=given, daemon=True).start()
    try:
        with ray_shortcuts.node_lookup(patient):
            yield
    finally:
        ended.set()


_NODE_ID = "--node_id="


def _write_ports_of_a_raylet(
    ended: threading.Event, session: Path, ports: Mapping[str, int]
) -> None:
    while not ended.wait(_STEP_S):
        # the folder is removed or the raylet ends: Ray reports that itself
        with suppress(RayStartError, OSError, psutil.Error):
            words = raylet.cmdline() if (raylet := _raylet()) else []
            ids = [each.removeprefix(_NODE_ID) for each in words if each.startswith(_NODE_ID)]
            if ids:
                _write_ports(session, ids[0], ports, _EACH_S)
                return


def _write_ports(session: Path, node_id: str, ports: Mapping[str, int], each_s: float) -> None:
    """Write the files with the ports of late agents.

    Raises RayStartError if the raylet has ended, or all its agents: the raylet would still wait for
    each port."""
    last, begun = session / f"runtime_env_agent_port_{node_id}", False
    for name, port in ports.items():
        file = session / f"{name}_{node_id}"
        deadline = time.monotonic() + each_s
        while not (file.exists() or last.exists()) and time.monotonic() < deadline:
            raylet = _raylet()
            agents = raylet is not None and any(map(_lives, raylet.children()))
            if raylet is None or (begun and not agents):
                raise RayStartError(reason(session.parent) or "the raylet's agents ended")
            begun = agents
            time.sleep(_STEP_S)
        if not file.exists():
            write_whole(file, str(port).encode(), private.MODE)


def raylet_lives() -> bool:
    """Whether a raylet runs as a child of this process."""
    return _raylet() is not None


def _raylet() -> psutil.Process | None:
    children = psutil.Process().children()
    return next((each for each in children if _lives(each) and each.name() == "raylet"), None)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def reason(temp: Path) -> str:
    """Why a Ray node with the folder `temp` did not start, in one line; empty if no log has a
    reason.

    C++ programs log their error before the stack trace, Python programs after it.
    """
    for name in _LOGS:
        file = temp / "session_latest" / "logs" / name
        text = file.read_text("utf-8", "replace").strip() if file.exists() else ""
        if text:
            found = _MESSAGE.search(text)
            message = found[1] if found else text.splitlines()[-1]
            return f"{name.removesuffix('.err')}: {message[:_LONGEST]}"
    return ""


def main() -> None:
    """Run the `ray` command for a node whose ports are all given as options."""
    from ray.scripts import scripts

    temp, port = Path(_option("--temp-dir=")), int(_option("--dashboard-agent-listen-port="))
    try:
        with patience(temp, {_LISTEN: port}):
            scripts.main()
    except RayStartError as error:
        sys.exit(str(error))


def _option(name: str) -> str:
    return next(word.removeprefix(name) for word in sys.argv if word.startswith(name))


if __name__ == "__main__":
    main()
