"""The MLflow server of a cluster keeps its figures in a site's PostgreSQL."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from raysuite.cluster import private
from raysuite.cluster.agent.mlflow import MlflowServer
from raysuite.cluster.folder import prepare
from raysuite.cluster.ports import free_port
from raysuite.cluster.state_files import Cluster, Head
from raysuite.cluster.variables import variables
from raysuite.spec.site import LocalSite, MlflowOptions
from tests.require import postgres_programs, require
from tests.secrets import files_with
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.thorough, pytest.mark.timeout(900)]

WRITTEN = """
import mlflow
client = mlflow.MlflowClient()
run = client.create_run(client.create_experiment("kept")).info.run_id
client.log_metric(run, "loss", 0.25, step=3)
print([(each.step, each.value) for each in client.get_metric_history(run, "loss")])
"""
ASKED = "select step, value from metrics where key = 'loss'"


class Postgres:
    """A PostgreSQL on loopback that asks for a password; it does not run as root."""

    def __init__(self, folder: Path) -> None:
        programs = postgres_programs()
        assert programs is not None
        self._programs, self._folder = programs, folder
        self._user = "nobody" if os.geteuid() == 0 else None
        self.port, self.password = free_port(), private.new_token()
        private.create(folder / "password", self.password)
        if self._user:
            entry = pwd.getpwnam(self._user)
            for path in (folder, folder / "password"):
                os.chown(path, entry.pw_uid, entry.pw_gid)
        words = ("-A", "scram-sha-256", "-U", "me", "--pwfile=password", "--no-sync")
        self._run("initdb", "-D", "data", *words)
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories=''"
        self._run("pg_ctl", "-D", "data", "-o", options, "-l", "log", "-t", "300", "start")

    @property
    def url(self) -> str:
        return f"postgresql://me:{self.password}@127.0.0.1:{self.port}/postgres"

    def ask(self, question: str) -> str:
        words = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "me", "-At", "-c", question)
        return self._run("psql", *words, "postgres", PGPASSWORD=self.password)

    def end(self) -> None:
        self._run("pg_ctl", "-D", "data", "-m", "immediate", "-t", "300", "stop")

    def _run(self, name: str, *words: str, **settings: str) -> str:
        with tempfile.TemporaryFile("w+") as out:  # no pipe: the server would hold it open
            done = subprocess.run(
                [str(self._programs / name), *words],
                cwd=self._folder,
                env={**os.environ, **settings},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                text=True,
                user=self._user,
                check=False,
            )
            out.seek(0)
            said = out.read()
        assert done.returncode == 0, said
        return said.strip()


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    require("postgres")
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # where `nobody` may go
    made = None
    try:
        made = Postgres(folder)
        yield made
    finally:
        if made:
            made.end()
        shutil.rmtree(folder)


def test_what_a_client_writes_is_in_the_sites_database(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path / "home"))
    file = tmp_path / "url"
    private.create(file, postgres.url + "\n")
    options = MlflowOptions(backend="postgresql", url_file=str(file))
    site = LocalSite(name="local", mlflow=options)
    folder = prepare(Cluster(name="mine", site=site, nodes=1, created=1.0, working_folder="/"))
    temp = private.make_folder(tmp_path / "node")
    server = MlflowServer(folder, options, "127.0.0.1", free_port(), temp)
    folder.write(Head(host="n", gcs="127.0.0.1:1", dashboard="", mlflow=server.url))
    log = tmp_path / "log"
    with log.open("wb") as said:
        running = subprocess.Popen(
            server.words(), env=server.prepare(os.environ), stdout=said, stderr=said
        )
    try:
        until(lambda: server.answers(running.pid) or running.poll() is not None, 300)
        assert running.poll() is None, log.read_text()
        settings = variables(folder, "127.0.0.1", server.url)
        words = [sys.executable, "-W", "ignore", "-c", WRITTEN]
        out = subprocess.check_output(words, env={**os.environ, **settings}, text=True)
        assert out.splitlines()[-1] == "[(3, 0.25)]"
        assert postgres.ask(ASKED) == "3|0.25"
        server.save()
        assert not (folder.mlflow / "mlflow.db").exists()
        assert files_with(postgres.password, tmp_path) == {file}
    finally:
        running.terminate()
        running.wait(60)
