"""The driver of `raysuite run` and `raysuite sweep`: plan or resume, connect, run, report.

`drive` is the life cycle that both share; `SuiteWork` and `SweepWork` are what differs.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import typer

from raysuite import __version__
from raysuite.cli.console import print_text, stdout
from raysuite.cli.progress import LiveView, Progress
from raysuite.cli.run_options import gpus_before
from raysuite.cli.sweep_progress import SweepProgress, foresee
from raysuite.cluster.folder import ClusterFolder, current_folder
from raysuite.cluster.suites import (
    Suite,
    Verb,
    is_to_be_resumed,
    job_id,
    register,
    sole_driver,
    unregister,
)
from raysuite.errors import UserError
from raysuite.plan.space import count
from raysuite.plan.trials import (
    TRIALS,
    check_retry,
    check_space,
    create_sweep,
    latest_sweep,
    plans_of_space,
    set_more_trials,
    sweep_document,
    write_more_trials,
)
from raysuite.records import (
    STOPPED,
    BatchFound,
    Journal,
    Results,
    RunFailed,
    RunFinished,
    results_figures,
)
from raysuite.records.ends import is_left
from raysuite.records.schema import SCHEMA
from raysuite.records.sweep import trials
from raysuite.spec import Document, parse_document, read_document
from raysuite.spec.document import set_key
from raysuite.spec.search_check import read_search
from raysuite.train.resuming import left_alone

if TYPE_CHECKING:
    from raysuite.orchestrate.batches import Decision
    from raysuite.orchestrate.cluster import Capacity
    from raysuite.orchestrate.stopping import StopWatch
    from raysuite.orchestrate.suite import Listener
    from raysuite.plan import RunPlan
    from raysuite.track.upload import ParentStatus
    from raysuite.train.stopping import Stop

# MLflow beside `raysuite run` and `raysuite sweep`: fed from journals, missed without harm.

_FIRST_S, _LEAST_REST_S = 120.0, 30.0
"""From when on records are sent beside runs, and how often at most."""
_REST = 20.0
"""Work beside runs rests so many times as long as it took: 5 % of the time at most."""
_NICENESS = 10
"""Of work beside runs: they have the processors first."""


class Tracking:
    """MLflow, fed from the journals; an outage is reported once."""

    def __init__(self, uri: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._uri, self._clock = uri, clock
        self._told = False
        self._preparing = threading.Thread(target=self._prepare, daemon=True)
        self._preparing.start()
        self._beside: threading.Thread | None = None
        self._outage = ""
        self._sent_bytes = 0
        self._rests_until = clock() + _FIRST_S

    def _prepare(self) -> None:
        from raysuite.track import prepare

        prepare(self._uri)

    def ready(self) -> None:
        """Wait until MLflow is loaded and its store is open."""
        self._preparing.join()

    def sync(self, results: Results, status: ParentStatus | None = None) -> None:
        """Send what the journals gained, and wait for it.

        `status`: the state of the suite, where its runs do not show it.
        """
        from raysuite.track import sync

        self.ready()
        if self._beside is not None:
            self._beside.join()
        summary = sync(results, self._uri, status=status)
        self._tell("" if summary.ok else str(summary))

    def follow(self, results: Results) -> None:
        """Send what the journals gained beside the runs, one time after the other, with rests.

        To be called now and then; it returns at once.
        """
        if self._beside is not None:
            if self._beside.is_alive():
                return
            self._beside = None
            self._tell(self._outage)
        if self._clock() < self._rests_until:
            return
        journals = results.folder.glob("runs/*/journal.jsonl")
        size = sum(file.stat().st_size for file in journals)
        self._rests_until = self._clock() + _LEAST_REST_S
        if size != self._sent_bytes:
            self._sent_bytes = size
            self._beside = threading.Thread(
                target=self._send, args=(results,), name="mlflow", daemon=True
            )
            self._beside.start()

    def _send(self, results: Results) -> None:
        from raysuite.track import sync

        self.ready()
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        began = self._clock()
        summary = sync(results, self._uri, status="RUNNING")
        self._outage = "" if summary.ok else str(summary)
        now = self._clock()
        self._rests_until = now + max(_LEAST_REST_S, _REST * (now - began))

    def _tell(self, outage: str) -> None:
        if outage and not self._told:
            print_text(outage, error=True)
        self._told = bool(outage)

    def register(self, results: Results, silent: bool) -> None:
        """Register a sweep's best network; why there is none is printed, and is no failure."""
        from raysuite.cli.register import register_best
        from raysuite.track.sync import one_line

        try:
            done, note = register_best(results, tracking_uri=self._uri)
        except Exception as error:  # whatever is wrong, the sweep has ended well
            print_text(f"no model is registered: {one_line(error)}", error=True)
            return
        if note:
            print_text(note, error=True)
        if done.ok and not silent:
            print_text(str(done))
        elif not done.ok and not self._told:
            print_text(str(done), error=True)


_SYNC_S = 20.0
"""A stopped suite writes to MLflow where so much of its time is left."""
_UPLOADS = "working_dir_files"
"""Ray's folder of what `ray job submit --working-dir` sends to a node."""


@dataclass(frozen=True)
class Request:
    """What `raysuite run` or `raysuite sweep` was asked for, by the names of their options."""

    verb: Verb
    spec: Path | None
    overrides: Sequence[str]
    scale: str | None
    address: str | None
    root: Path
    resume: bool
    resume_from: Path | None
    retry_failed: bool
    mlflow: bool
    tracking_uri: str | None
    stop_within_s: float
    quiet: bool
    as_json: bool
    timings: bool
    budget_s: float | None
    """Seconds from the start of the command."""
    document: Document | None = None
    """The experiment, where it is not the file `spec`."""

    @property
    def silent(self) -> bool:
        """Whether nothing is printed but records and errors."""
        return self.quiet or self.as_json

    def check(self) -> None:
        """Raise UserError for options that do not go together."""
        again = self.resume or self.resume_from is not None
        if again and self.budget_s is not None:
            raise UserError("--budget is for runs that begin now; leave it out when resuming")
        if self.resume and self.resume_from is not None:
            raise UserError("--resume and --resume-from were both given; give one of them")
        if self.resume_from is not None and self.spec is not None:
            raise UserError(
                "--resume-from resumes the runs of that folder; leave SPEC and KEY=VALUE out"
            )
        if self.resume_from is None and self.spec is None and self.document is None:
            raise UserError(
                "no SPEC was given; give an experiment's YAML file, or --resume-from RESULTS"
            )
        more = self.verb == "sweep" and all(e.startswith(f"{TRIALS}=") for e in self.overrides)
        if again and self.overrides and not more:
            also = f", or give {TRIALS}=NUMBER alone for more trials" * (self.verb == "sweep")
            raise UserError(
                f"--resume resumes the runs as they were planned; leave KEY=VALUE out{also}"
            )
        if self.retry_failed and not again:
            raise UserError("--retry-failed goes with --resume or --resume-from")
        if self.address and self.address.startswith(("http://", "https://")):
            raise UserError(
                f"address {self.address!r} (--address or RAY_ADDRESS) is where jobs are submitted, "
                "and no Ray can be joined there; submit this command: `ray job submit -- raysuite "
                f"{self.verb} ...`, or give --address HOST:PORT of the cluster's head"
            )
        folder = (self.resume_from or self.root).absolute()
        if _UPLOADS in folder.parts:
            raise UserError(
                f"results would go to {folder}, an upload that one node alone has and that Ray "
                "removes; submit without --working-dir (a job starts where `raysuite cluster up` "
                "was called), or give --results FOLDER that all nodes share"
            )

    def command(self) -> str:
        """What was called, for the provenance; where results and records go is left out."""
        words = ["raysuite", self.verb, *([str(self.spec)] if self.spec else []), *self.overrides]
        words += [] if self.scale is None else ["--scale", self.scale]
        words += ["--resume"] if self.resume else []
        words += ["--resume-from", str(self.resume_from)] if self.resume_from else []
        return shlex.join([*words, *(["--retry-failed"] if self.retry_failed else [])])

    def arguments(self) -> tuple[str, ...]:
        """Options that hold for the continuation too."""
        words = ["--json"] if self.as_json else ["--quiet"] if self.quiet else []
        words += [] if self.mlflow else ["--no-mlflow"]
        uri = self.tracking_uri
        own = uri is not None and uri != os.environ.get("MLFLOW_TRACKING_URI")
        if own and "@" not in str(uri):  # no password onto a command line
            words += ["--tracking-uri", str(uri)]
        return (*words, "--stop-within", f"{self.stop_within_s:g}")


def print_how_to_resume(verb: Verb, results: Results, stop: Stop | None = None) -> None:
    """After Ctrl-C, or where it was asked to stop: before all else, for that may end it soon."""
    why = f"stopped ({STOPPED[stop.reason]})" if stop else "what has finished is kept"
    folder = shlex.quote(str(results.folder))
    print_text(f"{why}; resume with: raysuite {verb} --resume-from {folder}", error=True)


def print_what_changed(results: Results, document: Document) -> None:
    """Where the spec was edited since the results began: what is on record is resumed."""
    from raysuite.track.entries import flatten

    file = results.folder / "spec.yaml"
    then = dict(flatten(parse_document(file.read_text("utf-8"), str(file)).data))
    now = dict(flatten(parse_document(document.text, document.file).data))
    changed = [key for key in {**then, **now} if then.get(key) != now.get(key)]
    if changed:
        listed = ", ".join(f"{key} from {then.get(key)!r} to {now.get(key)!r}" for key in changed)
        print_text(
            f"{document.file} was changed since {results.folder} began, and its runs are resumed "
            f"as they were planned: {listed}; leave --resume out to run it as it is now",
            error=True,
        )


def write_report(results: Results, request: Request) -> None:
    """Write the report, and show it; with --quiet print the results folder alone."""
    from raysuite.cli.explain import sheets_of
    from raysuite.cli.report import show
    from raysuite.report import build

    made = build(results, further=sheets_of(results))
    if not request.silent:
        show(made, results.folder)
    elif request.quiet:
        print_text(str(results.folder))


@contextmanager
def registered(
    cluster: ClusterFolder | None, results: Results, request: Request, watch: StopWatch
) -> Iterator[None]:
    """Let the cluster resume this suite where its head or this driver dies before the end.

    A suite that ended, or that a person ended, is not resumed.
    """
    if cluster is None:
        yield
        return
    suite = Suite(
        results=results.folder.absolute(),
        folder=Path.cwd(),
        verb=request.verb,
        arguments=request.arguments(),
        job=job_id(),
    )
    register(cluster, suite)
    forget = partial(unregister, cluster, results.folder.absolute())
    watch.on_last_word = forget
    try:
        yield
    except BaseException as error:
        if not is_to_be_resumed(error):
            forget()
        raise
    if watch.asked() is None or watch.is_last_word():
        forget()
    else:  # it was forgotten if the cluster's end was seen only after the signal
        register(cluster, suite)


# Batches that a spec leaves to be found by trial.


def search_batches(
    plans: Sequence[RunPlan], folder: Path, nodes: int, watch: StopWatch, silent: bool
) -> Decision:
    """What `orchestrate.batches.decide` finds; what is tried is printed on stderr."""
    from raysuite.orchestrate.batches import decide
    from raysuite.orchestrate.suite import Listener

    def say(line: str) -> None:
        if not silent:
            print_text(line, error=True)

    if any(plan.undecided for plan in plans):
        say("finding by trial what the spec leaves to auto")
    decision = decide(plans, folder, nodes, Listener(watch.asked, say=say))
    if decision.stop is not None:
        why = STOPPED[decision.stop.reason]
        print_text(f"stopped ({why}) before the batch was found: nothing is kept", error=True)
    return decision


# Where the wall time of a command went: measured as it goes, kept in timings.json, shown.

PHASES = {
    "driver": "start of the command, imports, spec and plans",
    "ray": "start of Ray, or joining its cluster",
    "dry batch": "what is left of one batch through each network of your own, when Ray has started",
    "batches": "search for batches that the spec leaves open",
    "workers": "start of the worker processes, until the first run begins in them",
    "runs": "from the first run's beginning to the last one's end, with the time between runs",
    "report": "the report, while Ray ends",
    "mlflow": "MLflow, after the report",
}


class Timings:
    """The phases of this command, in seconds of wall time."""

    def __init__(self) -> None:
        self.began = psutil.Process().create_time()
        self.seconds: dict[str, float] = {"driver": time.time() - self.began}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of this context to a phase, also where it raises."""
        began = time.time()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.time() - began

    def split_runs(self, results: Results, began: float) -> None:
        """Take the start of the workers out of the runs' phase, which began then."""
        firsts = [
            end.first_step_time - end.first_step_seconds
            for plan in results.plans()
            if isinstance(end := results.end_of(plan["run_id"]), RunFinished)
            and end.first_step_time is not None
        ]
        here = [first for first in firsts if first > began]
        if here:
            self.seconds["workers"] = min(here) - began
            self.seconds["runs"] -= self.seconds["workers"]

    def write(self, results: Results) -> None:
        """Keep them beside those of earlier commands on these results."""
        own = {"began": self.began, "seconds": {n: round(s, 3) for n, s in self.seconds.items()}}
        earlier = [each for each in results.timings() if each["began"] != self.began]
        results.write_timings([*earlier, own])


def timing_lines(results: Results, timings: Timings) -> Iterator[str]:
    """A table for a person: each phase, and the parts of each run."""
    total = time.time() - timings.began
    yield f"{'phase':<10}{'seconds':>9}{'share':>8}"
    for name, what in PHASES.items():
        if name in timings.seconds:
            seconds = timings.seconds[name]
            yield f"{name:<10}{seconds:9.2f}{seconds / total:8.0%}  {what}"
    yield f"{'all':<10}{total:9.2f}"
    runs: list[tuple[dict[str, Any], RunFinished]] = [
        (plan, end)
        for plan in results.plans()
        if isinstance(end := results.end_of(plan["run_id"]), RunFinished) and end.parts_seconds
    ]
    names = list(dict.fromkeys(name for _, end in runs for name in end.parts_seconds))
    if names:
        yield ""
        yield "run   seconds" + "".join(f"{name:>12}" for name in names)
    for plan, end in runs:
        parts = "".join(f"{end.parts_seconds.get(name, 0.0):12.2f}" for name in names)
        yield f"{plan['index'] + 1:<4}{end.seconds:9.2f}{parts}"


_AFTER_RUNS_S = 15.0
"""Of a budget: for the end of Ray, the report and MLflow."""


# The life cycle.


class Work(ABC):
    """A suite of runs, or a sweep of trials, from the request to its exit code."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.timings = Timings()
        self.remarks: list[str] = []
        """Printed at the end."""
        self.opened: Results | None = None
        """None until there is a results folder."""

    @property
    def results(self) -> Results:
        """The results folder, which `create` has made, or which is resumed."""
        assert self.opened is not None
        return self.opened

    @abstractmethod
    def plan(self) -> None:
        """Plan, or read what is to be resumed: mistakes are reported before Ray starts."""

    def forget_failures(self) -> None:
        """Let the runs that failed be repeated."""
        from raysuite.orchestrate import suite

        with sole_driver(self.results.folder):
            suite.forget_failures(suite.planned(self.results), self.results)

    def dry_batch(self) -> AbstractContextManager[Callable[[], None]]:
        """What runs beside Ray's start; its call waits for it, and raises SpecError."""
        return nullcontext(lambda: None)

    def connect(self) -> AbstractContextManager[Capacity]:
        """What it runs on: a cluster of Ray."""
        from raysuite.orchestrate.cluster import connect

        return connect(self.request.address)

    @abstractmethod
    def create(self, capacity: Capacity, watch: StopWatch) -> None:
        """Check against the cluster, and make the results folder where nothing is resumed."""

    @abstractmethod
    def view(self) -> LiveView:
        """The display of progress."""

    @abstractmethod
    def execute(self, capacity: Capacity, listener: Listener) -> Stop | None:
        """Make what has not ended yet; the request that stopped it, if one did."""

    def publish(self, tracking: Tracking) -> None:  # noqa: B027 - most have nothing more
        """What MLflow is given at the end, beside the records."""

    @abstractmethod
    def has_failed(self) -> bool:
        """Whether the exit code is 1."""


class SuiteWork(Work):
    """Every run of a spec."""

    def plan(self) -> None:
        from raysuite.orchestrate import budget, suite
        from raysuite.plan import check_unchanged, make_plans, passed_over

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
            self.plans = make_plans(self.document, gpus_before(request.address))
            if request.resume:
                self.opened = suite.latest(self.plans[0].spec.name, request.root)
                print_what_changed(self.opened, self.document)
        if self.opened is not None:
            self.plans = suite.planned(self.opened)
            check_unchanged(self.left())
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
        from raysuite.orchestrate.preflight import dry_batch
        from raysuite.plan.dry_batch import unproven

        return dry_batch(unproven(self.left()), self.document)

    def connect(self) -> AbstractContextManager[Capacity]:
        from raysuite.orchestrate.script import here

        if not all(plan.spec.script is not None for plan in self.plans):
            return super().connect()
        if self.request.address:
            raise UserError(
                f"address {self.request.address!r} (--address or RAY_ADDRESS) is of a Ray cluster, "
                "and a script runs on this machine only, without Ray; leave it out"
            )
        return nullcontext(here())

    def create(self, capacity: Capacity, watch: StopWatch) -> None:
        from raysuite.orchestrate import suite
        from raysuite.plan import make_plans

        if self.opened is None:
            assert self.document is not None
            plans = make_plans(self.document, int(capacity.gpus))
            suite.check(plans, capacity, self.document)
            folder = self.request.root / plans[0].spec.name
            with self.timings.phase("batches"):
                found = search_batches(plans, folder, capacity.nodes, watch, self.request.silent)
            if found.stop is not None:
                raise typer.Exit(os.EX_TEMPFAIL)
            self.plans, self.found = found.plans, found.found
            self.opened = suite.create(self.document, self.plans, self.request.root)
        suite.check(self.left(), capacity, self.document)

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
        stop = suite.run(self.plans, self.results, capacity.nodes, listener)
        if seconds is not None and stop is None:
            self.remarks = budget.settle(self.results)
        return stop

    def has_failed(self) -> bool:
        ends = (self.results.end_of(plan["run_id"]) for plan in self.results.plans())
        return any(isinstance(end, RunFailed) for end in ends)


def still_to_run(request: Request) -> list[RunPlan]:
    """The runs that `raysuite run` would make for a request; nothing is changed."""
    work = SuiteWork(replace(request, quiet=True))
    work.plan()
    return work.left(request.retry_failed)


class SweepWork(Work):
    """The trials of a spec's `search` section."""

    def plan(self) -> None:
        from raysuite.orchestrate import suite
        from raysuite.orchestrate.sweep.search_algorithms import search_algorithm_of
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
            search_algorithm_of(self.search)
            check_space(self.document, self.search)
            foresee(self.document, self.search, gpus_before(request.address))
        elif request.retry_failed:
            check_retry(self.document)

    def dry_batch(self) -> AbstractContextManager[Callable[[], None]]:
        from raysuite.orchestrate.preflight import dry_batch
        from raysuite.plan.dry_batch import unproven

        if self.is_resumed:
            return super().dry_batch()
        plans = plans_of_space(self.document, self.search, gpus_before(self.request.address))
        return dry_batch(unproven(plans), None)

    def create(self, capacity: Capacity, watch: StopWatch) -> None:
        if self.opened is None:
            if self.request.address:  # any number of GPUs was counted on
                foresee(self.document, self.search, int(capacity.gpus))
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
        return sweep.run(self.document, self.results, capacity, listener, self.is_resumed)

    def publish(self, tracking: Tracking) -> None:
        tracking.register(self.results, self.request.silent)

    def has_failed(self) -> bool:
        return not any(trial.counts for trial in trials(self.results))


def first_line(results: Results) -> str:
    """The first line of `--json`: the results folder, and the version that writes it."""
    known = {"version": __version__, "record_schema": SCHEMA}
    return json.dumps({"kind": "results", "folder": str(results.folder), **known})


def last_line(results: Results) -> str:
    """The last line of `--json`: how many runs ended how."""
    counts = Counter(run.status for run in results_figures(results))
    return json.dumps({"kind": "summary", "folder": str(results.folder), "runs": dict(counts)})


def drive(request: Request) -> None:
    """Carry out a request. Raises UserError, and Exit with 1 where a run failed or no trial gave a
    result, with 75 where it was stopped."""
    request.check()
    from raysuite.orchestrate.cluster import ending
    from raysuite.orchestrate.stopping import StopWatch

    work: Work = SweepWork(request) if request.verb == "sweep" else SuiteWork(request)
    work.plan()
    if request.retry_failed:
        work.forget_failures()
    timings, cluster = work.timings, current_folder()
    tracking = Tracking(request.tracking_uri) if request.mlflow else None
    timings.seconds["driver"] = time.time() - timings.began
    # `kept` until report and MLflow have all: a driver that is killed before is resumed
    try:
        with ExitStack() as kept:
            with StopWatch(cluster, request.stop_within_s) as watch, ExitStack() as joined:
                check_batch = joined.enter_context(work.dry_batch())
                with timings.phase("ray"):
                    capacity = joined.enter_context(work.connect())
                with timings.phase("dry batch"):
                    check_batch()
                work.create(capacity, watch)
                began, results = time.time(), work.results
                kept.enter_context(sole_driver(results.folder))
                kept.enter_context(registered(cluster, results, request, watch))
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
                    if request.as_json:
                        print_text(last_line(results))
                    print_how_to_resume(request.verb, results, stop)
                    with ending(joined):
                        if tracking and (stop.deadline or math.inf) > time.time() + _SYNC_S:
                            tracking.sync(results, "KILLED")
                    raise typer.Exit(os.EX_TEMPFAIL)
                with timings.phase("report"), ending(joined):
                    write_report(results, request)
            if tracking:
                with timings.phase("mlflow"):
                    tracking.sync(results)
                    work.publish(tracking)
    except KeyboardInterrupt:
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


def _execute(
    work: Work, capacity: Capacity, tracking: Tracking | None, watch: StopWatch
) -> Stop | None:
    from raysuite.orchestrate.suite import Listener

    if tracking:
        tracking.ready()  # before the first measurement, not beside it
    with work.view() as progress:

        def poll() -> None:
            progress.poll(work.results)
            if tracking:
                tracking.follow(work.results)

        progress.poll(work.results)
        listener = Listener(
            watch.asked,
            poll=poll,
            say=lambda line: print_text(line, error=True),
            added=progress.add,
        )
        return work.execute(capacity, listener)
