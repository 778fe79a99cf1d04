"""The driver of `raysuite run` and `raysuite sweep`: plan or resume, connect, run, report.

`drive` calls the steps of either verb; `SuiteWork` and `SweepWork` implement them.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import typer

from raysuite import __version__
from raysuite.cli.console import print_text, stdout
from raysuite.cli.progress import LiveView, Progress
from raysuite.cli.request import Request, RunRequest, SweepRequest
from raysuite.cli.run_options import gpus_before
from raysuite.cli.sweep_progress import SweepProgress, planned_trials
from raysuite.cluster.folder import current_folder
from raysuite.cluster.suites import Suite, Verb, job_id, sole_driver
from raysuite.orchestrate.timings import Timings, timing_lines
from raysuite.orchestrate.tracking import Tracking
from raysuite.plan.space import count
from raysuite.plan.trials import (
    check_retry,
    check_space,
    create_sweep,
    idle_parts,
    latest_sweep,
    plans_of_space,
    set_more_trials,
    sweep_document,
    write_more_trials,
)
from raysuite.records import STOPPED, BatchFound, Journal, Results, RunFailed, results_figures
from raysuite.records.ends import is_left
from raysuite.records.schema import SCHEMA
from raysuite.records.sweep import trials
from raysuite.spec import Document, parse_document, read_document
from raysuite.spec.document import set_key
from raysuite.spec.experiment import track_of
from raysuite.spec.search_check import read_search
from raysuite.train.resuming import left_alone

if TYPE_CHECKING:
    from raysuite.orchestrate.capacity import Capacity
    from raysuite.orchestrate.found_batches import Decision
    from raysuite.orchestrate.stopping import StopWatch
    from raysuite.orchestrate.suite import Listener
    from raysuite.plan import RunPlan
    from raysuite.train.stop_together import Stop

_SYNC_S = 20.0
"""A stopped suite is written to MLflow only if more than this number of seconds is left until the
deadline of the stop request."""


def print_how_to_resume(verb: Verb, results: Results, stop: Stop | None = None) -> None:
    """Print how to resume after Ctrl-C, a closed pipe or a stop request. Call it before any other
    work, because the process may be killed soon."""
    why = f"stopped ({STOPPED[stop.reason]})" if stop else "finished work is kept"
    folder = shlex.quote(str(results.folder))
    print_text(f"{why}; resume with: raysuite {verb} --resume-from {folder}", error=True)


def print_what_changed(results: Results, document: Document) -> None:
    """Print which keys of the spec were changed after the runs were planned, and that the changes
    have no effect on resumed runs."""
    from raysuite.track.entries import flatten

    file = results.folder / "spec.yaml"
    then = dict(flatten(parse_document(file.read_text("utf-8"), str(file)).data))
    now = dict(flatten(parse_document(document.text, document.file).data))
    changed = [key for key in {**then, **now} if then.get(key) != now.get(key)]
    if changed:
        listed = ", ".join(f"{key} from {then.get(key)!r} to {now.get(key)!r}" for key in changed)
        print_text(
            f"{document.file} was changed after {results.folder} was planned: {listed}; the "
            "changes have no effect on resumed runs; leave --resume out to run the changed spec",
            error=True,
        )


def write_report(results: Results, request: Request) -> None:
    """Write the report, and show it; with --quiet print only the results folder."""
    from raysuite.cli.report import sheets_of, show
    from raysuite.report import build

    made = build(results, further=sheets_of)
    if not request.silent:
        show(made, results.folder)
    elif request.quiet:
        print_text(str(results.folder))


def write_loggers(results: Results, track: Sequence[str], silent: bool) -> None:
    """Write the records to the loggers in `track` other than MLflow. A failure does not change the
    exit code."""
    from raysuite.track.loggers import LOGGERS, write_logger

    for name in (each for each in track if each in LOGGERS):
        summary = write_logger(results, name)
        if not (summary.ok and silent):
            print_text(str(summary), error=not summary.ok)


def suite_of(results: Results, request: Request) -> Suite:
    return Suite(
        results=results.folder.absolute(),
        folder=Path.cwd(),
        verb=request.verb,
        arguments=request.arguments(),
        job=job_id(),
    )


def search_batches(
    plans: Sequence[RunPlan], folder: Path, nodes: int, watch: StopWatch, silent: bool
) -> Decision:
    """Run `orchestrate.found_batches.decide`, and print on stderr which sizes it tries."""
    from raysuite.orchestrate.found_batches import decide
    from raysuite.orchestrate.suite import Listener

    def say(line: str) -> None:
        if not silent:
            print_text(line, error=True)

    if any(plan.undecided for plan in plans):
        say("finding the values that the spec sets to auto")
    decision = decide(plans, folder, nodes, Listener(watch.request, say=say))
    if decision.stop is not None:
        why = STOPPED[decision.stop.reason]
        print_text(f"stopped ({why}) before the batch sizes were found", error=True)
    return decision


_AFTER_RUNS_S = 15.0
"""Seconds of a time budget that are reserved for Ray's shutdown, the report and MLflow."""


AnyRequest = TypeVar("AnyRequest", bound=Request)


class Work(ABC, Generic[AnyRequest]):
    """The steps of a suite of runs or of a sweep of trials, from the request to the exit code."""

    def __init__(self, request: AnyRequest) -> None:
        self.request = request
        self.timings = Timings()
        self.remarks: list[str] = []
        """Lines that are printed at the end."""
        self.opened: Results | None = None
        """The results folder; None until it is created, or opened to resume it."""

    @property
    def results(self) -> Results:
        """The results folder, which exists after `create`, or if an earlier suite is resumed."""
        assert self.opened is not None
        return self.opened

    @abstractmethod
    def plan(self) -> None:
        """Make the plans, or read those of the suite to resume; mistakes are reported before Ray
        starts."""

    def reset_failures(self) -> None:
        """Reset the runs that failed, so that they are repeated."""
        from raysuite.orchestrate import suite

        with sole_driver(self.results.folder):
            suite.reset_failures(suite.planned(self.results), self.results)

    def dry_batch(self) -> AbstractContextManager[Callable[[], None]]:
        """Train one batch (a dry batch) of each plan that needs this check, while Ray starts. The
        yielded function waits for the result, and raises SpecError if a batch failed."""
        return nullcontext(lambda: None)

    @property
    @abstractmethod
    def on_ray(self) -> bool:
        """Whether the runs that have not ended need Ray; computed once, before the first run."""

    def connect(self) -> AbstractContextManager[Capacity]:
        """Connect to a Ray cluster or, if Ray is not needed, give this machine's capacity."""
        from raysuite.orchestrate.capacity import Capacity
        from raysuite.orchestrate.ray_cluster import connect

        return connect(self.request.address) if self.on_ray else nullcontext(Capacity.here())

    @abstractmethod
    def create(self, capacity: Capacity, watch: StopWatch) -> None:
        """Check the plans against the cluster, and make the results folder unless it is resumed."""

    @abstractmethod
    def view(self) -> LiveView:
        """The display of progress."""

    @abstractmethod
    def execute(self, capacity: Capacity, listener: Listener) -> Stop | None:
        """Execute the runs that have not ended; return the stop request, if any."""

    def publish(self, tracking: Tracking) -> None:
        """After the runs, write what the records do not contain, such as a model, to MLflow."""

    @property
    @abstractmethod
    def track(self) -> Sequence[str]:
        """Names of the loggers to which the records are written: the spec's `track`."""

    @abstractmethod
    def has_failed(self) -> bool:
        """Whether a run failed, or no trial has a result. If so, the exit code is 1."""


class SuiteWork(Work[RunRequest]):
    """All runs of a spec."""

    def plan(self) -> None:
        from raysuite.orchestrate import budget, suite
        from raysuite.orchestrate.preflight import plans_here
        from raysuite.plan import check_unchanged, passed_over

        request = self.request
        self.plans: Sequence[RunPlan] = []
        self.found: dict[str, BatchFound] = {}
        self.document: Document | None = None
        if request.resume_from is not None:
            self.opened = Results.open(request.resume_from.absolute())
        else:
            self.document = request.document
            if self.document is None:
                assert request.spec is not None
                self.document = read_document(request.spec, request.overrides, request.scale)
            if request.budget_s is not None:
                set_key(self.document, "repeats", budget.MOST_REPEATS)
            self.plans = plans_here(self.document, gpus_before(request.address))
            if request.resume:
                self.opened = suite.latest(self.plans[0].spec.name, request.root)
                print_what_changed(self.opened, self.document)
        if self.opened is not None:
            self.plans = suite.planned(self.opened)
            check_unchanged(self.left(request.retry_failed))
            if not request.retry_failed:
                for line in left_alone(self.plans, self.opened):
                    print_text(line, error=True)
        if not request.silent:
            for line in passed_over(self.plans):
                print_text(line, error=True)

    def left(self, retry_failed: bool = False) -> list[RunPlan]:
        results = self.opened
        if results is None:
            return list(self.plans)
        return [p for p in self.plans if is_left(results.end_of(p.run_id), retry_failed)]

    def dry_batch(self) -> AbstractContextManager[Callable[[], None]]:
        from raysuite.orchestrate.preflight import check_early, dry_batch
        from raysuite.plan.dry_batch import unproven

        if self.opened is None:
            assert self.document is not None
            check_early(self.plans, self.document, elsewhere=bool(self.request.address))
        return dry_batch(unproven(self.left()), self.document)

    @cached_property
    def on_ray(self) -> bool:
        """Whether an unfinished run needs Ray; a script needs it only if an address is given."""
        left = self.left()
        scripts = all(plan.spec.script is not None for plan in left)
        return bool(left) and (bool(self.request.address) or not scripts)

    def create(self, capacity: Capacity, watch: StopWatch) -> None:
        from raysuite.orchestrate import preflight, suite
        from raysuite.plan import make_plans

        if self.opened is None:
            assert self.document is not None
            plans = make_plans(self.document, int(capacity.gpus))
            preflight.check(plans, capacity, self.document)
            folder = self.request.root / plans[0].spec.name
            with self.timings.phase("batches"):
                found = search_batches(plans, folder, capacity.nodes, watch, self.request.silent)
            if found.stop is not None:
                raise typer.Exit(os.EX_TEMPFAIL)
            self.plans, self.found = found.plans, found.found
            self.opened = suite.create(self.document, self.plans, self.request.root)
        preflight.check(self.left(), capacity, self.document)

    def view(self) -> LiveView:
        request = self.request
        return Progress(self.plans, request.quiet, request.as_json, stdout())

    def execute(self, capacity: Capacity, listener: Listener) -> Stop | None:
        from raysuite.orchestrate import budget, suite

        seconds = self.request.budget_s
        deadline = None if seconds is None else self.timings.began + seconds - _AFTER_RUNS_S
        budget.begin(self.results, deadline)
        for run_id, record in self.found.items():
            Journal(self.results.journal_file(run_id)).write(record)
        stop = suite.run(self.plans, self.results, capacity.nodes, listener, self.on_ray)
        if seconds is not None and stop is None:
            self.remarks = budget.settle(self.results)
        return stop

    @property
    def track(self) -> Sequence[str]:
        return self.plans[0].spec.track

    def has_failed(self) -> bool:
        ends = (self.results.end_of(plan["run_id"]) for plan in self.results.plans())
        return any(isinstance(end, RunFailed) for end in ends)


def run_suite(request: RunRequest, dry_run: bool) -> None:
    """Carry out the runs of a request; with `dry_run` only show them, and change nothing.

    Raises the same exceptions as `drive`.
    """
    if not dry_run:
        drive(SuiteWork(request))
        return
    from raysuite.cli.plan import show

    request.check()
    work = SuiteWork(replace(request, quiet=True))
    work.plan()
    show(work.left(request.retry_failed), request.as_json)


class SweepWork(Work[SweepRequest]):
    """The trials of a spec's `search` section."""

    def plan(self) -> None:
        from raysuite.orchestrate import suite
        from raysuite.plan import check_unchanged

        request = self.request
        if request.resume_from is not None:
            self.opened = Results.open(request.resume_from.absolute())
        else:
            assert request.spec is not None
            self.document = read_document(request.spec, request.overrides, request.scale)
            read_search(self.document)
            if request.resume:
                self.opened = latest_sweep(self.document, request.root)
                print_what_changed(self.opened, self.document)
        self.is_resumed = self.opened is not None
        if self.opened is not None:
            check_unchanged(suite.planned(self.opened))
            began = sweep_document(self.opened)
            if request.overrides:
                set_more_trials(began, self.document)
            self.document = began
        self.search = read_search(self.document)
        if self.opened is None:
            check_space(self.document, self.search)
            planned_trials(self.document, self.search, gpus_before(request.address))
            for line in () if request.quiet else idle_parts(self.document, self.search):
                print_text(line, error=True)
        elif request.retry_failed:
            check_retry(self.document)

    def dry_batch(self) -> AbstractContextManager[Callable[[], None]]:
        from raysuite.orchestrate.preflight import dry_batch
        from raysuite.plan.dry_batch import unproven

        if self.is_resumed:
            return super().dry_batch()
        plans = plans_of_space(self.document, self.search, gpus_before(self.request.address))
        return dry_batch(unproven(plans), None)

    @cached_property
    def on_ray(self) -> bool:
        from raysuite.orchestrate import suite

        results = self.opened
        if results is None:
            return True
        plans = suite.planned(results)
        ends = (results.end_of(plan.run_id) for plan in plans)
        return len(plans) < count(self.search) or any(map(is_left, ends))

    def create(self, capacity: Capacity, watch: StopWatch) -> None:
        if self.opened is None:
            if self.request.address:  # the cluster's number of GPUs was not known before
                planned_trials(self.document, self.search, int(capacity.gpus))
            self.opened = create_sweep(self.document, self.request.root)

    def view(self) -> LiveView:
        from raysuite.orchestrate import suite

        search, request = self.search, self.request
        total = count(search)
        self.shown = SweepProgress(
            search.space, search.wanted, total, request.quiet, request.as_json, stdout()
        )
        for plan in suite.planned(self.results) if self.is_resumed else ():
            self.shown.add(plan)
        return self.shown

    def execute(self, capacity: Capacity, listener: Listener) -> Stop | None:
        from raysuite.orchestrate import sweep

        if self.is_resumed and self.request.overrides:
            write_more_trials(self.document, self.results)
        if not self.on_ray:
            return None
        return sweep.run(self.document, self.results, capacity, listener, self.is_resumed)

    def publish(self, tracking: Tracking) -> None:
        tracking.register(self.results, self.request.silent)

    @property
    def track(self) -> Sequence[str]:
        return track_of(self.document.data)

    def has_failed(self) -> bool:
        return not any(trial.counts for trial in trials(self.results))


def first_line(results: Results) -> str:
    """The first line of `--json`: the results folder, raysuite's version and the version of the
    schema of Records."""
    known = {"version": __version__, "record_schema": SCHEMA}
    return json.dumps({"kind": "results", "folder": str(results.folder), **known})


def last_line(results: Results) -> str:
    """The last line of `--json`: the number of runs by status."""
    counts = Counter(run.status for run in results_figures(results))
    return json.dumps({"kind": "summary", "folder": str(results.folder), "runs": dict(counts)})


def drive(work: Work[Any]) -> None:
    """Carry out a request. Raises UserError, and typer.Exit with code 1 if a run failed or no trial
    gave a result, or with code 75 if the request was stopped."""
    request = work.request
    request.check()
    from raysuite.orchestrate.ray_cluster import ending
    from raysuite.orchestrate.stopping import StopWatch

    work.plan()
    if request.retry_failed:
        work.reset_failures()
    timings = work.timings
    is_sent = request.mlflow and "mlflow" in work.track
    tracking = Tracking(request.tracking_uri, print_text) if is_sent else None
    timings.seconds["driver"] = time.time() - timings.began
    # `kept` is closed last, so that the cluster can resume the suite if the driver is killed before
    try:
        with ExitStack() as kept:
            with StopWatch(current_folder(), request.stop_within_s) as watch, ExitStack() as joined:
                check_batch = joined.enter_context(work.dry_batch())
                with timings.phase("ray"):
                    capacity = joined.enter_context(work.connect())
                with timings.phase("dry batch"):
                    check_batch()
                work.create(capacity, watch)
                began, results = time.time(), work.results
                kept.enter_context(sole_driver(results.folder))
                kept.enter_context(watch.registered(suite_of(results, request)))
                results.add_command(request.command())
                if not request.silent:
                    print_text(f"results: {results.folder}")
                if request.as_json:
                    print_text(first_line(results))
                with timings.phase("runs"):
                    stop = _execute(work, capacity, tracking, watch)
                timings.split_runs(results, began)
                timings.write(results)
                if stop is not None:
                    kept.close()
                    with ending(joined):
                        _tell_stop(work, stop, tracking)
                    raise typer.Exit(os.EX_TEMPFAIL)
                with timings.phase("report"), ending(joined):
                    write_report(results, request)
            if tracking:
                with timings.phase("mlflow"):
                    shown = tracking.sync(results)
                    work.publish(tracking)
                if shown and not request.silent:
                    print_text(f"MLflow: {shown}")
            write_loggers(results, work.track, request.silent)
    except (KeyboardInterrupt, BrokenPipeError):  # such as in `raysuite run SPEC | head`
        if work.opened is not None:
            print_how_to_resume(request.verb, work.opened)
        raise
    timings.write(results)
    if request.as_json:
        print_text(last_line(results))
    for line in () if request.silent else work.remarks:
        print_text(line)
    if request.timings:
        for line in timing_lines(results, timings):
            print_text(line, error=request.as_json)
    if work.has_failed():
        raise typer.Exit(1)


def _tell_stop(work: Work[Any], stop: Stop, tracking: Tracking | None) -> None:
    """Print how to resume a stopped suite; write its records to MLflow if there is time."""
    request, results = work.request, work.results
    if request.as_json:
        print_text(last_line(results))
    print_how_to_resume(request.verb, results, stop)
    if tracking and (stop.deadline or math.inf) > time.time() + _SYNC_S:
        tracking.sync(results, "KILLED")


def _execute(
    work: Work[Any], capacity: Capacity, tracking: Tracking | None, watch: StopWatch
) -> Stop | None:
    from raysuite.orchestrate.suite import Listener

    if tracking:
        tracking.ready()  # wait, so that MLflow's start does not disturb the first measurement
    progress = work.view()
    with progress.live():

        def poll() -> None:
            progress.poll(work.results)
            if tracking:
                tracking.follow(work.results)

        progress.poll(work.results)
        listener = Listener(
            watch.request,
            poll=poll,
            say=lambda line: print_text(line, error=True),
            added=progress.add,
        )
        return work.execute(capacity, listener)
