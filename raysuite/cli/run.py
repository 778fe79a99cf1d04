"""`raysuite run`: every run of a spec, its records, its report."""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysuite.cli import console
from raysuite.cli.progress import Progress
from raysuite.errors import UserError
from raysuite.records import Results, RunFailed
from raysuite.spec import read_document

if TYPE_CHECKING:
    from raysuite.plan import RunPlan


def run(
    spec: Annotated[Path, typer.Argument(help="The experiment, as YAML.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Override keys of the spec."),
    ] = None,
    scale: Annotated[
        str | None, typer.Option(help="A form under the spec's `scales`, such as laptop.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(envvar="RAY_ADDRESS", help="Join this Ray cluster instead of starting one."),
    ] = None,
    root: Annotated[
        Path, typer.Option("--results", help="Folder under which NAME/DATE-TIME is made.")
    ] = Path("results"),
    resume: Annotated[
        bool, typer.Option(help="Go on with the newest results of this experiment.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="With --resume: run the failed runs again.")
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="Print the runs and stop, like `plan`.")] = False,
    mlflow: Annotated[bool, typer.Option(help="Send the records to MLflow.")] = True,
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            envvar="MLFLOW_TRACKING_URI", help="MLflow's store; default sqlite:///mlflow.db."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every record as a line of JSON.")
    ] = False,
) -> None:
    """Run every run of a spec and report what was measured.

    \b
    Examples:
      raysuite run experiments/quickstart.yaml
      raysuite run experiments/quickstart.yaml training.epochs=3 repeats=5
      raysuite run experiments/aach2023-throughput.yaml --scale laptop
      raysuite run experiments/quickstart.yaml --resume
      raysuite run experiments/quickstart.yaml --address 10.0.0.1:6379
    """
    if dry_run:
        from raysuite.cli.plan import plan

        plan(spec, overrides, scale, as_json=as_json)
        return
    from raysuite.orchestrate import suite
    from raysuite.plan import make_plans

    document = read_document(spec, overrides or [], scale)
    plans = make_plans(document)  # mistakes are told before Ray is started
    name = plans[0].spec.name
    results: Results | None = None
    if resume:
        if overrides:
            raise UserError(
                "--resume goes on with the runs as they were planned; leave KEY=VALUE out"
            )
        results = suite.latest(name, root)
        plans = suite.planned(results)
        if retry_failed:
            suite.forget_failures(plans, results)

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    tracking = _Tracking(tracking_uri) if mlflow else None
    try:
        with suite.connect(address) as capacity:
            if results is None:
                plans = make_plans(document, int(capacity.gpus))
            suite.check(plans, capacity, document)
            if results is None:
                results = suite.create(document, plans, root)
            results.add_command(_command(spec, overrides or [], scale, resume, retry_failed))
            if not (quiet or as_json):
                console.print_text(f"results: {results.folder}")
            with Progress(plans, quiet, as_json, console.stdout()) as progress:
                progress.poll(results)
                if tracking:
                    tracking.ready()  # before the first measurement, not beside it
                _run(plans, results, progress, tracking)
    except KeyboardInterrupt:
        if results is not None:
            console.print_text(_hint(spec, scale, root), error=True)
        raise
    _report(results, quiet or as_json)
    if tracking:
        tracking.sync(results)
    ends = [results.end_of(plan.run_id) for plan in plans]
    if any(isinstance(end, RunFailed) for end in ends):
        raise typer.Exit(1)


def _command(
    spec: Path, overrides: Sequence[str], scale: str | None, resume: bool, retry_failed: bool
) -> str:
    """What was called, for the provenance; where results and records go is left out."""
    words = ["raysuite", "run", str(spec), *overrides]
    words += [] if scale is None else ["--scale", scale]
    words += ["--resume"] if resume else []
    return shlex.join([*words, *(["--retry-failed"] if retry_failed else [])])


def _hint(spec: Path, scale: str | None, root: Path) -> str:
    where = "" if root == Path("results") else f" --results {shlex.quote(str(root))}"
    form = "" if scale is None else f" --scale {shlex.quote(scale)}"
    command = f"raysuite run {shlex.quote(str(spec))}{form}{where} --resume"
    return f"what has finished is kept; go on with: {command}"


def _run(
    plans: Sequence[RunPlan], results: Results, progress: Progress, tracking: _Tracking | None
) -> None:
    from raysuite.orchestrate import suite

    def poll() -> None:
        progress.poll(results)

    def between() -> None:
        if tracking:
            tracking.sync(results)

    suite.run(plans, results, poll, between)


class _Tracking:
    """MLflow, fed from the journals while no run is at work; an outage is told once."""

    def __init__(self, uri: str | None) -> None:
        self._uri = uri
        self._told = False
        self._preparing = threading.Thread(target=self._prepare, daemon=True)
        self._preparing.start()

    def _prepare(self) -> None:
        from raysuite.track import prepare

        prepare(self._uri)

    def ready(self) -> None:
        """Wait until MLflow is loaded and its store is open."""
        self._preparing.join()

    def sync(self, results: Results) -> None:
        """Send what the journals gained."""
        from raysuite.track import sync

        self.ready()
        summary = sync(results, self._uri)
        if not summary.ok and not self._told:
            console.print_text(str(summary), error=True)
            self._told = True


def _report(results: Results, silent: bool) -> None:
    from raysuite.cli.report import show
    from raysuite.report import build

    made = build(results)
    if not silent:
        show(made, results.folder)
