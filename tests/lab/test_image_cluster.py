"""Three frameworks over three hosts, inside an image.

The image is a thin one (`thin_image.py`) unless RAYSUITE_TEST_IMAGE names a whole one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from lab import hosts
from lab.layout import LOGIN, ROOT

from raysuite.images.recipe import FACTS
from raysuite.records import GateVerdict, Results, RunFinished, RunStarted
from tests.lab.place import LabPlace
from tests.lab.thin_image import BINDS
from tests.marks import LAB_MARKS

pytestmark = [*LAB_MARKS, pytest.mark.thorough, pytest.mark.timeout(2400)]

GIVEN = "RAYSUITE_TEST_IMAGE"
STRATEGIES = {"ddp", "horovod", "deepspeed"}
OWN = """\
import pathlib, socket
from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes, in_channels, image_size):
        super().__init__(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))
        pathlib.Path("seen-" + socket.gethostname()).touch()
"""
SPEC = """\
name: inside
model: own:Net
data: digits
training: {epochs: 1, global_batch: 240}
resources: {device: cpu, workers: 3, placement: spread}
matrix:
  strategy: [ddp, horovod, deepspeed]
"""
SITE: dict[str, Any] = {
    "kind": "slurm",
    "partition": "lab",
    "time": "00:45:00",
    "nodes": 3,
    "cpus_per_node": 2,
    "start_timeout_seconds": 900,
    "environment": {  # three Rays start at once, on few CPUs
        "RAY_raylet_start_wait_time_s": "400",
        "RAY_agent_register_timeout_ms": "400000",
    },
}
SUBMIT = """
set -e
cd work
eval "$(raysuite cluster status --env)"
ray job submit -- raysuite run inside.yaml --quiet
"""
ASK = """
import base64, json, pathlib, sys, urllib.error, urllib.request
folder = pathlib.Path.home() / ".raysuite/clusters/inside"
user = json.loads((folder / "mlflow.json").read_text())
url = json.loads((folder / "head.json").read_text())["mlflow"] + "/api/2.0/mlflow/"
word = base64.b64encode(f"{user['username']}:{user['password']}".encode()).decode()

def ask(what, body=None, **headers):
    data = None if body is None else json.dumps(body).encode()
    headers["Content-Type"] = "application/json"
    return json.load(urllib.request.urlopen(urllib.request.Request(url + what, data, headers)))

known = {"Authorization": f"Basic {word}"}
found = ask("experiments/get-by-name?experiment_name=inside", **known)["experiment"]
body = {"experiment_ids": [found["experiment_id"]]}
try:
    ask("runs/search", body)
    sys.exit("the server asks for no password")
except urllib.error.HTTPError as error:
    assert error.code == 401, error
print(json.dumps(ask("runs/search", body, **known)["runs"]))
"""


@dataclass(frozen=True)
class Image:
    path: Path
    binds: list[str]
    digest: str


@pytest.fixture
def image(lab: LabPlace, tools: Path) -> Image:
    """The image, in the user's home."""
    assert tools.is_dir()
    path, binds = lab.lab.home("hpc1") / "inside.sif", BINDS
    if given := os.environ.get(GIVEN):
        shutil.copyfile(given, path)
        path.chmod(0o644)
        binds = []
    else:
        lab.run("python", str(ROOT / "tests/lab/thin_image.py"), str(path), timeout_s=400)
    facts = lab.out("apptainer", "--quiet", "exec", "--no-eval", str(path), "cat", FACTS)
    return Image(path, binds, json.loads(facts)["digest"])


@pytest.fixture
def settled(lab: LabPlace, image: Image) -> Iterator[LabPlace]:
    """The user's files, among them another raysuite; the cluster is taken down in any case."""
    site = SITE | {"image": str(image.path), "binds": image.binds}
    lab.run("mkdir", "-p", "work/raysuite")
    wrong = "raise ImportError('this is not the raysuite of the image')\n"
    lab.run("tee", "work/raysuite/__init__.py", text_in=wrong)
    for name, text in (("own.py", OWN), ("inside.yaml", SPEC), ("site.yaml", yaml.dump(site))):
        lab.run("tee", f"work/{name}", text_in=text)
    yield lab
    lab.run("raysuite", "cluster", "down", "--all", check=False, timeout_s=200)


def listening(lab: LabPlace, host: str) -> set[str]:
    """Addresses and ports on which programs of a host listen."""
    lines = lab.run("ss", "-Hltn", host=host, user=None).stdout.splitlines()
    return {line.split()[3] for line in lines}


def ours(lab: LabPlace, host: str) -> list[str]:
    """What a job or an orphan of the user's runs on a host; not what was started by hand."""
    first = psutil.Process(hosts.inner_pid(lab.lab, host))
    found = []
    for process in first.children(recursive=True):
        try:
            if process.uids().real == lab.lab.uid("hpc1"):
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
        except psutil.Error:
            continue
    return found


def files(lab: LabPlace, host: str) -> str:
    return lab.out("find", "/tmp", "/dev/shm", "-user", "hpc1", host=host)


def runs_in_mlflow(lab: LabPlace) -> list[dict[str, Any]]:
    """By MLflow's REST interface, with the password, which it insists upon."""
    runs: list[dict[str, Any]] = json.loads(lab.run("python", "-", text_in=ASK).stdout)
    return runs


def tags(run: dict[str, Any]) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in run["data"]["tags"]}


def test_three_frameworks_over_three_hosts_inside_an_image(settled: LabPlace, image: Image) -> None:
    lab, everywhere = settled, (LOGIN, *settled.lab.hosts)
    before = {host: listening(lab, host) for host in everywhere}
    up = "cd work && raysuite cluster up --site ./site.yaml --name inside"
    lab.run("bash", "-c", up, timeout_s=1000)
    assert all(ours(lab, host) for host in lab.lab.hosts)
    during = {host: listening(lab, host) - before[host] for host in lab.lab.hosts}
    assert all(during.values())

    lab.run("bash", text_in=SUBMIT, timeout_s=1000)
    work = lab.lab.home("hpc1") / "work"
    assert {path.name for path in work.glob("seen-*")} == {f"seen-{h}" for h in lab.lab.hosts}
    results = Results.open(work / "results")
    passed = set()
    for plan in results.plans():
        records = list(results.records(plan["run_id"]))
        assert isinstance(results.end_of(plan["run_id"]), RunFinished)
        (start,) = [record for record in records if isinstance(record, RunStarted)]
        assert start.environment["image"]["digest"] == image.digest
        (verdict,) = [record for record in records if isinstance(record, GateVerdict)]
        assert verdict.passed
        assert verdict.workers == 3
        passed.add(verdict.strategy)
    assert passed == STRATEGIES
    below = [run for run in runs_in_mlflow(lab) if "mlflow.parentRunId" in tags(run)]
    assert [run["info"]["status"] for run in below] == ["FINISHED"] * len(STRATEGIES)

    lab.run("raysuite", "cluster", "down", timeout_s=200)
    assert lab.out("squeue", "-h", "-u", "hpc1") == ""
    for host in everywhere:
        lab.wait(lambda at=host: ours(lab, at) == [], 60)  # type: ignore[misc]
        assert files(lab, host) == ""
    for host in lab.lab.hosts:
        assert not during[host] & listening(lab, host)
