"""Stores that cannot be written, or that refuse a value, and where a store keeps its files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import INVALID_PARAMETER_VALUE, MlflowException
from mlflow.store.entities import PagedList
from sqlalchemy import create_engine

from raysuite.files import sqlite_uri
from raysuite.records import Results
from raysuite.track import prepare, sync
from raysuite.track.entries import Point
from raysuite.track.loader_run import log_loaders
from raysuite.track.model_registry import Network, _default_store, register
from raysuite.track.store import (
    VIEW,
    Store,
    _artifacts,
    artifacts_folder,
    prepare_store,
    runs_page,
    tracking_address,
)
from tests.fake_loading import fake_bench


@pytest.mark.parametrize("file", ["missing/mlflow.db", "/proc/mlflow.db", "a_folder"])
def test_a_store_that_cannot_be_written(tmp_path: Path, file: str) -> None:
    results = Results(tmp_path)
    results.write_plans([])
    (tmp_path / "a_folder").mkdir()
    summary = sync(results, f"sqlite:///{tmp_path / file}")
    assert not summary.ok
    # not sqlalchemy's OperationalError, which comes after minutes
    assert summary.error.startswith(
        ("FileNotFoundError", "PermissionError", "OSError", "IsADirectoryError")
    )


def _synced(folder: Path, uri: str) -> str:
    results = Results(folder)
    results.write_plans([])
    return str(sync(results, uri))


def _registered(folder: Path, uri: str) -> str:
    network = Network(None, np.zeros(2), np.zeros(2), [])
    return str(register(Results(folder), "run", network, "name", uri, "experiment"))


@pytest.mark.parametrize(
    "write",
    [_synced, _registered, lambda folder, uri: log_loaders(fake_bench({}), folder, uri)],
    ids=["sync", "register", "loaders"],
)
def test_a_store_that_is_refused_is_named_without_its_password(
    tmp_path: Path, write: Callable[[Path, str], str]
) -> None:
    said = write(tmp_path, "ftp://me:hush@host/x")
    assert said.count("ftp://host/x") == 2, "as raysuite and as MLflow name it"
    assert "hush" not in said


@pytest.mark.parametrize("name", ["run#1", "q?x", "a%41b", "a b", "ü", "x@y:z"])
def test_a_store_is_in_the_working_folder_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    uri = tracking_address()
    with create_engine(uri).begin() as opened:
        opened.exec_driver_sql("create table t (x)")
    prepare_store(uri)
    assert [path.name for path in folder.iterdir()] == ["mlflow.db"]
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert artifacts_folder(uri) == folder / "mlartifacts"
    for experiment in ("..", ".", "/", "a/../../b", "x"):
        place = Path(url2pathname(urlsplit(_artifacts(uri, experiment) or "").path))
        assert place.resolve().parent == folder / "mlartifacts"


@pytest.mark.parametrize("uri", ["postgresql://me@host/mlflow", "http://host:5000", "file:///a"])
def test_a_store_that_is_no_file_of_sqlite_chooses_its_own_place_of_artifacts(uri: str) -> None:
    assert _artifacts(uri, "x") is None
    prepare_store(uri)


def test_a_database_whose_making_was_interrupted_is_made_by_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*given: object) -> None:
        raise KeyboardInterrupt

    uri = sqlite_uri(tmp_path / "mlflow.db")
    with monkeypatch.context() as patched:
        patched.setattr("mlflow.store.db.utils._upgrade_db", ended)
        with pytest.raises(KeyboardInterrupt):
            prepare(uri)
    assert [*tmp_path.iterdir()] == []
    prepare(uri)
    assert [each.name for each in tmp_path.iterdir()] == ["mlflow.db"]
    prepare_store(uri)
    assert [each.name for each in Store(uri, "x").client.search_experiments()] == ["x", "Default"]


class Picky(MlflowClient):
    """Refuses requests with certain keys, as a server of another version may."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def log_batch(self, run_id: str, **kinds: list[Any]) -> None:
        for kind, entries in kinds.items():  # MLflow's limits of a request
            assert len(entries) <= (1000 if kind == "metrics" else 100)
        keys = [each.key for entries in kinds.values() for each in entries]
        if "bad" in keys or "worse" in keys:
            raise MlflowException("no such key", INVALID_PARAMETER_VALUE)
        self.taken += keys


def test_a_key_that_is_refused_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    store = object.__new__(Store)
    store.client, store.refused = Picky(), []
    keys = ["a", "bad", *(f"m{number}" for number in range(1500)), "worse", "z"]
    params = {"bad": "1", **{f"p{number}": "2" for number in range(150)}}
    tags = {f"t{number}": "3" for number in range(150)}
    store.log("run", [Point(key, 1.0, 0, 0) for key in keys], params, tags)
    taken = [key for key in (*params, *keys) if key not in ("bad", "worse")]
    assert store.client.taken == [*taken, *tags]
    assert [why.partition(":")[0] for why in store.refused] == [
        "param 'bad'",
        "metric 'bad'",
        "metric 'worse'",
    ]


class Paged(MlflowClient):
    """Has three runs, on pages of two."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []

    def search_runs(self, *given: Any, page_token: str | None = None, **_: Any) -> PagedList[Any]:
        assert page_token not in self.asked, "it would never end"
        self.asked.append(page_token)
        runs, at = ["oldest", "older", "newest"], int(page_token or 0)
        return PagedList(runs[at : at + 2], "2" if at == 0 else None)


def test_runs_of_all_pages_are_found() -> None:
    store = object.__new__(Store)
    store.client, store.experiment_id = Paged(), "1"
    assert [*map(str, store.runs_of("id"))] == ["oldest", "older", "newest"]


@pytest.mark.parametrize("before", [None, "http://host"])
def test_the_default_store_is_another_one_only_within_the_context(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if before:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", before)
    with _default_store("sqlite:///a"):
        assert tracking_address() == "sqlite:///a"
    assert os.environ.get("MLFLOW_TRACKING_URI") == before


def test_the_start_page_is_the_newest_results_folder_of_the_experiment_that_changed_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    store = Store(uri, "x")
    store.client.rename_experiment(store.experiment_id, "later than the default one")
    page = f"#/experiments/{store.experiment_id}/runs?workflowType=machine_learning"
    assert runs_page(uri) == page
    for begin, name in ((2000, "newer"), (1000, "older")):
        store.create(name, begin, {"raysuite.results": name})
        store.client.set_experiment_tag(store.experiment_id, VIEW + name, "{}")
    assert runs_page(uri) == f"{page}&viewStateShareKey=newer"
    store.create("without a view", 3000, {"raysuite.results": "newest"})
    assert runs_page(uri) == page
