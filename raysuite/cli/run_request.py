"""What `raysuite run` and `raysuite sweep` share: the request, MLflow, and how to resume."""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysuite.cli import console
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.suites import Suite, Verb, is_to_be_resumed, job_id, register, unregister
from raysuite.errors import RaysuiteError, UserError
from raysuite.records import STOPPED, Results
from raysuite.spec import Document, parse_document

if TYPE_CHECKING:
    from raysuite.cli.progress import LiveView
    from raysuite.orchestrate.stopping import StopWatch
    from raysuite.orchestrate.suite import Listener
    from raysuite.track.upload import ParentStatus
    from raysuite.train.stopping import Stop

# MLflow beside `raysuite run` and `raysuite sweep`: fed from journals, missed without harm.

_LEAST_REST_S = 5.0
_REST = 20.0
"""Work beside runs rests so many times as long as it took: 5 % of the time at most."""
_NICENESS = 10
"""Of work beside runs: they have the processors first."""


class Tracking:
    """MLflow, fed from the journals; an outage is told once."""

    def __init__(self, uri: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._uri, self._clock = uri, clock
        self._told = False
        self._preparing = threading.Thread(target=self._prepare, daemon=True)
        self._preparing.start()
        self._beside: threading.Thread | None = None
        self._outage = ""
        self._ended = -1
        self._rests_until = 0.0

    def _prepare(self) -> None:
        from raysuite.track import prepare

        prepare(self._uri)

    def ready(self) -> None:
        """Wait until MLflow is loaded and its store is open."""
        self._preparing.join()

    def sync(self, results: Results, status: ParentStatus | None = None) -> None:
        """Send what the journals gained, while no run is at work.

        `status`: how the whole stands, where its runs do not tell it.
        """
        from raysuite.track import sync

        self.ready()
        if self._beside is not None:
            self._beside.join()
        summary = sync(results, self._uri, status=status)
        self._tell("" if summary.ok else str(summary))

    def follow(self, results: Results, ended: int) -> None:
        """Send what the journals gained beside the runs, of which so many have ended.

        To be called now and then; it returns at once. It sends at the first call and after runs
        that ended, one time after the other, with rests.
        """
        if self._beside is not None:
            if self._beside.is_alive():
                return
            self._beside = None
            self._tell(self._outage)
        if ended != self._ended and self._clock() >= self._rests_until:
            self._ended = ended
            self._beside = threading.Thread(
                target=self._send, args=(results,), name="mlflow", daemon=True
            )
            self._beside.start()

    def _send(self, results: Results) -> None:
        from raysuite.track import sync

        self.ready()
        if sys.platform == "linux":  # where a thread has a niceness of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        began = self._clock()
        try:
            summary = sync(results, self._uri, status="RUNNING")
            self._outage = "" if summary.ok else str(summary)
        except RaysuiteError as error:  # it is raised when nothing is at work any more
            self._outage = str(error)
        now = self._clock()
        self._rests_until = now + max(_LEAST_REST_S, _REST * (now - began))

    def _tell(self, outage: str) -> None:
        if outage and not self._told:
            console.print_text(outage, error=True)
        self._told = bool(outage)

    def register(self, results: Results, silent: bool) -> None:
        """Register a sweep's best network; why there is none is told, and no more comes of it."""
        from raysuite.cli.register import register_best

        try:
            done, note = register_best(results, tracking_uri=self._uri)
        except RaysuiteError as error:
            console.print_text(f"no model is registered: {error}", error=True)
            return
        if note:
            console.print_text(note, error=True)
        if done.ok and not silent:
            console.print_text(str(done))
        elif not done.ok and not self._told:
            console.print_text(str(done), error=True)


_SYNC_S = 20.0
"""A stopped suite tells MLflow where so much of its time is left."""
_UPLOADS = "working_dir_files"
"""Ray's folder of what `ray job submit --working-dir` sends to a node."""


@dataclass(frozen=True)
class Request:
    """What `raysuite run` or `raysuite sweep` was asked for."""

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
    verb: Verb = "run"
    timings: bool = False
    budget_s: float | None = None
    """Seconds from the start of the command."""

    @property
    def silent(self) -> bool:
        """Whether nothing is said but records and errors."""
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
        if self.resume_from is None and self.spec is None:
            raise UserError(
                "no SPEC was given; give an experiment's YAML file, or --resume-from RESULTS"
            )
        if again and self.overrides:
            raise UserError("--resume resumes the runs as they were planned; leave KEY=VALUE out")
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


def hint(verb: Verb, results: Results) -> str:
    """The command that resumes what was interrupted, from whichever folder and spec it began."""
    return f"raysuite {verb} --resume-from {shlex.quote(str(results.folder))}"


def say_how_to_go_on(verb: Verb, results: Results) -> None:
    """After Ctrl-C."""
    console.print_text(f"what has finished is kept; resume with: {hint(verb, results)}", error=True)


def say_what_changed(results: Results, document: Document) -> None:
    """Where the spec was edited since the results began: what is on record is resumed."""
    file = results.folder / "spec.yaml"
    then = _flat(parse_document(file.read_text("utf-8"), str(file)).data)
    now = _flat(parse_document(document.text, document.file).data)
    changed = [key for key in {**then, **now} if then.get(key) != now.get(key)]
    if changed:
        listed = ", ".join(f"{key} from {then.get(key)!r} to {now.get(key)!r}" for key in changed)
        console.print_text(
            f"{document.file} was changed since {results.folder} began, and its runs are resumed "
            f"as they were planned: {listed}; leave --resume out to run what it says now",
            error=True,
        )


def _flat(data: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Dotted keys of nested mappings."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{above}{key}.")
        else:
            flat[f"{above}{key}"] = value
    return flat


def listener(
    progress: LiveView, results: Results, tracking: Tracking | None, watch: StopWatch
) -> Listener:
    """Who hears of a suite or a sweep: the screen, MLflow, and whoever may stop it."""
    from raysuite.orchestrate.suite import Listener

    return Listener(
        poll=lambda: progress.poll(results),
        between=(lambda: tracking.sync(results)) if tracking else None,
        say=lambda line: console.print_text(line, error=True),
        added=progress.add,
        asked_to_stop=watch.asked,
    )


def write_report(results: Results, request: Request) -> None:
    """Write the report, and show it; with --quiet print the results folder alone."""
    from raysuite.cli.report import show
    from raysuite.report import build

    made = build(results)
    if not request.silent:
        show(made, results.folder)
    elif request.quiet:
        console.print_text(str(results.folder))


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
    register(
        cluster,
        Suite(
            results=results.folder.absolute(),
            folder=Path.cwd(),
            verb=request.verb,
            arguments=request.arguments(),
            job=job_id(),
        ),
    )
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


def say_stopped(verb: Verb, results: Results, stop: Stop, tracking: Tracking | None) -> int:
    """Say how to resume; the exit code."""
    if tracking and (stop.deadline is None or time.time() + _SYNC_S < stop.deadline):
        tracking.sync(results, "KILLED")
    words = f"stopped ({STOPPED[stop.reason]}); resume with: {hint(verb, results)}"
    console.print_text(words, error=True)
    return os.EX_TEMPFAIL
