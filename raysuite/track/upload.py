"""One results folder into one store: a parent run, and a run nested under it for each journal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from raysuite import __version__
from raysuite.records import Results, RunFigures
from raysuite.records.names import Plan
from raysuite.records.sweep import TrialFigures, trial_figures
from raysuite.records.system import system_files
from raysuite.track.entries import (
    MOST_EXPERIMENT_TAG,
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
from raysuite.track.inputs import dataset_inputs
from raysuite.track.store import Store
from raysuite.track.sweep import (
    BEST,
    TRIAL,
    VIEW,
    best_runs,
    ended_by,
    sweep_params,
    sweep_points,
    sweep_tags,
    trial_params,
    trial_points,
    trial_tags,
    trial_title,
    trials_view,
)
from raysuite.track.system import system_points

if TYPE_CHECKING:
    from mlflow.entities import Run

FILES = (
    *("spec.yaml", "search.json", "plan.json", "report.html", "provenance.json", "against.json"),
    *(f"rows.{suffix}" for suffix in ("csv", "md", "tex", "json")),
)
PLOT_SUFFIXES = (".html", ".js", ".png", ".svg")
"""Pages with the script that they share, and pictures, which MLflow shows by itself."""
REPORT = "raysuite.report"
"""Tag of the parent run: where its report lies, below the address of MLflow's pages."""
MARK = "raysuite.synced"
"""Tag set after everything else of a run: digest of what was written. A crash leaves it unset."""

ParentStatus = Literal["RUNNING", "KILLED"]
"""Of a folder whose runs go on, or were stopped, whether or not those that are known ended."""


class Upload:
    """Writes a results folder into a store. Call it under the folder's lock."""

    def __init__(self, results: Results, store: Store) -> None:
        self.results = results
        self.store = store
        self.id = results_id(results.folder)
        self.search = results.search()
        self._plans: dict[str, Plan] = {}
        self._read: dict[str, tuple[str, TrialFigures]] = {}
        self.known: dict[str, Run] = {}
        for run in store.runs_of(self.id):  # the oldest counts, should there ever be two
            self.known.setdefault(run.data.tags.get("raysuite.run_id", ""), run)

    def figures(self, run_id: str) -> RunFigures:
        """The figures of a run as its journal stands now."""
        return self._trial(run_id).figures

    def _trial(self, run_id: str) -> TrialFigures:
        """The same, and what it is as a trial of a sweep."""
        mark = digest(self.results.journal_file(run_id))
        known, found = self._read.get(run_id, ("", None))
        if found is None or known != mark:
            if run_id not in self._plans:  # plans are added while a sweep goes on
                self._plans = {plan["run_id"]: plan for plan in self.results.plans()}
            found = trial_figures(self._plans[run_id], self.results.records(run_id))
            self._read[run_id] = (mark, found)
        return found

    def parent(self) -> Run:
        """The results folder's own run, created if need be."""
        if "" not in self.known:
            tags = {
                "raysuite.kind": "sweep" if self.search else "results",
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
            name = title(run)
            if self.search:
                number = int(run.plan["index"])
                name, tags[TRIAL] = trial_title(number), str(number)
            self.known[run.run_id] = self.store.create(name, begin_of(run), tags)
        return self.known[run.run_id]

    def write_run(self, run_id: str) -> bool:
        """Write a run whole; False if there was nothing new. Writing it twice changes nothing."""
        journal = self.results.journal_file(run_id)
        # before reading: what is appended meanwhile is for the next time
        mark = digest(journal, *system_files(journal.parent).values())
        if run_id in self.known and self.known[run_id].data.tags.get(MARK) == mark:
            return False
        trial = self._trial(run_id)
        run = trial.figures
        if run.started is None and run.end is None:
            return False
        child = self.child(run)
        mlflow_id = child.info.run_id
        # epochs of an attempt under way may be trained, and recorded, again after a crash
        points = list(run_points(run)) if run.end or run.stopped else []
        points += system_points(journal.parent)
        params = run_params(run.plan)
        tags = run_tags(run, self.id)
        if self.search:  # its goals first: MLflow's comparisons begin with the first metric
            points = [*trial_points(self.search, trial), *points]
            params |= trial_params(trial.values)
            tags |= trial_tags(trial)
        had = child.data.params  # MLflow refuses a param whose value has changed
        fresh = {key: value for key, value in params.items() if key not in had}
        if not (child.inputs and child.inputs.dataset_inputs):
            self.store.client.log_inputs(mlflow_id, dataset_inputs(run.plan))
        self.store.log(mlflow_id, points, fresh, tags)
        self.store.client.log_artifact(mlflow_id, str(journal))
        last = run.end or run.stopped
        end = milliseconds(last.time) if last else None
        self.store.finish(mlflow_id, mlflow_status(run), end)
        self.store.log(mlflow_id, tags={MARK: mark})
        return True

    def write_parent(self, status: ParentStatus | None = None) -> None:
        """Write what belongs to the whole folder: its files, its plots and how it ended, which its
        runs tell unless `status` does."""
        now = time.time()
        trials = [self._trial(plan["run_id"]) for plan in self.results.plans()]
        if self.search:
            self._remove_replaced(trials)
            known = ended_by(now, trials) if status == "RUNNING" else trials
            self._write_sweep(self.search, known)
        folder = self.results.folder
        files = [folder / name for name in FILES] + sorted(folder.glob("best*.yaml"))
        plots = sorted(
            file for file in (folder / "plots").glob("*.*") if file.suffix in PLOT_SUFFIXES
        )
        parent = self.parent()
        mlflow_id = parent.info.run_id
        mark = digest(*files, *plots)
        if parent.data.tags.get(MARK) != mark:
            for file in files:
                if file.is_file():
                    self.store.client.log_artifact(mlflow_id, str(file))
            for plot in plots:
                self.store.client.log_artifact(mlflow_id, str(plot), "plots")
            if self.search:
                self.store.remove_others(parent, "best*.yaml", {file.name for file in files})
            tags = _links(parent, folder, self._view())
            self.store.log(mlflow_id, tags={**tags, MARK: mark})
        runs = [trial.figures for trial in trials]
        lasts = [run.end or run.stopped for run in runs]
        ends = [milliseconds(last.time) for last in lasts if last]
        decided = self.results.decided()
        whole = decided is None or decided.is_all
        self.store.finish(mlflow_id, status or _overall(runs, whole), max(ends, default=None))

    def _write_sweep(self, search: dict[str, Any], trials: list[TrialFigures]) -> None:
        """What a sweep's own run tells of all trials; the best of them are tagged, no others."""
        parent = self.parent()
        mlflow_id, client = parent.info.run_id, self.store.client
        tags = sweep_tags(search, trials)
        if any(parent.data.tags.get(key) != value for key, value in tags.items()):
            had = parent.data.params
            params = {key: text for key, text in sweep_params(search).items() if key not in had}
            self.store.log(mlflow_id, list(sweep_points(search, trials)), params)
            view = trials_view(search, self.id)
            if len(view) <= MOST_EXPERIMENT_TAG:
                client.set_experiment_tag(self.store.experiment_id, VIEW + self.id, view)
            self.store.log(mlflow_id, tags=tags)  # last: all of it is there then
        winners = best_runs(search, trials)
        for run_id, run in self.known.items():
            if run_id in winners and BEST not in run.data.tags:
                client.set_tag(run.info.run_id, BEST, "true")
            elif run_id not in winners and BEST in run.data.tags:
                client.delete_tag(run.info.run_id, BEST)

    def _remove_replaced(self, trials: list[TrialFigures]) -> None:
        """Delete the runs of trials whose number is another plan's by now: a search for a batch
        that failed was made again, and its plan has another id since it is decided."""
        ids = {str(trial.number): trial.run_id for trial in trials}
        for run_id, run in [*self.known.items()]:
            if ids.get(run.data.tags.get(TRIAL, ""), run_id) != run_id:
                self.store.client.delete_run(run.info.run_id)
                del self.known[run_id]

    def _view(self) -> str:
        """Where MLflow shows a sweep's trials as a table; "" for a suite."""
        if not self.search or len(trials_view(self.search, self.id)) > MOST_EXPERIMENT_TAG:
            return ""
        return f"#/experiments/{self.store.experiment_id}/runs?viewStateShareKey={self.id}"

    def _begin(self) -> int | None:
        """When the first run of the folder began."""
        begins = (begin_of(self.figures(plan["run_id"])) for plan in self.results.plans())
        return min((begin for begin in begins if begin is not None), default=None)


def _overall(runs: list[RunFigures], whole: bool) -> str:
    """What the runs tell of the whole; of a sweep that has not decided all of its trials, none of
    them under way, that it was stopped."""
    states = {mlflow_status(run) for run in runs}
    if not whole and "RUNNING" not in states:
        return "KILLED"
    for state in ("KILLED", "RUNNING"):
        if state in states:
            return state
    return "FINISHED" if "FINISHED" in states else "FAILED"


def _links(parent: Run, folder: Path, view: str) -> dict[str, str]:
    """Where the report lies, and what MLflow shows on the run's page: links to it and to the table
    of trials, and the table of results if it is short enough."""
    report, table = folder / "report.html", folder / "rows.md"
    tags: dict[str, str] = {}
    said = f"[The trials, with what was searched]({view})\n\n" if view else ""
    if report.is_file():
        info = parent.info
        place = f"#/experiments/{info.experiment_id}/runs/{info.run_id}/artifacts/{report.name}"
        tags[REPORT] = place
        said += f"[The report, with its plots]({place})\n\n"
    if table.is_file() and len(text := said + table.read_text("utf-8")) <= MOST_TAG:
        said = text
    return {**tags, "mlflow.note.content": said} if said else tags
