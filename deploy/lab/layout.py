"""The names and paths of a lab's parts, which are stored in `lab.json` in its folder."""

from __future__ import annotations

import ipaddress
import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
USERS = ("hpc1", "hpc2")
LOGIN = "login"
INTERFACE = "eth0"


class LabError(Exception):
    """A request to the lab failed; the message gives the reason and what to do."""


@dataclass
class Lab:
    """One lab: its folder, its hosts and the bridge between them."""

    folder: Path
    hosts: list[str]
    bridge: str
    subnet: str
    first_uid: int
    cpus: int
    """CPUs that SLURM counts for each host; in fact all hosts share the machine's CPUs."""
    memory_mb: int
    outer: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Host (or LOGIN) -> pid and start time of its process."""

    def address(self, host: str) -> str:
        """The address of a host on the bridge."""
        network = ipaddress.ip_network(self.subnet)
        return str(network[1 if host == LOGIN else 11 + self.hosts.index(host)])

    def uid(self, user: str) -> int:
        """The uid of a user, which is also the gid of its group."""
        return self.first_uid + USERS.index(user)

    def home(self, user: str) -> Path:
        """The home of a user, which all hosts share."""
        return self.folder / "home" / user

    def veth(self, host: str) -> str:
        """The end of the host's cable at the bridge."""
        return f"{self.bridge}-{self.hosts.index(host) + 1}"

    @property
    def slurm_conf(self) -> Path:
        """The configuration that all of SLURM's commands read."""
        return self.folder / "etc" / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        """The socket of munge, which all hosts share."""
        return self.folder / "run" / "munge.socket"

    def check_host(self, host: str, *, login: bool = False) -> str:
        """`host` itself, if there is one; LabError otherwise."""
        known = [LOGIN, *self.hosts] if login else self.hosts
        if host not in known:
            raise LabError(f"no host '{host}'; valid: {', '.join(known)}")
        return host

    def save(self) -> None:
        """Write lab.json atomically."""
        values = asdict(self) | {"folder": str(self.folder)}
        scratch = self.folder / "lab.json.new"
        scratch.write_text(json.dumps(values, indent=2) + "\n")
        scratch.rename(self.folder / "lab.json")


def default_folder() -> Path:
    """$RAYSUITE_LAB, or /var/lib/raysuite-lab."""
    return Path(os.environ.get("RAYSUITE_LAB") or "/var/lib/raysuite-lab").absolute()


def load(folder: Path) -> Lab | None:
    """The lab in a folder; None if there is none."""
    try:
        values = json.loads((folder / "lab.json").read_text())
    except FileNotFoundError:
        return None
    values["folder"] = Path(values["folder"])
    values["outer"] = {host: (pid, began) for host, (pid, began) in values["outer"].items()}
    return Lab(**values)


def needed() -> list[Path]:
    """The folders that users need: the interpreter's, its environment's and this checkout's."""
    return [Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), ROOT]
