"""A suite from the command line: planned or taken up again, shown, stopped, reported."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from raysuite.cli import console
from raysuite.cli.progress import Progress
from raysuite.cli.run_tracking import Tracking
from raysuite.cluster.folder import ClusterFolder, current_folder
from raysuite.cluster.suites import Suite, register, sole_driver, unregister
from raysuite.errors import RaysuiteError, UserError
from raysuite.records import STOPPED, Results, RunFailed
from raysuite.spec import Document, read_document

if TYPE_CHECKING:
    from raysuite.orchestrate.cluster import Capacity
    from raysuite.orchestrate.stopping import StopWatch
    from raysuite.plan import RunPlan
    from raysuite.train.stopping import Stop

_SYNC_S = 20.0
"""A stopped suite tells MLflow where so much of its time is left."""


@dataclass(frozen=True)
class Request:
    """What `raysuite run` was asked for."""

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
    quiet: bool
    as_json: bool
    stop_within_s: float

    @property
    def silent(self) -> bool:
        """Whether nothing is said but records and errors."""
        return self.quiet or self.as_json

    def check(self) -> None:
        """Raise UserError for options that do not go together."""
        again = self.resume or self.resume_from is not None
        if self.resume and self.resume_from is not None:
            raise UserError("--resume and --resume-from were both given; give one of them")
        if self.resume_from is not None and self.spec is not None:
            raise UserError(
                "--resume-from goes on with the runs of that folder; leave SPEC and KEY=VALUE out"
            )
        if self.resume_from is None and self.spec is None:
            raise UserError(
                "no SPEC was given; give an experiment's YAML file, or --resume-from RESULTS"
            )
        if again and self.overrides:
            raise UserError(
                "--resume goes on with the runs as they were planned; leave KEY=VALUE out"
            )
        if self.retry_failed and not again:
            raise UserError("--retry-failed goes with --resume or --resume-from")
        if self.address and self.address.startswith(("http://", "https://")):
            raise UserError(
                f"address {self.address!r} (--address or RAY_ADDRESS) is where jobs are submitted, "
                "and no Ray can be joined there; submit this command: `ray job submit -- raysuite "
                "run ...`, or give --address HOST:PORT of the cluster's head"
            )

    def command(self) -> str:
        """What was called, for the provenance; where results and records go is left out."""
        words = ["raysuite", "run", *([str(self.spec)] if self.spec else []), *self.overrides]
        words += [] if self.scale is None else ["--scale", self.scale]
        words += ["--resume"] if self.resume else []
        words += ["--resume-from", str(self.resume_from)] if self.resume_from else []
        return shlex.join([*words, *(["--retry-failed"] if self.retry_failed else [])])

    def hint(self) -> str:
        """How to go on with what was interrupted."""
        if self.resume_from is not None or self.spec is None:
            return f"raysuite run --resume-from {shlex.quote(str(self.resume_from))}"
        where = "" if self.root == Path("results") else f" --results {shlex.quote(str(self.root))}"
        form = "" if self.scale is None else f" --scale {shlex.quote(self.scale)}"
        return f"raysuite run {shlex.quote(str(self.spec))}{form}{where} --resume"

    def arguments(self) -> tuple[str, ...]:
        """Options that hold for the continuation too."""
        words = ["--json"] if self.as_json else ["--quiet"] if self.quiet else []
        words += [] if self.mlflow else ["--no-mlflow"]
        uri = self.tracking_uri
        own = uri is not None and uri != os.environ.get("MLFLOW_TRACKING_URI")
        if own and "@" not in str(uri):  # no password onto a command line
            words += ["--tracking-uri", str(uri)]
        return (*words, "--stop-within", f"{self.stop_within_s:g}")


def carry_out(request: Request) -> None:
    """Make the runs. Raises UserError, and Exit where not all of them are well."""
    request.check()
    from raysuite.orchestrate import suite
    from raysuite.orchestrate.stopping import StopWatch
    from raysuite.plan import make_plans

    results, document = _taken_up(request)
    # mistakes are told before Ray is started
    plans = suite.planned(results) if results else make_plans(document) if document else []
    if results and request.retry_failed:
        suite.forget_failures(plans, results)
    cluster = current_folder()
    tracking = Tracking(request.tracking_uri) if request.mlflow else None
    try:
        with StopWatch(cluster, request.stop_within_s) as watch:
            with suite.connect(request.address) as capacity:
                if results is None and document is not None:
                    plans = make_plans(document, int(capacity.gpus))
                    suite.check(plans, capacity, document)
                    results = suite.create(document, plans, request.root)
                assert results is not None
                left = [plan for plan in plans if results.end_of(plan.run_id) is None]
                suite.check(left, capacity, document)
                with sole_driver(results.folder), _registered(cluster, results, request, watch):
                    stop = _run(request, plans, results, capacity, tracking, watch)
            if stop is not None:
                raise typer.Exit(_stopped(results, stop, tracking))
    except KeyboardInterrupt:
        if results is not None:
            text = f"what has finished is kept; go on with: {request.hint()}"
            console.print_text(text, error=True)
        raise
    _report(results, request.silent)
    if tracking:
        tracking.sync(results)
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

    return suite.latest(make_plans(document)[0].spec.name, request.root), document


@contextmanager
def _registered(
    cluster: ClusterFolder | None, results: Results, request: Request, watch: StopWatch
) -> Iterator[None]:
    """Let the cluster go on with this suite where its head is started again before the end.

    A suite that ended, or that a person ended, is not gone on with.
    """
    if cluster is None:
        yield
        return
    register(
        cluster,
        Suite(results=results.folder.absolute(), folder=Path.cwd(), arguments=request.arguments()),
    )
    try:
        yield
    except (KeyboardInterrupt, RaysuiteError):
        unregister(cluster, results.folder.absolute())
        raise
    if watch.asked() is None or watch.is_last_word():
        unregister(cluster, results.folder.absolute())


def _run(
    request: Request,
    plans: Sequence[RunPlan],
    results: Results,
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
        if tracking:
            tracking.ready()  # before the first measurement, not beside it
        hear = suite.Listener(
            poll=lambda: progress.poll(results),
            between=lambda: tracking.sync(results) if tracking else None,
            say=lambda line: console.print_text(line, error=True),
            added=progress.add,
            asked_to_stop=watch.asked,
        )
        return suite.run(plans, results, capacity.nodes, hear)


def _stopped(results: Results, stop: Stop, tracking: Tracking | None) -> int:
    """Say how to go on; the exit code."""
    if tracking and (stop.deadline is None or time.time() + _SYNC_S < stop.deadline):
        tracking.sync(results)
    command = f"raysuite run --resume-from {shlex.quote(str(results.folder))}"
    console.print_text(f"stopped ({STOPPED[stop.reason]}); go on with: {command}", error=True)
    return os.EX_TEMPFAIL


def _report(results: Results, silent: bool) -> None:
    from raysuite.cli.report import show
    from raysuite.report import build

    made = build(results)
    if not silent:
        show(made, results.folder)
