"""Another Ray of the user's on a host: started by hand, not by raysuite."""

from __future__ import annotations

import contextlib
import subprocess

import psutil
from lab import hosts

from tests.lab.listening import listening
from tests.lab.place import LabPlace

_PORT = 7399
_CLIENT_PORT = 10001
_START = (
    "exec ray start --head --block --disable-usage-stats --include-dashboard=false --num-cpus=1"
    f" --ray-client-server-port={_CLIENT_PORT}"
    " --object-store-memory=80000000 --min-worker-port=7400 --max-worker-port=7500"
)


class OtherRay:
    """`ray start --head` on a host, in the background."""

    def __init__(self, lab: LabPlace, host: str) -> None:
        self._lab, self._host = lab, host
        self.temp = f"/tmp/by-hand-{host}"
        self._first: subprocess.Popen[bytes] | None = None
        self._started: list[psutil.Process] = []

    @property
    def address(self) -> str:
        return f"{self._lab.lab.address(self._host)}:{_PORT}"

    def start(self) -> None:
        address = self._lab.lab.address(self._host)
        line = f"{_START} --port={_PORT} --node-ip-address={address} --temp-dir={self.temp}"
        command = hosts.entering(self._lab.lab, self._host, ["bash", "-c", line], "hpc1")
        quiet = subprocess.DEVNULL
        self._first = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
        self._lab.wait(self.answers, 300)
        self._lab.wait(self._serves_clients, 300)
        self._started = psutil.Process(self._first.pid).children(recursive=True)

    def answers(self) -> bool:
        """Whether Ray's own client hears of a node that lives."""
        words = ("ray", "status", f"--address={self.address}")
        done = self._lab.run(*words, host=self._host, check=False)
        return done.returncode == 0 and "1 node_" in done.stdout

    def _serves_clients(self) -> bool:
        """Whether Ray Client's server listens, which starts beside the others."""
        ports = {port for _, port in listening(self._lab, self._host, "hpc1")}
        return _CLIENT_PORT in ports

    def check_alive(self) -> None:
        """None of its servers ended, and it answers."""
        servers = [p for p in self._started if p.is_running()]
        names = {process.name() for process in servers}
        assert {"gcs_server", "raylet"} <= names, names
        assert self.answers()

    def end(self) -> None:
        if self._first is None:
            return
        below = psutil.Process(self._first.pid).children(recursive=True)
        self._first.kill()
        self._first.wait()
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(below, timeout=30)
        self._lab.run("rm", "-rf", self.temp, host=self._host)
