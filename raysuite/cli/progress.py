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
    TimeShares,
    run_figures,
)
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
        """One run or trial more, behind the others."""

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
        self._console.file.write(record.model_dump_json() + "\n")
        self._console.file.flush()

    def _write(self, line: Text) -> None:
        """A line above the live part; what is told where all else is silent is no result."""
        (stderr() if self._quiet else self._console).print(line, soft_wrap=True)


# Where an experiment stands, from its Records: what the progress display shows.

Status = Literal["waiting", "running", "paused", "stopped", "finished", "failed", "pruned"]
"""paused: waits at an interval of its sweep for the others. stopped: to be resumed. pruned:
ended early by a sweep's scheduler."""


class RunState:
    """One run, as far as its Records tell."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.status: Status = "waiting"
        self.epochs_done = 0
        self.verdict: GateVerdict | None = None
        self.last_epoch: EpochFinished | None = None
        self._records: list[Record] = []

    def take(self, record: Record) -> None:
        """Move on by one Record."""
        self._records.append(record)
        match record:
            case RunStarted():
                self.status, self.epochs_done = "running", record.first_epoch
            case GateVerdict():
                self.verdict = record
            case EpochFinished():
                self.epochs_done, self.last_epoch = record.epoch + 1, record
            case RunFinished():
                self.status = "finished"
            case RunFailed():
                self.status = "failed"
            case RunPruned():
                self.status = "pruned"
            case RunStopped():
                self.status = "paused" if record.reason == "interval" else "stopped"

    def figures(self) -> RunFigures:
        """The run's figures, as the report will tell them."""
        return run_figures(self.plan.model_dump(mode="json"), self._records)

    @property
    def images_done(self) -> int:
        """Training images behind it."""
        return self.epochs_done * self.plan.dataset.train_samples

    @property
    def images_to_go(self) -> int:
        """Training images before it; none once it has ended."""
        if self.status in ("finished", "failed", "pruned"):
            return 0
        epochs = self.plan.spec.training.epochs - self.epochs_done
        return max(0, epochs) * self.plan.dataset.train_samples


class TimeLeft:
    """Estimate from the work behind us: seconds per image so far, times the images to go.

    Starts of workers, gates and validations are in the seconds, and so in the estimate. Runs on
    more workers are faster than it says, runs of larger networks slower.
    """

    def __init__(self, runs: Sequence[RunState], now: float) -> None:
        self._runs = runs
        self._start = now
        self._images_at_start = self._images()
        self._estimate: tuple[float, float] | None = None

    def _images(self) -> int:
        return sum(run.images_done for run in self._runs)

    def update(self, now: float) -> None:
        """Call when an epoch or a run has ended, with the present second of any one clock."""
        done = self._images() - self._images_at_start
        if done > 0:
            rate = (now - self._start) / done
            self._estimate = (now, rate * sum(run.images_to_go for run in self._runs))

    def seconds(self, now: float) -> float | None:
        """Seconds until the last run has ended; None before an epoch has ended."""
        if self._estimate is None:
            return None
        when, left = self._estimate
        return max(0.0, left - (now - when))


LONG_EPOCH_SECONDS = 30.0
"""Without a terminal, epochs are worth a line each only from this length on."""

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
        self._spinner = Spinner("dots", style="cyan")

    def add(self, plan: RunPlan) -> None:
        """One run more, behind the others."""
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
        now = self._clock()
        if self._time_left is None:
            self._time_left = TimeLeft(self._runs, now)
        elif changed:
            self._time_left.update(now)
        self._polled = True

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
            | TimeShares,
        ):
            return  # the live part shows it
        text = event(run, record)
        if text is None:
            return
        number = f"run {run.plan.index + 1} of {len(self._runs)}"
        line = Text(f"{number}  {run.plan.title}  ")
        line.append(text, style=_STYLES.get(type(record), ""))
        self._write(line)

    def view(self) -> RenderableType:
        """The live part: the run at work, and where the whole stands."""
        rows: list[RenderableType] = []
        run = self._current
        if run is not None and run.status == "running":
            rows += [_heading(run, len(self._runs), self._spinner), _epoch_bar(run)]
            if run.verdict is not None:
                style = "green" if run.verdict.passed else "red"
                rows.append(Text(f"  {gate_words(run.verdict)}", style=style))
        else:
            self._spinner.update(text="  starting workers")
            rows.append(self._spinner)
        rows.append(Text(f"  {self._totals()}", style="dim"))
        return Group(*rows)

    def _totals(self) -> str:
        count = dict.fromkeys(get_args(Status), 0)
        for run in self._runs:
            count[run.status] += 1
        parts = [f"{count['finished']} finished", f"{count['failed']} failed"]
        parts += [f"{count['pruned']} stopped early"] if count["pruned"] else []
        parts += [f"{count['stopped']} stopped"] if count["stopped"] else []
        parts.append(f"{count['waiting']} to go")
        left = None if self._time_left is None else self._time_left.seconds(self._clock())
        if left is not None:
            parts.append(f"about {f'{left:.0f} s' if left < 60 else human_seconds(left)} left")
        return " · ".join(parts)


def _heading(run: RunState, runs: int, spinner: Spinner) -> RenderableType:
    spinner.update(text=Text(f" run {run.plan.index + 1} of {runs}  {run.plan.title}"))
    return spinner


def _epoch_bar(run: RunState) -> RenderableType:
    epochs = run.plan.spec.training.epochs
    row = Table.grid(padding=(0, 2))
    facts = [f"epoch {min(run.epochs_done + 1, epochs)} of {epochs}"]
    last = run.last_epoch
    if last is not None:
        facts.append(f"{last.images / last.seconds:,.0f} images/s" if last.seconds > 0 else "")
        facts.append(f"accuracy {last.val_accuracy:.3f}")
    bar = ProgressBar(total=epochs, completed=run.epochs_done, width=24)
    row.add_row("", facts[0], bar, *facts[1:])
    return row


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
        case TimeShares():
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
