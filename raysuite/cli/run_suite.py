"""A suite from the command line: planned or taken up again, shown, stopped, reported."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import typer

from raysuite.cli import console
from raysuite.cli.progress import Progress
from raysuite.cli.run_batches import find_batches
from raysuite.cli.run_options import gpus_before
from raysuite.cli.run_request import (
    Request,
    listener,
    registered,
    say_how_to_go_on,
    say_stopped,
    say_what_changed,
    write_report,
)
from raysuite.cli.run_timings import Timings, lines
from raysuite.cli.run_tracking import Tracking
from raysuite.cluster.folder import current_folder
from raysuite.cluster.suites import sole_driver
from raysuite.records import BatchFound, Journal, Results, RunFailed
from raysuite.spec import Document, read_document

if TYPE_CHECKING:
    from raysuite.orchestrate.cluster import Capacity
    from raysuite.orchestrate.stopping import StopWatch
    from raysuite.plan import RunPlan
    from raysuite.train.stopping import Stop


def carry_out(request: Request) -> None:
    """Make the runs. Raises UserError, and Exit where not all of them are well."""
    request.check()
    from raysuite.orchestrate import suite
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
                kept.enter_context(sole_driver(results.folder))
                kept.enter_context(registered(cluster, results, request, watch))
                with timings.phase("runs"):
                    stop = _run(request, plans, results, found, capacity, tracking, watch)
                timings.split_runs(results, began)
                timings.write(results)
                if stop is not None:
                    kept.close()
                    raise typer.Exit(say_stopped(request.verb, results, stop, tracking))
                with timings.phase("report"), ending(joined):
                    write_report(results, request.silent)
            if tracking:
                with timings.phase("mlflow"):
                    tracking.sync(results)
    except KeyboardInterrupt:
        if results is not None:
            say_how_to_go_on(request.verb, results)
        raise
    timings.write(results)
    if request.timings:
        for line in lines(results, timings):
            console.print_text(line, error=request.as_json)
    ends = [results.end_of(plan.run_id) for plan in suite.planned(results)]
    if any(isinstance(end, RunFailed) for end in ends):
        raise typer.Exit(1)


def _taken_up(request: Request) -> tuple[Results | None, Document | None]:
    """The results to go on with, if any, and the spec as it stands now, where one was named."""
    from raysuite.orchestrate import suite

    if request.resume_from is not None:
        return Results.open(request.resume_from.absolute()), None
    assert request.spec is not None
    document = read_document(request.spec, request.overrides, request.scale)
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
