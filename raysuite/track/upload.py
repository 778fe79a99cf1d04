"""Write a results folder into a store: a parent run, and a run nested under it for each journal."""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from raysuite.records import Results, Row, RunFigures, make_rows
from raysuite.records.names import Plan, block_name, task_of
from raysuite.records.sweep import (
    TrialFigures,
    best,
    lower_is_better,
    pareto,
    trial_figures,
    wanted_goals,
)
from raysuite.records.system import SystemSample, read_samples, system_files
from raysuite.spec.search import QUALITY, Goal
from raysuite.spec.tasks import TaskFacts
from raysuite.track.entries import (
    MOST_EXPERIMENT_TAG,
    MOST_TAG,
    SOURCE,
    Point,
    begin_of,
    continues,
    final_epochs,
    flatten,
    history_of,
    milliseconds,
    mlflow_key,
    mlflow_status,
    param_values,
    row_points,
    run_params,
    run_points,
    run_tags,
    shared_params,
    title,
)
from raysuite.track.inputs import dataset_inputs
from raysuite.track.results_folder import digest, experiment_name, results_id
from raysuite.track.store import VIEW, Store, view_page

if TYPE_CHECKING:
    from mlflow.entities import Run

# Samples of hosts -> MLflow's system metrics, with the names that MLflow's own monitor uses.

MEGA = 1e6


def system_points(folder: Path) -> Iterator[Point]:
    """The samples of the hosts' load in a run's folder, as points `system/...`; step n is the n-th
    sample of a host.

    With several hosts, the points' names contain the host: `system/HOST/...`.
    """
    files = system_files(folder)
    for host, file in files.items():
        prefix = f"system/{mlflow_key(host)}/" if len(files) > 1 else "system/"
        for step, sample in enumerate(read_samples(file), 1):
            for name, value in _values(sample):
                yield Point(f"{prefix}{name}", value, milliseconds(sample.time), step)


def _values(sample: SystemSample) -> Iterator[tuple[str, float]]:
    yield "cpu_utilization_percentage", 100 * sample.cpu_busy
    yield "system_memory_usage_megabytes", sample.memory_bytes / MEGA
    if sample.memory_total_bytes:
        share = sample.memory_bytes / sample.memory_total_bytes
        yield "system_memory_usage_percentage", 100 * share
    yield "process_memory_usage_megabytes", sample.process_bytes / MEGA
    yield "network_receive_megabytes", sample.received_bytes / MEGA
    yield "network_transmit_megabytes", sample.sent_bytes / MEGA
    for gpu in sample.gpus:
        told = f"gpu_{gpu.index}_"
        if gpu.busy is not None:
            yield f"{told}utilization_percentage", 100 * gpu.busy
        if gpu.memory_bytes is not None:
            yield f"{told}memory_usage_megabytes", gpu.memory_bytes / MEGA
            if gpu.memory_total_bytes:
                share = gpu.memory_bytes / gpu.memory_total_bytes
                yield f"{told}memory_usage_percentage", 100 * share
        if gpu.watts is not None:
            yield f"{told}power_usage_watts", gpu.watts


# A sweep's Records -> the params, tags and points of the sweep itself, as plain data.

BEST = "raysuite.best"
"""Tag of the best trial, or of all trials on the Pareto front; no other trial has it."""

TRIAL = "raysuite.trial"
"""Tag of a trial's run: the number of the trial."""

Search = Mapping[str, Any]
"""The content of search.json, from `Results.search`."""


def _metric(goal: Goal, task: TaskFacts) -> str:
    """The name in MLflow of a goal's metric, without its prefix."""
    if goal in QUALITY:
        return task.primary
    return f"{task.unit}_per_second" if goal == "throughput" else f"{goal}_seconds"


def sweep_params(search: Search) -> dict[str, str]:
    """The params of a sweep: its search section, with each key of the space as `space.KEY`."""
    asked = dict(search["search"])
    space = {f"space.{key}": _told(about) for key, about in asked.pop("space").items()}
    asked.pop("goal", None)
    asked["goals"] = list(wanted_goals(search["search"]))
    return param_values({**dict(flatten(asked, "search.")), **space})


def sweep_tags(search: Search, trials: Sequence[TrialFigures]) -> dict[str, str]:
    """The tags of a sweep: goals, number of ended trials, and numbers of the best trials."""
    winners = sorted(trial.number for trial in trials if trial.run_id in best_runs(search, trials))
    return {
        "raysuite.sweep.goals": ", ".join(wanted_goals(search["search"])),
        "raysuite.sweep.ended": str(sum(trial.figures.end is not None for trial in trials)),
        "raysuite.sweep.best": ", ".join(map(str, winners)),
    }


def best_runs(search: Search, trials: Sequence[TrialFigures]) -> list[str]:
    """Run id of the best trial or, with several goals, of each trial on the Pareto front."""
    goals = wanted_goals(search["search"])
    if len(goals) > 1:
        return [trial.run_id for trial in pareto(trials, goals)]
    winner = best(trials, goals[0])
    return [] if winner is None else [winner.run_id]


def sweep_points(search: Search, trials: Sequence[TrialFigures]) -> Iterator[Point]:
    """The best value of each goal after each ended trial. Step n is the n-th trial that ended
    without a failure. Failed trials do not count, because they may be repeated."""
    ended = [(end.time, each) for each in trials if each.counts and (end := each.figures.end)]
    ended.sort(key=lambda each: (each[0], each[1].number))
    for goal in wanted_goals(search["search"]):
        for count, (elapsed, _) in enumerate(ended, 1):
            winner = best((trial for _, trial in ended[:count]), goal)
            if winner is not None and (value := winner.goals[goal]) is not None:
                name = _metric(goal, winner.figures.task)
                yield Point(f"best/{name}", value, milliseconds(elapsed), count)


def ended_by(now: float, trials: Sequence[TrialFigures]) -> list[TrialFigures]:
    """Leave out trials that ended after `now`, the time taken just before the journals were read.
    Otherwise a sync that reads a later end but not yet an earlier end would give these trials other
    steps than the next sync."""
    return [trial for trial in trials if not (end := trial.figures.end) or end.time <= now]


def trials_view(search: Search, task: TaskFacts, results_id: str) -> str:
    """A view of a sweep's trials as a table: goals and searched keys as columns, the best first."""
    goals = wanted_goals(search["search"])
    metrics = [f"metrics.`goal/{_metric(goal, task)}`" for goal in goals]
    params = [f"params.`{key}`" for key in param_values(search["search"]["space"])]
    columns = [*metrics, *params, "tags.`raysuite.status`", f"tags.`{BEST}`"]
    return _view("trial", results_id, metrics[0], lower_is_better(goals[0], task), columns)


SPEED_UP = "run/speed_up"
AGAINST_BEST = "run/against_best"
RATIOS = {SPEED_UP: "speed_up", AGAINST_BEST: "to_best"}
"""Metric of a run in MLflow -> the attribute of the run's row that holds the ratio."""


def runs_view(plans: Sequence[Plan], results_id: str) -> str:
    """A view of a suite's runs as a table, the highest throughput first. Columns: throughput,
    speed-up (or, if all runs have the same number of workers, the ratio to the best), primary
    metric, compared keys, gate, status."""
    spec, task = plans[0]["spec"], task_of(plans[0])
    rate = f"metrics.`run/{task.unit}_per_second`"
    compared = dict.fromkeys(("strategy", "loader", *plans[0]["label"]))
    keys = [
        f"{key}.name" if isinstance(spec.get(key), dict) else key
        for key in compared
        if key not in ("resources.workers", "seed")
    ]
    scaled = len({plan["workers"] for plan in plans}) > 1
    columns = [
        rate,
        f"metrics.`{SPEED_UP if scaled else AGAINST_BEST}`",
        f"metrics.`run/final_{task.primary}`",
        *(f"params.`{key}`" for key in (*keys, "plan.workers")),
        "tags.`raysuite.gate`",
        "tags.`raysuite.status`",
    ]
    return _view("run", results_id, rate, False, columns)


def ratio_points(rows: Sequence[Row]) -> Iterator[tuple[str, Point]]:
    """Pairs of the id of an ended run and a point: the speed-up of the run's row, or the row's
    ratio to the best row.

    All points have the end time of the last run. A ratio changes when further runs of its baseline
    end, and MLflow shows the point with the latest time.
    """
    ends = [run.end.time for row in rows for run in row.runs if run.end]
    for row in rows:
        for key, name in RATIOS.items():
            ratio = getattr(row, name)
            for run in row.runs:
                if ratio and run.end:
                    yield run.run_id, Point(key, ratio.value, milliseconds(max(ends)), 0)


def _view(kind: str, results_id: str, key: str, ascending: bool, columns: Sequence[str]) -> str:
    """A view of the runs of one kind in a results folder, sorted by `key`."""
    view = {
        "searchFilter": f"tags.`raysuite.results` = '{results_id}' "
        f"and tags.`raysuite.kind` = '{kind}'",
        "orderByKey": key,
        "orderByAsc": ascending,
        "selectedColumns": list(columns),
    }
    return json.dumps(view)


def trial_params(values: Mapping[str, Any]) -> dict[str, str]:
    """A trial's values as params, by searched key; a block is represented by its name."""
    return param_values(
        {key: block_name(each) if isinstance(each, dict) else each for key, each in values.items()}
    )


def trial_points(search: Search, trial: TrialFigures) -> Iterator[Point]:
    """The results and cost of a trial that has ended, as `goal/...` and `trial/...`."""
    end = trial.figures.end
    if end is None:
        return
    when = milliseconds(end.time)
    for goal in wanted_goals(search["search"]):
        value = trial.goals.get(goal)
        if value is not None:
            yield Point(f"goal/{_metric(goal, trial.figures.task)}", value, when, 0)
    yield Point("trial/worker_seconds", trial.worker_seconds, when, 0)
    yield Point("trial/epochs", trial.epochs, when, 0)


def points_of(search: Search | None, trial: TrialFigures, folder: Path) -> list[Point]:
    """All points of a run whose journal is in `folder`. A trial's goals come first, since MLflow's
    comparisons begin with the first metric."""
    goals = trial_points(search, trial) if search else ()
    return [*goals, *run_points(trial.figures), *system_points(folder)]


def trial_tags(trial: TrialFigures) -> dict[str, str]:
    """Tags of a trial: its number and, with PBT, its current values and its PBT steps."""
    tags = {"raysuite.kind": "trial", TRIAL: str(trial.number)}
    if trial.turns:
        tags["raysuite.pbt.values"] = json.dumps(trial.values_now)
        tags["raysuite.pbt.judged"] = "; ".join(turn.words for turn in trial.turns)
    return {key: value[:MOST_TAG] for key, value in tags.items()}


def _told(about: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in about.items() if value not in (None, {})}


FILES = (
    *("spec.yaml", "search.json", "plan.json", "report.html", "provenance.json", "against.json"),
    *(f"rows.{suffix}" for suffix in ("csv", "md", "tex", "json")),
)
PLOT_SUFFIXES = (".pdf", ".png", ".svg")
"""Suffixes of the plot files that are written to the store: the formats that MLflow displays."""
REPORT = "raysuite.report"
"""Tag of the parent run: the page of its report, relative to MLflow's address."""
PARENT = "mlflow.parentRunId"
"""Tag of a run: the MLflow run under which MLflow's table shows it."""
COMMIT = "mlflow.source.git.commit"
"""Tag of a run: the commit of the code that it ran. The parent run has it if all its runs ran the
same commit."""
HISTORY = "raysuite.epochs"
"""Tag of a run: the `history_of` digest of its epochs; set before the epochs are written."""
MARK = "raysuite.synced"
"""Tag of a run: the digest of the written data. It is set last, so a crash leaves it unset."""

ParentStatus = Literal["RUNNING", "KILLED"]
"""Status of a folder's MLflow run while its suite runs (RUNNING), or after a stop (KILLED)."""


class Upload:
    """Writes a results folder into a store. The caller must hold the folder's lock."""

    def __init__(self, results: Results, store: Store) -> None:
        self.results = results
        self.store = store
        self.id = results_id(results.folder)
        self.search = results.search()
        self._plans: dict[str, Plan] = {}
        self._read: dict[str, TrialFigures] = {}
        self.known: dict[str, Run] = {}
        for run in store.runs_of(self.id):  # if a run has several, the oldest is used
            self.known.setdefault(run.data.tags.get("raysuite.run_id", ""), run)

    def figures(self, run_id: str) -> RunFigures:
        """The figures of a run, from its journal so far."""
        return self._trial(run_id).figures

    def _trial(self, run_id: str) -> TrialFigures:
        if run_id not in self._read:
            if run_id not in self._plans:  # plans are added while a sweep continues
                self._plans = {plan["run_id"]: plan for plan in self.results.plans()}
            records = self.results.records(run_id)
            self._read[run_id] = trial_figures(self._plans[run_id], records)
        return self._read[run_id]

    def parent(self) -> Run:
        """The results folder's own MLflow run. It is created if it does not exist."""
        if "" not in self.known:
            tags = {
                "raysuite.kind": "sweep" if self.search else "results",
                "raysuite.results": self.id,
                **SOURCE,
                "mlflow.user": getpass.getuser(),
            }
            name = f"{experiment_name(self.results)} {self.results.folder.resolve().name}"
            self.known[""] = self.store.create(name, self._begin(), tags)
        return self.known[""]

    def child(self, run: RunFigures) -> Run:
        """The MLflow run of a run of raysuite. Created, with its tags, if it does not exist."""
        if run.run_id not in self.known:
            parent = self.parent().info.run_id
            tags = {**run_tags(run, self.id), PARENT: parent}
            name = title(run)
            if self.search:
                number = int(run.plan["index"])
                name, tags[TRIAL] = f"trial {number}", str(number)
            self.known[run.run_id] = self.store.create(name, begin_of(run), tags)
        return self.known[run.run_id]

    def _continued(self, run: RunFigures) -> Run:
        """The MLflow run of a run of raysuite. If epochs that were written have been trained again,
        it is deleted and created anew, because MLflow cannot remove metrics."""
        child = self.child(run)
        if continues(run, child.data.tags.get(HISTORY, history_of(()))):
            return child
        self.store.client.delete_run(child.info.run_id)
        del self.known[run.run_id]
        return self.child(run)

    def write_run(self, run_id: str) -> bool:
        """Write all data of a run so far; return False if MLflow has them already, or if the run
        has not started."""
        journal = self.results.journal_file(run_id)
        # computed before the journal is read: the next sync writes records that are added later
        mark = digest(journal, *system_files(journal.parent).values())
        if run_id in self.known and self.known[run_id].data.tags.get(MARK) == mark:
            return False
        self._read.pop(run_id, None)  # read again: all records that the mark covers must be written
        trial = self._trial(run_id)
        run = trial.figures
        if run.started is None and run.end is None:
            return False
        child = self._continued(run)
        mlflow_id = child.info.run_id
        points = points_of(self.search, trial, journal.parent)
        params = run_params(run.plan)
        tags = run_tags(run, self.id)
        if self.search:
            params |= trial_params(trial.values)
            tags |= trial_tags(trial)
        had = child.data.params  # MLflow refuses a param whose value has changed
        fresh = {key: value for key, value in params.items() if key not in had}
        if not (child.inputs and child.inputs.dataset_inputs):
            self.store.log_inputs(mlflow_id, dataset_inputs(run.plan))
        # logged before the points, so that their epochs are known even if only some points arrive
        history = history_of(final_epochs(run))
        if child.data.tags.get(HISTORY) != history:
            self.store.log(mlflow_id, tags={HISTORY: history})
        self.store.log(mlflow_id, points, fresh, tags)
        self.store.client.log_artifact(mlflow_id, str(journal))
        last = run.end or run.stopped
        end = milliseconds(last.time) if last else None
        self.store.finish(mlflow_id, mlflow_status(run), end)
        self.store.log(mlflow_id, tags={MARK: mark})
        return True

    def write_parent(self, status: ParentStatus | None = None) -> None:
        """Write the data of the whole folder: files, plots, and the status, which follows from the
        statuses of the runs unless `status` is given."""
        now = time.time()
        trials = [self._trial(plan["run_id"]) for plan in self.results.plans()]
        if self.search:
            self._remove_replaced(trials)
            ended = ended_by(now, trials) if status == "RUNNING" else trials
            self._write_sweep(self.search, ended)
        folder = self.results.folder
        files = [folder / name for name in FILES] + sorted(folder.glob("best*.yaml"))
        plots = sorted(
            file for file in (folder / "plots").glob("*.*") if file.suffix in PLOT_SUFFIXES
        )
        parent = self.parent()
        self._nest(parent)
        mlflow_id = parent.info.run_id
        runs = [trial.figures for trial in trials]
        lasts = [run.end or run.stopped for run in runs]
        decided = self.results.decided()
        whole = decided is None or decided.is_all
        # a batch that is still to be found, or a trial that is still to be drawn, may differ
        known = whole and all(run.started or run.end for run in runs)
        # figures of variants may change with every repeat until all runs have ended
        journals = [self.results.journal_file(run.run_id) for run in runs if all(lasts)]
        mark = digest(*files, *plots, *journals) + ("" if known else " in part")
        if parent.data.tags.get(MARK) != mark:
            for file in files:
                if file.is_file():
                    self.store.client.log_artifact(mlflow_id, str(file))
            for plot in plots:
                self.store.client.log_artifact(mlflow_id, str(plot), "plots")
            if self.search:
                self.store.remove_others(parent, "best*.yaml", {file.name for file in files})
            tags = _links(parent, folder, self.page())
            self._write_suite(parent, runs, known, with_figures=all(lasts))
            if view := self._table:
                experiment = self.store.experiment_id
                self.store.client.set_experiment_tag(experiment, VIEW + self.id, view)
            self.store.log(mlflow_id, tags={**tags, MARK: mark})
        ends = [milliseconds(last.time) for last in lasts if last]
        self.store.finish(mlflow_id, status or _overall(runs, whole), max(ends, default=None))

    def _nest(self, parent: Run) -> None:
        """Nest each run under `parent`, including runs whose parent was deleted by a user."""
        for run_id, run in self.known.items():
            if run_id and run.data.tags.get(PARENT) != parent.info.run_id:
                self.store.client.set_tag(run.info.run_id, PARENT, parent.info.run_id)

    def _write_suite(
        self, parent: Run, runs: list[RunFigures], known: bool, with_figures: bool
    ) -> None:
        """Write the params, data set and commit that all runs share, and a suite's figures. MLflow
        cannot change params and data sets, so they are written once all plans are `known`."""
        had = parent.data.params
        plans = [run.plan for run in runs] if known else []
        shared = {key: text for key, text in shared_params(plans).items() if key not in had}
        rows = make_rows(runs) if with_figures and not self.search else []
        commits = {
            commit
            for run in runs
            if run.started and (commit := (run.started.environment.get("git") or {}).get("commit"))
        }
        if len(commits) > 1 and COMMIT in parent.data.tags:  # of the runs that were known before
            self.store.client.delete_tag(parent.info.run_id, COMMIT)
        tags = {COMMIT: commits.pop()} if len(commits) == 1 else {}
        self.store.log(parent.info.run_id, list(row_points(rows)), shared, tags)
        self._write_ratios(rows)
        sets = {json.dumps(plan["spec"]["data"], sort_keys=True) for plan in plans}
        if len(sets) == 1 and not (parent.inputs and parent.inputs.dataset_inputs):
            self.store.log_inputs(parent.info.run_id, dataset_inputs(plans[0]))

    def _write_ratios(self, rows: Sequence[Row]) -> None:
        """Log each variant's ratios in its runs, as columns of MLflow's table."""
        for run_id, point in ratio_points(rows):
            child = self.known.get(run_id)
            if child is not None and child.data.metrics.get(point.key) != point.value:
                self.store.log(child.info.run_id, [point])

    def _write_sweep(self, search: dict[str, Any], trials: list[TrialFigures]) -> None:
        """Write a sweep's points, params and tags to its own run, and tag its best trials."""
        parent = self.parent()
        mlflow_id, client = parent.info.run_id, self.store.client
        tags = sweep_tags(search, trials)
        if any(parent.data.tags.get(key) != value for key, value in tags.items()):
            had = parent.data.params
            params = {key: text for key, text in sweep_params(search).items() if key not in had}
            self.store.log(mlflow_id, list(sweep_points(search, trials)), params)
            self.store.log(mlflow_id, tags=tags)  # last, as they mark the rest as written
        winners = best_runs(search, trials)
        for run_id, run in self.known.items():
            if run_id in winners and BEST not in run.data.tags:
                client.set_tag(run.info.run_id, BEST, "true")
            elif run_id not in winners and BEST in run.data.tags:
                client.delete_tag(run.info.run_id, BEST)

    def _remove_replaced(self, trials: list[TrialFigures]) -> None:
        """Delete the runs of trials whose number now belongs to another plan: when a failed batch
        search is repeated and succeeds, the trial's plan gets another id."""
        ids = {str(trial.number): trial.run_id for trial in trials}
        for run_id, run in [*self.known.items()]:
            if ids.get(run.data.tags.get(TRIAL, ""), run_id) != run_id:
                self.store.client.delete_run(run.info.run_id)
                del self.known[run_id]

    def page(self) -> str:
        """The page with a table of the runs, or of a sweep's trials, relative to MLflow's address;
        "" if there are no runs, or if the view is too long."""
        view = self._table
        return view_page(self.store.experiment_id, self.id) if view else ""

    @cached_property
    def _table(self) -> str:
        plans = [] if self.search else self.results.plans()
        if self.search:
            view = trials_view(self.search, self._task, self.id)
        else:
            view = runs_view(plans, self.id) if plans else ""
        return view if len(view) <= MOST_EXPERIMENT_TAG else ""

    @property
    def _task(self) -> TaskFacts:
        return task_of(next(iter(self.results.plans()), {}))

    def _begin(self) -> int | None:
        """The time in milliseconds at which the folder's first run began; None before that."""
        begins = (begin_of(self.figures(plan["run_id"])) for plan in self.results.plans())
        return min((begin for begin in begins if begin is not None), default=None)


def _overall(runs: list[RunFigures], whole: bool) -> str:
    """The folder's status, from the statuses of its runs. KILLED for a sweep that is not complete
    (`whole` is False) although no trial is running."""
    states = {mlflow_status(run) for run in runs}
    if not whole and "RUNNING" not in states:
        return "KILLED"
    for state in ("KILLED", "RUNNING"):
        if state in states:
            return state
    return "FINISHED" if "FINISHED" in states else "FAILED"


def _links(parent: Run, folder: Path, view: str) -> dict[str, str]:
    """Tags of the parent run: the page of the report, and the description on the run's page in
    MLflow. The description links to the report and to the table of trials or runs, and contains the
    table of results if that is short enough."""
    report, table = folder / "report.html", folder / "rows.md"
    tags: dict[str, str] = {}
    trials = parent.data.tags.get("raysuite.kind") == "sweep"
    linked = "Table of the trials with searched keys" if trials else "Table of the compared runs"
    said = f"[{linked}]({view})\n\n" if view else ""
    if report.is_file():
        info = parent.info
        place = f"#/experiments/{info.experiment_id}/runs/{info.run_id}/artifacts/{report.name}"
        tags[REPORT] = place
        said += f"[The report, with its plots]({place})\n\n"
    if table.is_file() and len(text := said + table.read_text("utf-8")) <= MOST_TAG:
        said = text
    return {**tags, "mlflow.note.content": said} if said else tags
