"""Write journals into MLflow, any number of times: runs that are up to date are not rewritten."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from raysuite.errors import RaysuiteError
from raysuite.records import Results
from raysuite.track.credentials import FOLDER_VARIABLE, read_told
from raysuite.track.results_folder import experiment_name, locked
from raysuite.track.store import Store, prepare_store, quiet, tracking_address, without_password
from raysuite.track.upload import ParentStatus, Upload

# A cluster is up before its MLflow server answers, so the server's first client waits.

LONGEST_S = 120.0
_LOOK_EACH_S = 0.5


def wait_while_starting(address: str, longest_s: float = LONGEST_S) -> None:
    """Wait while the server at `address` is still starting, according to head.json in the folder
    $RAYSUITE_CLUSTER.

    Returns at once for any other server, and after `longest_s` seconds at the latest.
    """
    folder = os.environ.get(FOLDER_VARIABLE, "")
    deadline = time.monotonic() + longest_s
    while _is_starting(folder, address) and time.monotonic() < deadline:
        time.sleep(_LOOK_EACH_S)


def _is_starting(folder: str, address: str) -> bool:
    try:
        said = read_told(folder, "head.json")
    except (OSError, ValueError):
        return False
    urls = {said.get(key, "").rstrip("/") for key in ("mlflow", "mlflow_inside")}
    return address.rstrip("/") in urls and not said.get("mlflow_answers", True)


@dataclass(frozen=True)
class SyncSummary:
    address: str
    """The tracking store, without any password."""
    experiment: str
    written: int = 0
    """Number of runs that were written because they were new or had new data."""
    unchanged: int = 0
    """Number of runs that were up to date, or have nothing to write yet."""
    error: str = ""
    """Why the sync stopped, or which values MLflow refused; empty if all went well."""
    page: str = ""
    """The page with the table of the runs, relative to MLflow's address."""

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def shown(self) -> str:
        """The URL of the table of runs; without a server, how to see the table; "" if there is no
        table."""
        if not (self.ok and self.page):
            return ""
        if self.address.startswith(("http://", "https://")):
            return f"{self.address.rstrip('/')}/{self.page}"
        other = self.address != without_password(tracking_address())
        store = f"MLFLOW_TRACKING_URI={self.address} " if other else ""
        return f"`{store}raysuite ui` opens the table of these runs"

    def __str__(self) -> str:
        if self.ok:
            done = f"{self.written} runs written to MLflow at {self.address}"
            done += f", experiment {self.experiment!r}; {self.unchanged} were up to date"
            return f"{done}\n{self.shown}" if self.shown else done
        return (
            f"MLflow at {self.address} could not be written: {self.error}\n"
            "Nothing is lost: the journals hold every record; to write them later, call "
            "`raysuite sync`."
        )


def sync(
    results: Results,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    status: ParentStatus | None = None,
) -> SyncSummary:
    """Replay the journals of a results folder into MLflow.

    The folder becomes a parent run, and each journal a run nested under it. `sync` may be called at
    any time, any number of times, after a crash, and by several processes at once. The store is
    `tracking_uri`, else MLFLOW_TRACKING_URI, else `mlflow.db` in the working folder; the experiment
    is the spec's name unless another is given. `status` is the status of the parent run:
    RUNNING while further nested runs may begin, KILLED after a stop; by default it follows from
    the statuses of the nested runs.

    If the store is unreachable or broken, or the experiment was deleted, nothing is raised: the
    summary has the reason.
    """
    uri = tracking_address(tracking_uri)
    name = experiment or experiment_name(results)
    shown = without_password(uri)
    written, unchanged, page = 0, 0, ""
    try:
        prepare_store(uri)
        with quiet(), locked(results.folder):
            upload = Upload(results, Store(uri, name))
            upload.parent()
            for plan in results.plans():
                if upload.write_run(plan["run_id"]):
                    written += 1
                else:
                    unchanged += 1
            upload.write_parent(status)
            page = upload.page()
    except Exception as error:  # a store may raise anything, but training must continue
        return SyncSummary(shown, name, written, unchanged, one_line(error))
    refused = upload.store.refused
    why = f"{len(refused)} values were refused, such as {refused[0]}" if refused else ""
    return SyncSummary(shown, name, written, unchanged, without_password(why), page)


def prepare(tracking_uri: str | None = None) -> None:
    """Open the store once. Called in a thread before the first run, because creating a database
    takes seconds.

    Waits for a cluster's server that is still starting. Raises nothing: `sync` reports errors of
    the store.
    """
    try:
        with quiet():
            from mlflow import MlflowClient

            address = tracking_address(tracking_uri)
            prepare_store(address)
            wait_while_starting(address)
            MlflowClient(address).search_experiments(max_results=1)
    except Exception:  # `sync` reports it
        return


def one_line(error: Exception) -> str:
    """The kind of an error and the first line of its message, without passwords."""
    kind = "" if isinstance(error, RaysuiteError) else f"{type(error).__name__}: "
    first = next(iter(str(error).splitlines()), "")
    return without_password(f"{kind}{first}")[:500]
