"""A suite from the command line: planned or resumed, shown, stopped, reported."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import typer

from raysuite.cli import console
from raysuite.cli.console import print_text
from raysuite.cli.progress import Progress
from raysuite.cli.run_options import gpus_before
from raysuite.cli.run_request import (
    Request,
    Tracking,
    listener,
    registered,
    say_how_to_go_on,
    say_stopped,
    say_what_changed,
    write_report,
)
from raysuite.cluster.folder import current_folder
from raysuite.cluster.suites import sole_driver
from raysuite.records import STOPPED, BatchFound, Journal, Results, RunFailed, RunFinished
from raysuite.spec import Document, read_document

if TYPE_CHECKING:
    from raysuite.orchestrate.batches import Decision
    from raysuite.orchestrate.cluster import Capacity
    from raysuite.orchestrate.stopping import StopWatch
    from raysuite.plan import RunPlan
    from raysuite.train.stopping import Stop

# Before a suite: the batches that its spec leaves to be found by trial.


def find_batches(
    plans: Sequence[RunPlan], root: Path, capacity: Capacity, watch: StopWatch, silent: bool
) -> Decision:
    """The plans of a suite with all their numbers.

    Raises RunError as `orchestrate.batches.decide`, and Exit where it was asked to stop.
    """
    decision = search_batches(plans, root / plans[0].spec.name, capacity.nodes, watch, silent)
    if decision.stop is not None:
        raise typer.Exit(os.EX_TEMPFAIL)
    return decision


def search_batches(
    plans: Sequence[RunPlan], folder: Path, nodes: int, watch: StopWatch, silent: bool
) -> Decision:
    """What `orchestrate.batches.decide` finds; what is tried is told on stderr."""
    from raysuite.orchestrate.batches import decide
    from raysuite.orchestrate.suite import Listener

    def say(line: str) -> None:
        if not silent:
            print_text(line, error=True)

    if any(plan.undecided for plan in plans):
        say("finding by trial what the spec leaves to auto")
    hear = Listener(
        poll=lambda: None,
        between=None,
        say=say,
        added=lambda plan: None,
        asked_to_stop=watch.asked,
    )
    decision = decide(plans, folder, nodes, hear)
    if decision.stop is not None:
        why = STOPPED[decision.stop.reason]
        print_text(f"stopped ({why}) before the batch was found: nothing is kept", error=True)
    return decision


# Where the wall time of `raysuite run` went: measured as it goes, kept in timings.json, shown.

PHASES = {
    "driver": "start of the command, imports, spec and plans",
    "ray": "start of Ray, or joining its cluster",
    "dry batch": "what is left of one batch through each network of your own, when Ray has started",
    "batches": "search for batches that the spec leaves open",
    "workers": "start of the worker processes, until the first run begins in them",
    "runs": "from the first run's beginning to the last one's end, with what lies between",
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


def lines(results: Results, timings: Timings) -> Iterator[str]:
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


def carry_out(request: Request) -> None:
    """Make the runs. Raises UserError, and Exit where not all of them are well."""
    request.check()
    from raysuite.orchestrate import budget, suite
    from raysuite.orchestrate.cluster import ending
    from raysuite.orchestrate.preflight import dry_batch, unproven
    from raysuite.orchestrate.stopping import StopWatch
    from raysuite.plan import make_plans, passed_over

    results, document = _taken_up(request)
    plans = suite.planned(results) if results else []
    if results is None and document is not None:  # mistakes are told before Ray is started
        plans = make_plans(document, gpus_before(request.address))
    if not request.silent:
        for line in passed_over(plans):
            console.print_text(line, error=True)
    if results and request.retry_failed:
        with sole_driver(results.folder):
            suite.forget_failures(plans, results)
    timings = Timings()
    deadline = None
    said: list[str] = []
    if request.budget_s is not None:
        deadline = timings.began + request.budget_s - _AFTER_RUNS_S
    found: dict[str, BatchFound] = {}
    cluster = current_folder()
    tracking = Tracking(request.tracking_uri) if request.mlflow else None
    # `kept` until report and MLflow have all: a driver that is killed before is resumed
    try:
        with ExitStack() as kept:
            with StopWatch(cluster, request.stop_within_s) as watch, ExitStack() as joined:
                left = [each for each in plans if not (results and results.end_of(each.run_id))]
                check_batch = joined.enter_context(dry_batch(unproven(left), document))
                with timings.phase("ray"):
                    capacity = joined.enter_context(suite.connect(request.address))
                with timings.phase("dry batch"):
                    check_batch()
                if results is None and document is not None:
                    plans = make_plans(document, int(capacity.gpus))
                    suite.check(plans, capacity, document)
                    with timings.phase("batches"):
                        decision = find_batches(
                            plans, request.root, capacity, watch, request.silent
                        )
                    plans = decision.plans
                    results = suite.create(document, plans, request.root)
                    found = decision.found
                assert results is not None
                left = [plan for plan in plans if results.end_of(plan.run_id) is None]
                suite.check(left, capacity, document)
                began = time.time()
                budget.begin(results, deadline)
                kept.enter_context(sole_driver(results.folder))
                kept.enter_context(registered(cluster, results, request, watch))
                with timings.phase("runs"):
                    stop = _run(request, plans, results, found, capacity, tracking, watch)
                timings.split_runs(results, began)
                said = budget.settle(results) if deadline is not None else []
                timings.write(results)
                if stop is not None:
                    kept.close()
                    raise typer.Exit(say_stopped(request.verb, results, stop, tracking))
                with timings.phase("report"), ending(joined):
                    write_report(results, request)
            if tracking:
                with timings.phase("mlflow"):
                    tracking.sync(results)
    except KeyboardInterrupt:
        if results is not None:
            say_how_to_go_on(request.verb, results)
        raise
    timings.write(results)
    for line in said if not request.silent else ():
        console.print_text(line)
    if request.timings:
        for line in lines(results, timings):
            console.print_text(line, error=request.as_json)
    ends = [results.end_of(plan.run_id) for plan in suite.planned(results)]
    if any(isinstance(end, RunFailed) for end in ends):
        raise typer.Exit(1)


def _taken_up(request: Request) -> tuple[Results | None, Document | None]:
    """The results to resume, if any, and the spec as it stands now, where one was named."""
    from raysuite.orchestrate import suite

    if request.resume_from is not None:
        return Results.open(request.resume_from.absolute()), None
    assert request.spec is not None
    from raysuite.orchestrate.budget import MOST_REPEATS
    from raysuite.spec.document import set_key

    document = read_document(request.spec, request.overrides, request.scale)
    if request.budget_s is not None:
        set_key(document, "repeats", MOST_REPEATS)
    if not request.resume:
        return None, document
    from raysuite.plan import make_plans

    plans = make_plans(document, gpus_before(request.address))
    results = suite.latest(plans[0].spec.name, request.root)
    say_what_changed(results, document)
    return results, document


def _run(
    request: Request,
    plans: Sequence[RunPlan],
    results: Results,
    found: Mapping[str, BatchFound],
    capacity: Capacity,
    tracking: Tracking | None,
    watch: StopWatch,
) -> Stop | None:
    from raysuite.orchestrate import suite

    results.add_command(request.command())
    if not request.silent:
        console.print_text(f"results: {results.folder}")
    with Progress(plans, request.quiet, request.as_json, console.stdout()) as progress:
        progress.poll(results)
        for run_id, record in found.items():
            Journal(results.journal_file(run_id)).write(record)
        if tracking:
            tracking.ready()  # before the first measurement, not beside it
        hear = listener(progress, results, tracking, watch)
        return suite.run(plans, results, capacity.nodes, hear)
