"""A cluster on this machine, from `up` to `down`, with another Ray of the same user beside it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from raysuite.cluster.agent.mlflow import DATABASE
from raysuite.cluster.folder import ClusterFolder
from raysuite.records import Results
from raysuite.records.system import system_files
from raysuite.track.results_folder import results_id
from tests.marks import SLOW_MARKS
from tests.waiting import until

pytestmark = [*SLOW_MARKS, pytest.mark.timeout(1500)]

BIN = Path(sys.executable).parent
SPEC = """\
name: tiny
model: own:Net
data: digits
training: {epochs: 1, global_batch: 240}
resources: {device: cpu, workers: 1}
"""
OWN = """\
import psutil
from torch import nn

process = psutil.Process()
assert process.nice() == process.parent().nice()  # Ray would have workers yield to all others

class Net(nn.Sequential):
    def __init__(self, num_classes, in_channels, image_size):
        super().__init__(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))
"""


# the example of the guide
TRAIN = re.findall(
    r"```python\n(# train.py\n.*?)```",
    (Path(__file__).parents[2] / "docs" / "how-to" / "own-script.md").read_text("utf-8"),
    re.DOTALL,
)[0]


class User:
    """Somebody with a home and a working folder of her own, who types commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        (self.folder / "tiny.yaml").write_text(SPEC)
        (self.folder / "own.py").write_text(OWN)
        (self.folder / "train.py").write_text(TRAIN)
        (self.folder / "site.yaml").write_text(
            f"kind: local\nscratch: {folder}\ncpus: 2\ngpus: 0\nstart_timeout_seconds: 1000\n"
        )
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RAY", "MLFLOW"))
        } | {"RAYSUITE_HOME": str(folder / "home"), "PATH": f"{BIN}:{os.environ['PATH']}"}
        self.cluster = ClusterFolder(folder / "home" / "clusters" / "mine")

    def types(self, line: str, code: int = 0) -> str:
        """What a line of shell prints; it ends with `code`."""
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
        assert done.returncode == code, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout if code == 0 else done.stderr

    def asks(self, line: str) -> Any:
        return json.loads(self.types(line))


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    folder = Path(os.path.realpath("/tmp")) / f"rc-{os.getpid()}"  # sockets want a short path
    folder.mkdir(mode=0o700)
    user = User(folder)
    try:
        user.types("raysuite cluster up --site ./site.yaml --name mine")
        yield user
    finally:
        user.types("raysuite cluster down --all --grace 0")
        subprocess.run(["rm", "-rf", "--", str(folder)], check=True)


@pytest.fixture(scope="module")
def other_ray() -> Iterator[None]:
    """A Ray that the same user has for something else."""
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_it_is_up(user: User) -> None:
    status = user.asks("raysuite cluster status --json")
    assert (status["state"], status["nodes_alive"], status["cpus"]) == ("up", 1, 2.0)
    (node,) = status["nodes"]
    assert (node["address"], node["state"]) == ("127.0.0.1", "joined")
    assert {"submit", "python", "ray", "all"} <= set(status["timings"])
    (listed,) = user.asks("raysuite cluster status --all --json")
    assert listed["name"] == "mine"


def test_all_of_it_listens_on_loopback_behind_ports_of_its_block(user: User) -> None:
    addresses = listening(tree(user))
    assert len(addresses) > 5
    assert {address.ip.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}


def test_a_second_one_of_that_name_is_refused(user: User) -> None:
    said = user.types("raysuite cluster up --site ./site.yaml --name mine", code=2)
    assert "already exists (up)" in said


def test_no_secret_is_in_the_environment_or_on_a_command_line(user: User) -> None:
    cluster_user = user.cluster.mlflow_user()
    assert cluster_user is not None
    secrets = (user.cluster.token(), cluster_user.password)
    shown = user.types("raysuite cluster status --env; raysuite cluster status --json")
    for process in tree(user):
        with contextlib.suppress(psutil.NoSuchProcess):
            shown += shlex.join(process.cmdline()) + str(process.environ())
            assert process.rlimit(psutil.RLIMIT_CORE)[0] == 0
    for log in user.cluster.logs.iterdir():
        shown += log.read_text("utf-8", "replace")
    assert not [secret for secret in secrets if secret in shown]
    assert str(user.cluster.token_file) in shown


@pytest.mark.thorough
def test_a_job_runs_where_the_cluster_was_started_and_mlflow_has_it(
    user: User, other_ray: None
) -> None:
    out = user.types(
        'eval "$(raysuite cluster status --env)" && ray job submit -- raysuite run tiny.yaml -q'
    )
    assert "succeeded" in out
    [report] = (user.folder / "results" / "tiny").glob("*/report.html")
    assert ray.is_initialized()
    table = f"workflowType=machine_learning&viewStateShareKey={results_id(report.parent)}"
    assert table in user.types("raysuite cluster status")
    (node,) = user.cluster.nodes()
    with closing(sqlite3.connect(Path(node.temp) / "mlflow" / DATABASE)) as database:
        states = database.execute("select distinct status from runs").fetchall()
    assert states == [("FINISHED",)]


@pytest.mark.thorough
def test_a_users_own_script_scales_in_a_job(user: User) -> None:
    scale = "raysuite scale --workers 1,2 --repeats 1 --warmup-steps 2 --check --quiet --device cpu"
    user.types(
        f'eval "$(raysuite cluster status --env)" && ray job submit -- {scale} -- '
        "train.py --batch '{16 // workers}'"
    )
    results = Results.open(user.folder / "results" / "train")
    one, two = json.loads((results.folder / "rows.json").read_text("utf-8"))["rows"]
    assert [one["gate"], two["gate"]] == ["not needed", "passed"]
    assert [one["global_batch"], two["global_batch"]] == [16, 16]
    assert two["speed_up"]["value"] > 0
    for plan in results.plans():
        folder = results.journal_file(plan["run_id"]).parent
        assert len(list(folder.glob("rank-*.log"))) == plan["workers"]
        assert len(system_files(folder)) == 1


def test_down_leaves_nothing_of_it_and_everything_else(user: User, other_ray: None) -> None:
    until(lambda: (head := user.cluster.head()) is not None and head.mlflow_answers)
    processes = tree(user)
    ports = {address.port for address in listening(processes)}
    (node,) = user.cluster.nodes()
    user.types("raysuite cluster down")
    gone, alive = psutil.wait_procs(processes, timeout=60)
    assert (len(gone), alive) == (len(processes), [])
    assert not Path(node.temp).exists()
    for port in ports:
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", port))
    assert not user.cluster.token_file.exists()
    assert not user.cluster.mlflow_file.exists()
    with closing(sqlite3.connect(user.cluster.mlflow / DATABASE)) as kept:
        assert ("Default",) in kept.execute("select name from experiments").fetchall()
    (status,) = user.asks("raysuite cluster status --all --json")
    assert (status["state"], status["why"]) == ("ended", "taken down")
    assert ray.get(ray.remote(lambda: 7).remote()) == 7


def listening(processes: list[psutil.Process]) -> set[Any]:
    """Where those of them listen that have not ended meanwhile."""
    found = set()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            connections = process.net_connections("tcp")
            found |= {each.laddr for each in connections if each.status == psutil.CONN_LISTEN}
    return found


def tree(user: User) -> list[psutil.Process]:
    """The agent and all that descends from it."""
    agent = psutil.Process(int(user.cluster.cluster().job))
    return [agent, *agent.children(recursive=True)]
