"""Jobs on a local cluster, and the secrets of that cluster."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.workplace import Workplace
from tests.marks import SLOW_MARKS
from tests.secrets import files_with, others_may_read, processes_with
from tests.waiting import until

pytestmark = [*SLOW_MARKS, pytest.mark.thorough, pytest.mark.timeout(900)]

WORDS = ["$(id)", "`id`", "a  b", "it's", '"', "\\", "*", "ünï", ";true", "line\nbreak"]
ECHO = "import json, os, sys; print(json.dumps([os.getcwd(), *sys.argv[1:]])); sys.exit(75)"
ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"
STORE = """
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
print(store.port, flush=True)
import time; time.sleep(600)
"""
MLFLOW = """
import pathlib, mlflow
client = mlflow.MlflowClient()
run = client.create_run(client.create_experiment("x")).info.run_id
pathlib.Path("note").write_text("kept")
client.log_artifact(run, "note")
print(mlflow.artifacts.load_text(client.get_run(run).info.artifact_uri + "/note"))
"""


@pytest.fixture(scope="module")
def variables(workplace: Workplace) -> Iterator[dict[str, str]]:
    """What `raysuite cluster status --env` says of a cluster on this machine."""
    home = {"RAYSUITE_HOME": str(workplace.folder / "home")}
    try:
        workplace.run("raysuite", "cluster", "up", **home)
        said = workplace.run("raysuite", "cluster", "status", "--env", "--json", **home).stdout
        yield {**home, **json.loads(said)}
    finally:
        workplace.run("raysuite", "cluster", "down", "--all", **home)


def _submit(workplace: Workplace, code: int, variables: dict[str, str], *words: str) -> str:
    done = workplace.run("raysuite", "job", "submit", "--", *words, code=code, **variables)
    assert "Traceback" not in done.stderr
    return done.stdout


def test_words_arrive_as_they_are_and_the_code_comes_back(
    workplace: Workplace, variables: dict[str, str]
) -> None:
    said = _submit(workplace, 75, variables, "python", "-c", ECHO, *WORDS)
    (line,) = [line for line in said.splitlines() if line.startswith("[")]
    assert json.loads(line) == [str(workplace.folder), *WORDS]


def test_a_job_that_is_left_alone_goes_on_until_it_is_cancelled(
    workplace: Workplace, variables: dict[str, str]
) -> None:
    (workplace.folder / "store.py").write_text(STORE, "utf-8")
    words = ["raysuite", "job", "submit", "--", "python", "store.py"]
    command = workplace.start(*words, **variables)
    until(lambda: re.search(r"^\d+$", command.stdout, re.M) is not None, 240)
    port = int(re.findall(r"^\d+$", command.stdout, re.M)[0])
    command.process.send_signal(signal.SIGINT)
    assert command.wait() == 130
    (name,) = re.findall(r"raysuite job cancel ([\w-]+)", command.stderr)

    status = workplace.run("raysuite", "cluster", "status", "--json", **variables).stdout
    assert {"id": name, "status": "RUNNING"} in json.loads(status)["jobs"]
    (store,) = [each for each in _listening() if each.laddr.port == port]
    assert store.laddr.ip.removeprefix("::ffff:") == "127.0.0.1"  # of itself it takes all
    assert (
        f"job {name} was cancelled"
        in workplace.run("raysuite", "job", "cancel", name, **variables).stdout
    )
    until(lambda: all(each.laddr.port != port for each in _listening()), 60)


def test_mlflow_wants_the_password_and_gets_it_from_the_file(
    workplace: Workplace, variables: dict[str, str]
) -> None:
    words = [sys.executable, "-c", MLFLOW]
    environment = {**os.environ, **variables, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    settings = {"capture_output": True, "text": True, "cwd": workplace.folder, "check": False}
    for wrong in (
        {"MLFLOW_TRACKING_AUTH": ""},
        {"MLFLOW_TRACKING_AUTH": "", "MLFLOW_TRACKING_USERNAME": "raysuite"}
        | {"MLFLOW_TRACKING_PASSWORD": "guessed"},
    ):
        refused = subprocess.run(words, env={**environment, **wrong}, **settings)
        assert refused.returncode != 0
        assert "401" in refused.stderr
    done = subprocess.run(words, env=environment, **settings)
    assert done.stdout.splitlines()[-1:] == ["kept"], done.stderr


def test_secrets_are_in_their_files_alone(workplace: Workplace, variables: dict[str, str]) -> None:
    folder = Path(variables["RAYSUITE_CLUSTER"])
    token = (folder / "token").read_text("utf-8")
    password = json.loads((folder / "mlflow.json").read_text("utf-8"))["password"]
    environment = _submit(workplace, 0, variables, "python", "-c", ENVIRONMENT)
    assert token not in environment
    assert password not in environment
    for secret, files in ((token, {"token"}), (password, {"mlflow.json"})):
        assert processes_with(secret) == []
        assert files_with(secret, workplace.folder) == {folder / name for name in files}
    temporary = [
        Path(json.loads(file.read_text("utf-8"))["temp"]) for file in folder.glob("nodes/*.json")
    ]
    assert temporary
    assert files_with(token, *temporary) == set()
    assert {path.name for path in files_with(password, *temporary)} == {"auth.ini"}
    assert others_may_read(folder, *temporary) == []


def test_nothing_listens_beyond_loopback(variables: dict[str, str]) -> None:
    addresses = {each.laddr.ip.removeprefix("::ffff:") for each in _listening(variables)}
    assert addresses == {"127.0.0.1"}


def _listening(variables: dict[str, str] | None = None) -> list[psutil._common.sconn]:
    """Sockets that listen: of all processes, or of those that belong to the cluster."""
    found = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    if variables is None:
        return found
    mark = f"RAYSUITE_CLUSTER={variables['RAYSUITE_CLUSTER']}".encode()
    return [each for each in found if each.pid and mark in _environment(each.pid)]


def _environment(pid: int) -> list[bytes]:
    """Of a process; empty where it has ended meanwhile."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []
