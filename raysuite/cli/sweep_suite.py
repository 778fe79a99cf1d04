"""A sweep from the command line: begun or taken up again, shown, stopped, reported."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from raysuite.cli import console
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
from raysuite.cli.run_tracking import Tracking
from raysuite.cli.sweep_dry import foresee
from raysuite.cli.sweep_progress import SweepProgress
from raysuite.cluster.folder import current_folder
from raysuite.cluster.suites import sole_driver
from raysuite.plan.space import count
from raysuite.plan.sweep import check_retry, create_sweep, latest_sweep, sweep_document
from raysuite.plan.trials import check_space
from raysuite.records import Results
from raysuite.records.sweep import trials
from raysuite.spec import Document, read_document
from raysuite.spec.search_check import read_search

if TYPE_CHECKING:
    from raysuite.orchestrate.cluster import Capacity
    from raysuite.orchestrate.stopping import StopWatch
    from raysuite.train.stopping import Stop


def carry_out(request: Request) -> None:
    """Make the trials. Raises UserError, and Exit where none of them gave a result."""
    request.check()
    from raysuite.orchestrate import suite
    from raysuite.orchestrate.stopping import StopWatch

    results, document = _taken_up(request)
    resume = results is not None
    if results is None:  # mistakes are told before Ray is started
        _check(document, gpus_before(request.address))
    elif request.retry_failed:
        check_retry(document)
        with sole_driver(results.folder):
            suite.forget_failures(suite.planned(results), results)
    cluster = current_folder()
    tracking = Tracking(request.tracking_uri) if request.mlflow else None
    try:
        with ExitStack() as kept:
            with StopWatch(cluster, request.stop_within_s) as watch:
                with suite.connect(request.address) as capacity:
                    if results is None:
                        if request.address:  # any number of GPUs was counted on
                            foresee(document, read_search(document), int(capacity.gpus))
                        results = create_sweep(document, request.root)
                    kept.enter_context(sole_driver(results.folder))
                    kept.enter_context(registered(cluster, results, request, watch))
                    stop = _run(request, document, results, capacity, tracking, watch, resume)
                if stop is not None:
                    kept.close()
                    raise typer.Exit(say_stopped(request.verb, results, stop, tracking))
            write_report(results, request.silent)
            if tracking:
                tracking.sync(results)
                tracking.register(results, request.silent)
    except KeyboardInterrupt:
        if results is not None:
            say_how_to_go_on(request.verb, results)
        raise
    if not any(trial.counts for trial in trials(results)):
        raise typer.Exit(1)


def _taken_up(request: Request) -> tuple[Results | None, Document]:
    """The results to go on with, if any, and the sweep's document: of those, as it began."""
    if request.resume_from is not None:
        results = Results.open(request.resume_from.absolute())
        return results, sweep_document(results)
    assert request.spec is not None
    document = read_document(request.spec, request.overrides, request.scale)
    read_search(document)
    if not request.resume:
        return None, document
    results = latest_sweep(document, request.root)
    say_what_changed(results, document)
    return results, sweep_document(results)


def _check(document: Document, gpus: int | None) -> None:
    """Raise SpecError for what can be told before Ray is asked."""
    from raysuite.orchestrate.sweep.searchers import decider_of

    search = read_search(document)
    decider_of(search)
    check_space(document, search)
    foresee(document, search, gpus)


def _run(
    request: Request,
    document: Document,
    results: Results,
    capacity: Capacity,
    tracking: Tracking | None,
    watch: StopWatch,
    resume: bool,
) -> Stop | None:
    from raysuite.orchestrate import suite, sweep

    results.add_command(request.command())
    if not request.silent:
        console.print_text(f"results: {results.folder}")
    search = read_search(document)
    total = count(search, search.seed)
    view = SweepProgress(
        search.space, search.wanted, total, request.quiet, request.as_json, console.stdout()
    )
    with view as progress:
        for plan in suite.planned(results) if resume else ():
            progress.add(plan)
        progress.poll(results)
        if tracking:
            tracking.ready()  # before the first measurement, not beside it

        def poll() -> None:
            progress.poll(results)
            if tracking:
                tracking.follow(results, progress.state.ended)

        hear = replace(listener(progress, results, tracking, watch), poll=poll)
        return sweep.run(document, results, capacity, hear, resume)
