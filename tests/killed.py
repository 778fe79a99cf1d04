"""What an agent leaves on its host when it is killed."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from raysuite.cluster.agent.mlflow import ANSWERED
from raysuite.cluster.agent.node import node_variables
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.state_files import NONCE, Node


def kill_agent(folder: ClusterFolder, temp: Path, **values: object) -> None:
    """An agent of the host `here` that has ended, with the database of a server that answered."""
    (temp / "mlflow").mkdir(parents=True)
    write(temp / "mlflow" / "mlflow.db", "newer")
    (temp / "mlflow" / ANSWERED).touch()
    ended = subprocess.Popen(["true"])
    ended.wait()
    (temp / NONCE).write_text("own")
    said = {"host": "here", "state": "joined", "pid": ended.pid, "temp": str(temp), "nonce": "own"}
    folder.write(Node.model_validate({**said, **values}))


@contextmanager
def stray(
    folder: ClusterFolder, temp: Path, variables: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of that node, with the environment that its agent gives."""
    words = ["bash", "-c", "echo; read", f"{temp}/r/stray"]
    variables = variables or node_variables(folder, "127.0.0.1", "", temp, {})
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=variables, stdin=pipe, stdout=pipe) as process:
        assert process.stdout
        process.stdout.read(1)  # /proc shows its words only some time after Popen has returned
        yield process
        process.kill()


def write(database: Path, word: str) -> None:
    """An SQLite database that says `word`."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("create table said (word)")
        connection.execute("insert into said values (?)", (word,))


def said(database: Path) -> str:
    """What `write` wrote."""
    with closing(sqlite3.connect(database)) as connection:
        return str(connection.execute("select word from said").fetchone()[0])
