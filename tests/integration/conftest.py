"""A working folder for `raysuite run`, a Ray cluster that is there already, an MLflow store."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from raysuite.cluster.ports import free_port
from tests.integration.workplace import Workplace
from tests.waiting import until


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    """One for all tests of a file."""
    made = Workplace(tmp_path_factory.mktemp("work"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables that name a Ray cluster of two CPUs. It began in another folder."""
    elsewhere = Workplace(tmp_path_factory.mktemp("elsewhere"))
    port = free_port()
    words = f"start --head --block --port={port} --num-cpus=2 --temp-dir={elsewhere.temporary}"
    words += " --node-ip-address=127.0.0.1 --include-dashboard=false --disable-usage-stats"
    token = {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
    head = elsewhere.start("ray", *words.split(), **token)
    until(lambda: "Ray runtime started" in head.stdout or head.process.poll() is not None, 120)
    assert head.process.poll() is None, head.stderr
    yield {"RAY_ADDRESS": f"127.0.0.1:{port}", **token}
    elsewhere.close()


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow takes seconds to create its tables: once for all tests."""
    from raysuite.track import prepare

    folder = tmp_path_factory.mktemp("store")
    prepare(f"sqlite:///{folder}/mlflow.db")
    return folder / "mlflow.db"
