"""One results folder into one store: a parent run, and a run nested under it for each journal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from raysuite import __version__
from raysuite.records import Results, RunFigures, results_figures, run_figures
from raysuite.records.names import Plan
from raysuite.track.entries import (
    MOST_TAG,
    begin_of,
    milliseconds,
    mlflow_status,
    run_params,
    run_points,
    run_tags,
    title,
)
from raysuite.track.folder import digest, results_id
from raysuite.track.store import Store

if TYPE_CHECKING:
    from mlflow.entities import Run

FILES = (
    *("spec.yaml", "plan.json", "report.html", "provenance.json", "against.json"),
    *(f"rows.{suffix}" for suffix in ("csv", "md", "tex", "json")),
)
PLOT_SUFFIXES = (".html", ".js", ".png", ".svg")
"""Pages with the script that they share, and pictures, which MLflow shows by itself."""
REPORT = "raysuite.report"
"""Tag of the parent run: where its report lies, below the address of MLflow's pages."""
MARK = "raysuite.synced"
"""Tag set after everything else of a run: digest of what was written. A crash leaves it unset."""


class Upload:
    """Writes a results folder into a store. Call it under the folder's lock."""

    def __init__(self, results: Results, store: Store) -> None:
        self.results = results
        self.store = store
        self.id = results_id(results.folder)
        self._plans: dict[str, Plan] = {}
        self.known: dict[str, Run] = {}
        for run in store.runs_of(self.id):  # the oldest counts, should there ever be two
            self.known.setdefault(run.data.tags.get("raysuite.run_id", ""), run)

    def figures(self, run_id: str) -> RunFigures:
        """The figures of a run as its journal stands now."""
        if run_id not in self._plans:  # plans are added while a sweep goes on
            self._plans = {plan["run_id"]: plan for plan in self.results.plans()}
        return run_figures(self._plans[run_id], self.results.records(run_id))

    def parent(self) -> Run:
        """The results folder's own run, created if need be."""
        if "" not in self.known:
            tags = {
                "raysuite.kind": "results",
                "raysuite.results": self.id,
                "raysuite.version": __version__,
                "mlflow.source.name": "raysuite",
                "mlflow.source.type": "LOCAL",
            }
            name = self.results.folder.resolve().name
            self.known[""] = self.store.create(name, self._begin(), tags)
        return self.known[""]

    def child(self, run: RunFigures) -> Run:
        """The MLflow run of one run, created if need be, with its params and tags."""
        if run.run_id not in self.known:
            parent = self.parent().info.run_id
            tags = {**run_tags(run, self.id), "mlflow.parentRunId": parent}
            self.known[run.run_id] = self.store.create(title(run), begin_of(run), tags)
        return self.known[run.run_id]

    def write_run(self, run_id: str) -> bool:
        """Write a run whole; False if there was nothing new. Writing it twice changes nothing."""
        journal = self.results.journal_file(run_id)
        mark = digest(journal)  # before reading: what is appended meanwhile is for the next time
        run = self.figures(run_id)
        if run.started is None and run.end is None:
            return False
        child = self.child(run)
        if child.data.tags.get(MARK) == mark:
            return False
        mlflow_id = child.info.run_id
        had = child.data.params  # MLflow refuses a param whose value has changed
        params = {key: value for key, value in run_params(run.plan).items() if key not in had}
        self.store.log(mlflow_id, list(run_points(run)), params, run_tags(run, self.id))
        self.store.client.log_artifact(mlflow_id, str(journal))
        last = run.end or run.stopped
        end = milliseconds(last.time) if last else None
        self.store.finish(mlflow_id, mlflow_status(run), end)
        self.store.log(mlflow_id, tags={MARK: mark})
        return True

    def write_parent(self) -> None:
        """Write what belongs to the whole folder: its files, its plots and how it ended."""
        folder = self.results.folder
        files = [folder / name for name in FILES]
        plots = sorted(
            file for file in (folder / "plots").glob("*.*") if file.suffix in PLOT_SUFFIXES
        )
        runs = results_figures(self.results)
        parent = self.parent()
        mlflow_id = parent.info.run_id
        mark = digest(*files, *plots)
        if parent.data.tags.get(MARK) != mark:
            for file in files:
                if file.is_file():
                    self.store.client.log_artifact(mlflow_id, str(file))
            for plot in plots:
                self.store.client.log_artifact(mlflow_id, str(plot), "plots")
            tags = _links(parent, folder)
            self.store.log(mlflow_id, tags={**tags, MARK: mark})
        lasts = [run.end or run.stopped for run in runs]
        ends = [milliseconds(last.time) for last in lasts if last]
        self.store.finish(mlflow_id, _overall(runs), max(ends, default=None))

    def _begin(self) -> int | None:
        """When the first run of the folder began."""
        begins = (begin_of(run) for run in results_figures(self.results))
        return min((begin for begin in begins if begin is not None), default=None)


def _overall(runs: list[RunFigures]) -> str:
    states = {mlflow_status(run) for run in runs}
    for state in ("KILLED", "RUNNING"):
        if state in states:
            return state
    return "FINISHED" if "FINISHED" in states else "FAILED"


def _links(parent: Run, folder: Path) -> dict[str, str]:
    """Where the report lies, and what MLflow shows on the run's page: a link to it, and the table
    if it is short enough."""
    report, table = folder / "report.html", folder / "rows.md"
    tags: dict[str, str] = {}
    said = ""
    if report.is_file():
        info = parent.info
        place = f"#/experiments/{info.experiment_id}/runs/{info.run_id}/artifacts/{report.name}"
        tags[REPORT] = place
        said = f"[The report, with its plots]({place})\n\n"
    if table.is_file() and len(text := said + table.read_text("utf-8")) <= MOST_TAG:
        said = text
    return {**tags, "mlflow.note.content": said} if said else tags
