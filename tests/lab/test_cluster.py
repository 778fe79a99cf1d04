"""A user of a SLURM site: cluster up, submit, cluster down, on three hosts."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from raysuite.records import GateVerdict, Results, RunFinished
from tests.lab.place import LabPlace

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.lab,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
]

OWN = """\
import pathlib, socket
from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes, in_channels, image_size):
        super().__init__(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))
        pathlib.Path("seen-" + socket.gethostname()).touch()
"""
SPEC = """\
name: three-hosts
model: own:Net
strategy: ddp
data: digits
training: {epochs: 1, global_batch: 240}
resources: {device: cpu, workers: 3, placement: spread}
"""
SITE = """\
kind: slurm
description: three hosts of the lab
partition: lab
time: 00:30:00
nodes: 3
cpus_per_node: 2
start_timeout_seconds: 500
environment:  # three Rays start at once, on few CPUs
  RAY_raylet_start_wait_time_s: "400"
  RAY_agent_register_timeout_ms: "400000"
"""
SUBMIT = """
set -e
eval "$(raysuite cluster env)"
test -n "$RAY_ADDRESS" && test "$RAY_AUTH_MODE" = token
ray job submit -- raysuite run three.yaml --quiet
"""


@pytest.fixture
def settled(lab: LabPlace) -> Iterator[LabPlace]:
    """The lab with a user's files; clusters are taken down whatever happens."""
    for name, text in (("own.py", OWN), ("three.yaml", SPEC), ("three-hosts.yaml", SITE)):
        lab.run("tee", name, text_in=text)
    yield lab
    lab.run("raysuite", "cluster", "down", "--all", check=False, timeout_s=200)


def processes(lab: LabPlace, host: str) -> list[str]:
    """What runs as hpc1 on a host, but for the question itself."""
    said = lab.run("ps", "-u", "hpc1", "-o", "args=", host=host, user=None, check=False).stdout
    return said.splitlines()


def test_up_submit_down_on_three_hosts(settled: LabPlace) -> None:
    lab = settled
    lab.run("raysuite", "cluster", "up", "--site", "./three-hosts.yaml", timeout_s=600)
    status = json.loads(lab.out("raysuite", "cluster", "status", "--json"))
    assert {node["host"] for node in status["nodes"]} == set(lab.lab.hosts)
    assert all(processes(lab, host) for host in lab.lab.hosts)

    lab.run("bash", text_in=SUBMIT, timeout_s=600)
    home = lab.lab.home("hpc1")
    assert {path.name for path in home.glob("seen-*")} >= {f"seen-{h}" for h in lab.lab.hosts}
    results = Results.open(home / "results")
    run = results.plans()[0]["run_id"]
    assert isinstance(results.end_of(run), RunFinished)
    verdicts = [r for r in results.records(run) if isinstance(r, GateVerdict)]
    assert verdicts
    assert all(verdict.passed for verdict in verdicts)

    lab.run("raysuite", "cluster", "down", timeout_s=200)
    assert lab.out("squeue", "-h", "-u", "hpc1") == ""
    for host in ("login", *lab.lab.hosts):
        assert processes(lab, host) == []
        assert lab.out("find", "/tmp", "/dev/shm", "-user", "hpc1", host=host) == ""
