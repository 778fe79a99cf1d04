"""What `raysuite run` shows while it runs, drawn from the runs' journals alone."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, get_args

from pydantic import TypeAdapter, ValidationError
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from raysuite.cli.console import stderr
from raysuite.plan import RunPlan
from raysuite.records import (
    FAILED,
    STOPPED,
    BatchFound,
    EpochFinished,
    GateVerdict,
    Record,
    Results,
    RunCosts,
    RunFailed,
    RunFigures,
    RunFinished,
    RunJudged,
    RunPruned,
    RunStarted,
    RunStopped,
    SamplesSkipped,
    StagesMeasured,
    TimeShares,
    run_figures,
)
from raysuite.records.live import LivePosition, live_file, live_position
from raysuite.records.schema import json_line
from raysuite.units import human_seconds

# Journals read as they grow: each byte once.

_RECORD: TypeAdapter[Record] = TypeAdapter(Record)


class Tail:
    """The Records that were added to one journal since the last look."""

    def __init__(self) -> None:
        self._read_bytes = 0

    def new(self, journal: Path) -> list[Record]:
        """Whole lines only: one that is still being written is left for the next look."""
        try:
            if journal.stat().st_size <= self._read_bytes:
                return []
            with journal.open("rb") as stream:
                stream.seek(self._read_bytes)
                grown = stream.read()
        except FileNotFoundError:
            return []
        whole = grown[: grown.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        records = []
        for line in whole.splitlines():
            try:
                records.append(_RECORD.validate_json(line))
            except ValidationError:
                continue  # cut off by a crash
        return records


# Where runs and trials are shown: a terminal, a log, a pipe that takes JSON.


class LiveView(ABC):
    """A live display on a terminal, lines elsewhere, JSON lines, or failures only.

    Enter it to show the live part.
    """

    def __init__(self, quiet: bool, json: bool, console: Console, per_second: float) -> None:
        self._quiet, self._json, self._console = quiet, json, console
        self._is_live = console.is_terminal and not quiet and not json
        self._per_second = per_second
        self._live: Live | None = None

    @abstractmethod
    def view(self) -> RenderableType:
        """The live part."""

    @abstractmethod
    def add(self, plan: RunPlan) -> None:
        """Add a run or trial after the others."""

    @abstractmethod
    def totals(self) -> str:
        """One line on the state of the suite or sweep."""

    @abstractmethod
    def poll(self, results: Results) -> None:
        """About twice a second: take in what the journals gained, and show it."""

    def __enter__(self) -> Self:
        if self._is_live:
            self._live = Live(
                get_renderable=self.view,
                console=self._console,
                refresh_per_second=self._per_second,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def _write_json(self, record: Record) -> None:
        """A Record as a line; not through rich, which would wrap it."""
        self._console.file.write(json_line(record) + "\n")
        self._console.file.flush()

    def _write(self, line: Text) -> None:
        """A line above the live part; with --quiet on stderr, as it is no result."""
        (stderr() if self._quiet else self._console).print(line, soft_wrap=True)


# The state of an experiment, from its Records: what the progress display shows.

Status = Literal["waiting", "running", "paused", "stopped", "finished", "failed", "pruned"]
"""paused: waits at an interval of its sweep for the others. stopped: to be resumed. pruned:
ended early by a sweep's scheduler."""


class RunState:
    """One run, from its Records so far."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.status: Status = "waiting"
        self.epochs_done = 0
        self.verdict: GateVerdict | None = None
        self.last_epoch: EpochFinished | None = None
        self.live: LivePosition | None = None
        """Inside the present epoch; None before its first second."""
        self.measured: tuple[int, float] = (0, 0.0)
        """Images of epochs that ended here, and the seconds of their training and validation."""
        self._records: list[Record] = []

    def take(self, record: Record) -> None:
        """Move on by one Record."""
        self._records.append(record)
        match record:
            case RunStarted():
                self.status, self.epochs_done = "running", record.first_epoch
                self.live = None
            case GateVerdict():
                self.verdict = record
            case EpochFinished():
                self.epochs_done, self.last_epoch, self.live = record.epoch + 1, record, None
                images, seconds = self.measured
                seconds += record.seconds + record.validation_seconds
                self.measured = images + record.images, seconds
            case RunFinished():
                self.status = "finished"
            case RunFailed():
                self.status = "failed"
            case RunPruned():
                self.status = "pruned"
            case RunStopped():
                self.status = "paused" if record.reason == "interval" else "stopped"

    def look(self, file: Path) -> bool:
        """Read the position that the run writes; whether it has changed."""
        if self.status != "running":
            return False
        live = live_position(file)
        if live is None or live.epoch != self.epochs_done or live == self.live:
            return False
        self.live = live
        return True

    @property
    def rate(self) -> float | None:
        """Images per second: of the last seconds, else of the epochs so far; None before any."""
        if self.live is not None and self.live.images_per_second is not None:
            return self.live.images_per_second
        images, seconds = self.measured
        return images / seconds if images and seconds > 0 else None

    def figures(self) -> RunFigures:
        """The run's figures, as the report will show them."""
        return run_figures(self.plan.model_dump(mode="json"), self._records)

    @property
    def epoch_text(self) -> str:
        """Completed epochs, with a decimal inside of one: `2`, `2.4`."""
        if self.live is None or self.status != "running":
            return str(self.epochs_done)
        return f"{self.epochs_done + self.live.step / self.live.steps:.1f}"

    @property
    def images_done(self) -> int:
        """Training images so far."""
        inside = 0 if self.live is None or self.status != "running" else self.live.images
        return self.epochs_done * self.plan.dataset.train_samples + inside

    @property
    def images_to_go(self) -> int:
        """Training images before it; none once it has ended."""
        if self.status in ("finished", "failed", "pruned"):
            return 0
        whole = self.plan.spec.training.epochs * self.plan.dataset.train_samples
        return max(0, whole - self.images_done)


class TimeLeft:
    """Estimates of the time that is left, in seconds of any one clock.

    A run needs the images to go at its present rate. The runs to come need theirs at the rate of
    all runs so far, and each as much besides (start of workers, gate, checkpoints) as the runs so
    far did. Runs on more workers are faster than estimated, those of larger networks slower.
    """

    def __init__(self, runs: Sequence[RunState], now: float) -> None:
        self._runs = runs
        self._start = now
        self._before = {id(run): run.measured for run in runs if run.status != "waiting"}
        self._estimate: tuple[float, float | None, float] | None = None

    def update(self, now: float) -> None:
        """Call when a run has moved on."""
        images, seconds, begun = 0.0, 0.0, 0
        for run in self._runs:
            before = self._before.get(id(run))
            images += run.measured[0] - (before or (0, 0.0))[0]
            seconds += run.measured[1] - (before or (0, 0.0))[1]
            if run.live is not None and run.rate:
                images += run.live.images
                seconds += run.live.images / run.rate
            begun += run.status != "waiting" and (before is None or run.status == "running")
        if not images or seconds <= 0:
            return
        besides = max(0.0, now - self._start - seconds) / max(1, begun)
        of_run, left = None, 0.0
        for run in self._runs:
            if run.status == "running" and run.rate:
                of_run = run.images_to_go / run.rate
                left += of_run
            else:
                left += run.images_to_go * seconds / images
                left += besides if run.status == "waiting" else 0.0
        self._estimate = (now, of_run, left)

    def seconds(self, now: float) -> float | None:
        """Seconds until the last run has ended; None before anything was measured."""
        if self._estimate is None:
            return None
        return max(0.0, self._estimate[2] - (now - self._estimate[0]))

    def seconds_of_run(self, now: float) -> float | None:
        """Seconds until the run at work has ended; None where none is known to be."""
        if self._estimate is None or self._estimate[1] is None:
            return None
        return max(0.0, self._estimate[1] - (now - self._estimate[0]))


LONG_EPOCH_SECONDS = 30.0
"""Without a terminal, only epochs of this length or more have a line each."""
LOG_SECONDS = 60.0
"""Without a terminal, the position inside an epoch is written after so long without a line."""

_STYLES = {RunFinished: "green", RunFailed: "red", RunPruned: "cyan", RunStopped: "yellow"}


class Progress(LiveView):
    """A live display on a terminal, a line an event elsewhere, JSON lines, or errors only.

    `poll` is called about twice a second. Records that lay in the results folder before this
    object was made (a run resumed) are counted and not announced.
    """

    def __init__(
        self,
        plans: Sequence[RunPlan],
        quiet: bool,
        json: bool,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(quiet, json, console, per_second=4)
        self._runs = [RunState(plan) for plan in plans]
        self._tails = [Tail() for _ in plans]
        self._clock = clock
        self._made = time.time()
        self._polled = False
        self._current: RunState | None = None
        self._time_left: TimeLeft | None = None
        self._logged = clock()
        self._spinner = Spinner("dots", style="cyan")

    def add(self, plan: RunPlan) -> None:
        """Add a run after the others."""
        self._runs.append(RunState(plan))
        self._tails.append(Tail())

    def poll(self, results: Results) -> None:
        """Take in what the journals gained, and show it."""
        changed = False
        for run, tail in zip(self._runs, self._tails, strict=True):
            if run.status == "finished":
                continue
            for record in tail.new(results.journal_file(run.plan.run_id)):
                old = not self._polled and record.time < self._made
                run.take(record)
                changed = True
                if not old:
                    self._current = run
                    self._announce(run, record)
            if run.look(live_file(results.journal_file(run.plan.run_id))):
                changed, self._current = True, run
        now = self._clock()
        if self._time_left is None:
            self._time_left = TimeLeft(self._runs, now)
        if changed:
            self._time_left.update(now)
        self._polled = True
        self._log_position(now)

    def _log_position(self, now: float) -> None:
        """In a log: a line now and then inside of long epochs."""
        run = self._current
        if self._is_live or self._json or self._quiet or run is None or run.live is None:
            return
        if now - self._logged >= LOG_SECONDS:
            self._logged = now
            self._write_line(run, ", ".join(_facts(run)))

    def _announce(self, run: RunState, record: Record) -> None:
        if self._json:
            self._write_json(record)
            return
        if self._quiet and not isinstance(record, RunFailed | RunStopped):
            return
        if self._is_live and not isinstance(
            record,
            BatchFound
            | RunFinished
            | RunFailed
            | RunPruned
            | RunStopped
            | SamplesSkipped
            | StagesMeasured
            | TimeShares,
        ):
            return  # the live part shows it
        text = event(run, record)
        if text is None:
            return
        self._logged = self._clock()
        self._write_line(run, text, _STYLES.get(type(record), ""))

    def _write_line(self, run: RunState, text: str, style: str = "") -> None:
        number = f"run {run.plan.index + 1} of {len(self._runs)}"
        line = Text(f"{number}  {run.plan.title}  ")
        line.append(text, style=style)
        self._write(line)

    def view(self) -> RenderableType:
        """The live part: the current run, and the state of the suite."""
        rows: list[RenderableType] = []
        run = self._current
        if run is not None and run.status == "running":
            rows += [_heading(run, len(self._runs), self._spinner), _epoch_bar(run)]
            if run.verdict is not None:
                style = "green" if run.verdict.passed else "red"
                rows.append(Text(f"  {gate_words(run.verdict)}", style=style))
        elif any(run.images_to_go for run in self._runs):
            self._spinner.update(text="  starting workers")
            rows.append(self._spinner)
        rows.append(Text(f"  {self.totals()}", style="dim"))
        return Group(*rows)

    def totals(self) -> str:
        """How many runs are in which state, and the time left."""
        count = dict.fromkeys(get_args(Status), 0)
        for run in self._runs:
            count[run.status] += 1
        parts = [f"{count['finished']} finished", f"{count['failed']} failed"]
        parts += [f"{count['pruned']} stopped early"] if count["pruned"] else []
        parts += [f"{count['stopped']} stopped"] if count["stopped"] else []
        parts.append(f"{count['waiting']} to go")
        left, now = self._time_left, self._clock()
        suite = None if left is None else left.seconds(now)
        if suite is not None:
            parts.append(f"about {_about(suite)} left")
        of_run = None if left is None else left.seconds_of_run(now)
        if of_run is not None and count["waiting"]:
            parts[-1] += f", {_about(of_run)} in this run"
        return " · ".join(parts)


def _about(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 60 else human_seconds(seconds)


def _heading(run: RunState, runs: int, spinner: Spinner) -> RenderableType:
    spinner.update(text=Text(f" run {run.plan.index + 1} of {runs}  {run.plan.title}"))
    return spinner


def _epoch_bar(run: RunState) -> RenderableType:
    row = Table.grid(padding=(0, 2))
    whole = run.plan.spec.training.epochs * run.plan.dataset.train_samples
    bar = ProgressBar(total=whole, completed=run.images_done, width=20)
    epoch, *facts = _facts(run)
    row.add_row("", epoch, bar, *facts)
    return row


def _facts(run: RunState) -> list[str]:
    """Epoch and step, images/s, loss, and the accuracy after the last epoch: what is known."""
    epochs, live, last = run.plan.spec.training.epochs, run.live, run.last_epoch
    facts = [f"epoch {min(run.epochs_done + 1, epochs)} of {epochs}"]
    if live is not None:
        inside = f"step {live.step:,} of {live.steps:,}"
        facts[0] += ", validation" if live.step == live.steps else f", {inside}"
    rate = live.images_per_second if live is not None else None
    if rate is None and last is not None and last.seconds > 0:
        rate = last.images / last.seconds
    facts += [] if rate is None else [f"{rate:,.0f} images/s"]
    loss = live.loss if live is not None else None
    if loss is None and last is not None:
        loss = last.train_loss
    facts += [] if loss is None else [f"loss {loss:.3f}"]
    facts += [] if last is None else [f"accuracy {last.val_accuracy:.3f}"]
    return facts


def event(run: RunState, record: Record) -> str | None:
    """One line on one Record, `run` being the state after it; None for what is not worth one."""
    match record:
        case BatchFound():
            return record.words
        case RunStarted():
            if not record.first_step and not record.first_epoch:
                return "started"
            midway = record.first_step % run.plan.steps_per_epoch
            place = f", after {midway} of its steps" if midway else ""
            return f"resumed at epoch {record.first_epoch + 1}{place}"
        case GateVerdict():
            return gate_words(record)
        case SamplesSkipped():
            return record.words or None
        case EpochFinished():
            if record.seconds + record.validation_seconds < LONG_EPOCH_SECONDS:
                return None
            rate = record.images / record.seconds if record.seconds > 0 else 0.0
            return (
                f"epoch {record.epoch + 1} of {run.plan.spec.training.epochs}: {rate:,.0f} "
                f"images/s, accuracy {record.val_accuracy:.3f}"
            )
        case RunCosts():
            return None
        case TimeShares() | StagesMeasured():
            return record.words
        case RunFinished():
            figures, parts = run.figures(), []
            if figures.throughput is not None:
                parts.append(f"{figures.throughput:,.0f} images/s")
            if figures.final_accuracy is not None:
                parts.append(f"accuracy {figures.final_accuracy:.3f}")
            early = " by early stopping" if record.stopped_early else ""
            return f"finished{early}: " + ", ".join([*parts, human_seconds(record.seconds)])
        case RunFailed():
            why = FAILED[record.reason]
            return f"failed{f' ({why})' if why else ''}: {record.message}"
        case RunPruned():
            return f"stopped early {record.words}"
        case RunStopped():
            return f"stopped ({STOPPED[record.reason]}) {record.words}"
        case RunJudged():
            return record.words


def gate_words(verdict: GateVerdict) -> str:
    """The gate's verdict in one line."""
    known = ", found earlier" if verdict.cached else ""
    bound = "no bound" if verdict.tolerance is None else f"tolerance {verdict.tolerance:.0e}"
    figures = f"error {max(verdict.error, verdict.error_batchnorm):.1e}, {bound}{known}"
    if verdict.passed:
        return f"gate passed: {figures}"
    ranks = "" if verdict.ranks_equal else "ranks disagree, "
    return f"gate failed: {ranks}{figures}"
