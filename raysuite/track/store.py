"""The operations on MLflow's tracking store that raysuite needs, without MLflow's log messages."""

from __future__ import annotations

import logging
import os
import re
import secrets
import tempfile
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysuite.errors import UserError
from raysuite.files import sqlite_uri
from raysuite.track.entries import Point, mlflow_key

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run

# MLflow 3 (mlflow/utils/validation.py): most metrics, params or tags of one request.
MOST_METRICS, MOST_PARAMS = 1000, 100

_DEFAULTS = {
    # MLflow sends usage telemetry by default; a benchmark on a closed machine must not.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # MLflow would print addresses to stdout, between the lines of raysuite.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # By default, MLflow repeats requests to a dead server for minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}

_LEVELS = {
    "mlflow": logging.WARNING,
    "alembic": logging.WARNING,
    # hide warnings that pip is missing: an environment made by uv has no pip
    "mlflow.utils": logging.ERROR,
}


def tracking_address(given: str | None = None) -> str:
    """The store's URI: as given, else MLFLOW_TRACKING_URI, else mlflow.db in the working folder."""
    uri = given or os.environ.get("MLFLOW_TRACKING_URI")
    return uri or sqlite_uri(Path("mlflow.db"))


def artifacts_folder(uri: str) -> Path:
    """The folder `mlartifacts`: next to the file of an SQLite store, else in the working folder."""
    return (_sqlite_file(uri) or Path("mlflow.db")).absolute().with_name("mlartifacts")


def _sqlite_file(uri: str) -> Path | None:
    """The file of an SQLite store; None for any other store."""
    from sqlalchemy.engine import make_url

    database = make_url(uri).database if uri.startswith("sqlite") else None
    return Path(database).absolute() if database else None


def prepare_store(uri: str) -> None:
    """Make the database of an SQLite store, if there is none.

    The file appears with all its tables at once. MLflow makes them one by one, and cannot use a
    database in which some are missing. Raises OSError if the store or its folder cannot be written:
    MLflow would otherwise try to migrate the store's tables for minutes.
    """
    file = _sqlite_file(uri)
    if file is None:
        return
    with tempfile.TemporaryFile(dir=file.parent):  # a test write: modes do not restrict root
        pass
    if file.exists():
        with file.open("r+b"):
            pass
        return
    with quiet():
        from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        engine = SqlAlchemyStore("sqlite://", DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH).engine
        connection: Any = engine.raw_connection().driver_connection
        content = connection.serialize()
        engine.dispose()
    part = file.with_name(f".{file.name}.{secrets.token_hex(8)}.part")
    try:
        part.write_bytes(content)
        # does nothing if another process was faster, or on a file system without links
        with suppress(OSError):
            os.link(part, file)
    finally:
        part.unlink(missing_ok=True)


def without_password(uri: str) -> str:
    """The URI for display, without user and password."""
    return re.sub(r"(?<=://)[^/\s]*@", "", uri)


VIEW = "mlflow.sharedViewState."
"""Prefix of an experiment's tags for views of its runs: a view is the value of the tag VIEW + KEY,
and a link to the view contains only KEY."""


def runs_page(uri: str) -> str:
    """The link, relative to MLflow's address, to the page of the experiment that changed last. The
    page shows the table of the newest results folder, if there is one.

    By default, MLflow 3 opens an experiment on an overview of language models, which is empty here.
    """
    with quiet():
        from mlflow import MlflowClient

        client = MlflowClient(uri)
        newest = ["last_update_time DESC"]
        found = client.search_experiments(max_results=1, order_by=newest)
        if not found:
            return experiments_page()
        views = {key.removeprefix(VIEW) for key in found[0].tags if key.startswith(VIEW)}
        latest = client.search_runs(
            [found[0].experiment_id],
            "tags.`raysuite.results` LIKE '%'",
            max_results=1,
            order_by=["attributes.start_time DESC"],
        )
    ids = [run.data.tags.get("raysuite.results", "") for run in latest]
    return view_page(found[0].experiment_id, next((each for each in ids if each in views), ""))


def experiments_page() -> str:
    """The page of all experiments, relative to MLflow's address."""
    return f"#/experiments?{_TRAINING}"


def view_page(experiment_id: str, view: str) -> str:
    """The page of an experiment's runs, relative to MLflow's address, in the view with the key
    `view`, or in MLflow's default view if `view` is empty."""
    shown = f"&viewStateShareKey={view}" if view else ""
    return f"#/experiments/{experiment_id}/runs?{_TRAINING}{shown}"


_TRAINING = "workflowType=machine_learning"


class Store:
    """One experiment in a tracking store. Methods raise exceptions of MLflow and its libraries."""

    def __init__(self, uri: str, experiment: str) -> None:
        with quiet():
            from mlflow import MlflowClient

            self.client: MlflowClient = MlflowClient(uri)
            self.experiment_id = _experiment(self.client, uri, experiment)
        self.refused: list[str] = []
        """Errors for values that MLflow refused; it accepted the other values of these requests."""

    def runs_of(self, results_id: str) -> list[Run]:
        """Every MLflow run of a results folder, the oldest first."""
        found: list[Run] = []
        token = None
        while True:
            page = self.client.search_runs(
                [self.experiment_id],
                filter_string=f"tags.`raysuite.results` = '{results_id}'",
                order_by=["attributes.start_time ASC"],
                page_token=token,
            )
            found += page
            token = page.token
            if not token:
                return found

    def create(self, name: str, begin: int | None, tags: Mapping[str, str]) -> Run:
        """Create a run together with its tags, so that it can be found after a crash."""
        return self.client.create_run(
            self.experiment_id, start_time=begin, tags=dict(tags), run_name=name
        )

    def log(
        self,
        run_id: str,
        points: Sequence[Point] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Log metrics, params and tags, in as few requests as MLflow allows."""
        from mlflow.entities import Metric, Param, RunTag

        metrics = [Metric(p.key, p.value, p.timestamp, p.step) for p in points]
        named = [Param(key, value) for key, value in (params or {}).items()]
        marks = [RunTag(key, value) for key, value in (tags or {}).items()]
        for kind, entries, most in (
            ("params", named, MOST_PARAMS),
            ("metrics", metrics, MOST_METRICS),
            ("tags", marks, MOST_PARAMS),  # last, because one tag marks the run as complete
        ):
            for start in range(0, len(entries), most):
                self._send(run_id, kind, entries[start : start + most])

    def _send(self, run_id: str, kind: str, entries: Sequence[Any]) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self.client.log_batch(run_id, **dict[str, Any]({kind: entries}))
        except MlflowException as error:
            if error.error_code != "INVALID_PARAMETER_VALUE":
                raise
            if len(entries) == 1:
                self.refused.append(f"{kind[:-1]} {entries[0].key!r}: {error.message}")
                return
            half = len(entries) // 2
            self._send(run_id, kind, entries[:half])
            self._send(run_id, kind, entries[half:])

    def log_inputs(self, run_id: str, inputs: list[DatasetInput]) -> None:
        """Log the data sets of a run."""
        if not inputs:
            return
        from mlflow.exceptions import MlflowException

        try:
            self.client.log_inputs(run_id, inputs)
        except MlflowException:  # another process added the data set after MLflow's look-up
            self.client.log_inputs(run_id, inputs)

    def remove_others(self, run: Run, pattern: str, names: Container[str]) -> None:
        """Remove the artifacts of a run that match `pattern`, except those in `names`."""
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        there = get_artifact_repository(run.info.artifact_uri, self.client.tracking_uri)
        for file in there.list_artifacts():
            if fnmatch(file.path, pattern) and file.path not in names:
                there.delete_artifacts(file.path)

    def finish(self, run_id: str, status: str, end: int | None) -> None:
        """Set a run's status and, unless it is `RUNNING`, the run's end time in milliseconds."""
        if status == "RUNNING":
            self.client.update_run(run_id, status=status)
        else:
            self.client.set_terminated(run_id, status, end)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide Python warnings of MLflow, and log messages of MLflow and its database libraries below
    the levels in `_LEVELS`."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore", module=r"mlflow(\.|$)")
    import mlflow  # noqa: F401 - its import sets the levels that are changed here

    before = {name: logging.getLogger(name).level for name in _LEVELS}
    for name, level in _LEVELS.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def _experiment(client: MlflowClient, uri: str, name: str) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.create_experiment(
                name,
                artifact_location=_artifacts(uri, name),
                # MLflow 3's pages then open on training runs instead of language-model traces
                tags={"mlflow.experimentKind": "custom_model_development"},
            )
        except MlflowException:
            # another process created the experiment first
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        raise UserError(
            f"MLflow's experiment {name!r} was deleted; restore it with "
            f"`mlflow experiments restore --experiment-id {found.experiment_id}`, "
            "or give another one with --experiment"
        )
    return str(found.experiment_id)


def _artifacts(uri: str, name: str) -> str | None:
    """The URI of an experiment's artifacts for an SQLite store. None for any other store: MLflow
    then chooses the URI."""
    if _sqlite_file(uri) is None:
        return None
    return (artifacts_folder(uri) / mlflow_key(name)).as_uri()
