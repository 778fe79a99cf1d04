"""Workers forked from a server: equal to new processes, or started as new processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raysuite
from raysuite.cluster import worker_fork
from raysuite.cluster.process import ProcessTree
from raysuite.orchestrate.ray_cluster import EARLY
from tests.waiting import until

PROGRAM = """
import json, os, random, signal, sys
numpy, torch, ray = map(sys.modules.get, ("numpy", "torch", "ray"))
print(json.dumps({
    "argv": sys.argv,
    "main": __name__,
    "file": __file__,
    "path": sys.path[0],
    "folder": os.getcwd(),
    "environ": dict(os.environ),
    "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
    "child": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
    "read": sys.stdin.read(),
    "leads": os.getpgrp() == os.getpid(),
    "parent": os.getppid(),
    "drawn": [
        random.random(),
        numpy and numpy.random.random(),
        torch and torch.rand(1).item(),
        ray and ray.WorkerID.from_random().hex(),
    ],
}))
print("to stderr", file=sys.stderr, flush=True)
sys.exit(len(sys.argv) - 1)
"""
RAYLET = {"RAY_RAYLET_PID": str(os.getpid())}
ALIKE = ("argv", "main", "file", "path", "folder", "environ", "mask", "child", "leads", "read")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


class Server(ProcessTree):
    def __init__(self, folder: Path, early: str = "numpy", late: str = "json", **added: str):
        self.environment = {**os.environ, **RAYLET, worker_fork.SOCKET: str(folder / "s")}
        own = [worker_fork.__file__, "--serve", str(folder / "s"), raysuite.__file__, early, late]
        super().__init__([sys.executable, *own], env=self.environment | added)
        until((folder / "s").exists, 20.0)

    def __exit__(self, *error: Any) -> None:
        self.terminate()
        super().__exit__(*error)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as process:
        yield process


def started(program: Path, file: str, environment: dict[str, str], *words: str) -> dict[str, Any]:
    """What the program prints, run by Python from `file`, with SIGTERM blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        ended = subprocess.run(
            [sys.executable, file, *words],
            env=environment | {worker_fork.PROGRAM: str(program)},
            input="input",
            capture_output=True,
            text=True,
            cwd=program.parent,
            process_group=0,
            timeout=30,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    assert ended.stderr.startswith("to stderr\n")  # Triton adds what it leaks
    return dict(json.loads(ended.stdout))


def client(program: Path, environment: dict[str, str], *words: str) -> dict[str, Any]:
    return started(program, worker_fork.__file__, environment, *words)


def test_a_fork_equals_a_new_process(program: Path, server: Server) -> None:
    of_ray = server.environment | {"RAY_JOB_ID": "01000000"}
    new = started(program, str(program), of_ray, "--one", "two words")
    fork = client(program, of_ray, "--one", "two words")
    assert {name: fork[name] for name in ALIKE} == {name: new[name] for name in ALIKE}
    assert fork["parent"] == server.pid


def test_forks_draw_different_random_numbers_and_ids(program: Path, tmp_path: Path) -> None:
    with Server(tmp_path, EARLY, "ray") as server:
        first, second = (client(program, server.environment)["drawn"] for _ in range(2))
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_a_client_with_another_environment_is_a_process_of_its_own(
    program: Path, server: Server
) -> None:
    first = client(program, server.environment | {"RAY_JOB_ID": "01000000"})
    for added in (
        {"RAY_JOB_ID": "02000000"},
        {"RAY_JOB_ID": "01000000", "PYTHONPATH": "/other"},
        {"RAY_JOB_ID": "01000000", "RAY_RAYLET_PID": "1"},  # started by another process
    ):
        own = client(program, server.environment | added)
        assert (own["parent"], own["environ"] | added) == (os.getpid(), own["environ"])
    assert first["parent"] == server.pid


@pytest.mark.parametrize(
    ("early", "late", "added"),
    [
        pytest.param("thread", "json", {}, id="a module starts a thread"),
        pytest.param("json", "thread", {}, id="a later module starts a thread"),
        pytest.param("no_such_module", "json", {}, id="a module cannot be imported"),
        pytest.param("json", "json", {"SETTING": "server's"}, id="environment of the server"),
    ],
)
def test_a_server_that_is_not_equal_to_a_new_process_makes_no_worker(
    program: Path, tmp_path: Path, early: str, late: str, added: dict[str, str]
) -> None:
    text = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    (tmp_path / "thread.py").write_text(text)
    path = {"PYTHONPATH": str(tmp_path)}
    with Server(tmp_path, early, late, **path, **added) as process:
        assert client(program, process.environment | path)["parent"] == os.getpid()
        assert process.wait(20.0) == 1


def test_the_client_of_a_fork_that_crashes_becomes_the_worker(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\nos.getppid() == int(sys.argv[1]) and os.abort()\n" + PROGRAM
    )
    with Server(tmp_path) as process:
        for _ in range(2):
            own = client(program, process.environment, str(process.pid))
            assert own["parent"] == os.getpid()
        assert process.wait(20.0) == 1


def test_a_server_of_another_raysuite_makes_no_worker(program: Path, tmp_path: Path) -> None:
    words = ["--serve", str(tmp_path / "s"), "/other/raysuite/__init__.py", "json", "json"]
    ended = subprocess.run([sys.executable, worker_fork.__file__, *words], capture_output=True)
    assert (ended.returncode, b"/other/" in ended.stderr) == (1, True)
    environment = {**os.environ, **RAYLET, worker_fork.SOCKET: str(tmp_path / "s")}
    assert client(program, environment)["parent"] == os.getpid()
