"""Users of the lab with clusters on the same nodes, and what they try at each other."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from lab.layout import ROOT

from raysuite.cluster.ports import ephemeral_range
from tests.lab.listening import listening
from tests.lab.place import LabPlace

NODES = ("node1", "node2")
SITE = """\
kind: slurm
description: two hosts of the lab
partition: lab
time: 00:30:00
nodes: 2
cpus_per_node: 1
start_timeout_seconds: 900
sbatch_lines: ["#SBATCH --nodelist=node1,node2"]
environment:  # four Rays start at once, on few CPUs
  RAY_raylet_start_wait_time_s: "800"
  RAY_agent_register_timeout_ms: "800000"
"""
SPEC = """\
name: tiny
model: own:Net
strategy: ddp
data: digits
training: {epochs: 1, global_batch: 240}
resources: {device: cpu, workers: 2, placement: spread}
"""
OWN = """\
from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes, in_channels, image_size):
        super().__init__(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))
"""
PROGRAMS = ROOT / "tests" / "lab"


@dataclass(frozen=True)
class Resident:
    """A user with a cluster and something in it."""

    lab: LabPlace
    user: str
    status: dict[str, Any]
    variables: dict[str, str]
    has: dict[str, Any]

    @property
    def folder(self) -> Path:
        return Path(self.variables["RAYSUITE_CLUSTER"])

    @property
    def token(self) -> str:
        return (self.folder / "token").read_text("utf-8").strip()

    @property
    def login(self) -> str:
        user = json.loads((self.folder / "mlflow.json").read_text("utf-8"))
        return f"{user['username']}:{user['password']}"

    def temp(self, host: str) -> str:
        """Her temporary folder on a node."""
        node = json.loads((self.folder / "nodes" / f"{host}.json").read_text("utf-8"))
        return str(node["temp"])

    def known(self, login: str, victim: int, quick: bool = False) -> dict[str, Any]:
        """What anybody on node1 can find out of her cluster; see visitor.py."""
        first, last = ephemeral_range()  # between them the ports are srun's own
        ports = {
            (address, port)
            for host in NODES
            for address, port in listening(self.lab, host, self.user)
            if not first <= port <= last and (host == "node1" or not address.startswith("127."))
        }
        names = ("gcs", "dashboard", "mlflow")
        return {
            **{name: self.status[name] for name in names},
            **{name: self.has[name] for name in ("job", "experiment", "run", "artifact")},
            "client": f"{self.status['gcs'].partition(':')[0]}:{self._client_port()}",
            "listening": sorted(ports),
            "victim": self.has["victims"][victim],
            "login": login,
            "quick": quick,
        }

    def _client_port(self) -> str:
        option = "--ray-client-server-port="
        for process in processes(self.lab, self.user):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                for word in process.cmdline():
                    if word.startswith(option):
                        return word.removeprefix(option)
        raise AssertionError("Ray Client is not served")


def processes(lab: LabPlace, user: str) -> list[psutil.Process]:
    """A user's, as this machine's root sees them."""
    uid = lab.lab.uid(user)
    found = psutil.process_iter(["uids"])
    return [each for each in found if each.info["uids"] and each.info["uids"].real == uid]


def bring_up(lab: LabPlace, user: str, name: str, site: str = SITE) -> dict[str, str]:
    """Bring up a user's cluster; the variables that name it."""
    for file, text in (("site.yaml", site), ("tiny.yaml", SPEC), ("own.py", OWN)):
        lab.run("tee", file, text_in=text, user=user)
    up = ("raysuite", "cluster", "up", "--site", "./site.yaml", "--name", name)
    lab.run(*up, user=user, timeout_s=1000)
    words = ("raysuite", "cluster", "status", "--env", "--json")
    found: dict[str, str] = json.loads(lab.out(*words, user=user))
    return found


def move_in(lab: LabPlace, user: str) -> Resident:
    """Bring up a user's cluster, and do something on it."""
    variables = bring_up(lab, user, f"of-{user}")
    settings = [f"{name}={value}" for name, value in variables.items()]
    words = ("env", *settings, "python", f"{PROGRAMS}/resident.py")
    has = lab.run(*words, user=user, timeout_s=400).stdout
    return Resident(lab, user, status_of(lab, user), variables, json.loads(has.splitlines()[-1]))


def status_of(lab: LabPlace, user: str) -> dict[str, Any]:
    """What `raysuite cluster status` says."""
    words = ("raysuite", "cluster", "status", "--json")
    found: dict[str, Any] = json.loads(lab.out(*words, user=user))
    return found


def visit(
    user: str, at: Resident, token: Path | None, login: str, victim: int, quick: bool = False
) -> dict[str, Any]:
    """What `user` gets of a cluster with this token and this MLflow login; see visitor.py."""
    variables = ["RAY_AUTH_MODE=token", f"RAY_AUTH_TOKEN_PATH={token}"] if token else []
    done = at.lab.run(
        *("env", *variables, "python", f"{PROGRAMS}/visitor.py"),
        user=user,
        host="node1",
        text_in=json.dumps(at.known(login, victim, quick)),
        timeout_s=900,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found
