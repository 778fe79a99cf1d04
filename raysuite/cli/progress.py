"""The display of runs and trials in progress, made only from files that the runs write."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Literal

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
    RunFailed,
    RunFinished,
    RunJudged,
    RunPruned,
    RunStarted,
    RunStopped,
    SamplesSkipped,
    StagesMeasured,
    TimeShares,
    read_journal,
)
from raysuite.records.journal import is_damaged
from raysuite.records.live import LivePosition, live_file, live_position
from raysuite.records.schema import json_line
from raysuite.records.sweep import TrialFigures, trial_figures
from raysuite.units import human_seconds


class Tail:
    """Reads the Records that were added to a journal since the previous reading."""

    def __init__(self) -> None:
        self._size_bytes = self._count = 0

    def new(self, journal: Path) -> list[Record]:
        """The Records in new complete lines; if the journal is damaged, only the Record that
        reports the damage."""
        size = journal.stat().st_size if journal.exists() else 0
        if size == self._size_bytes:
            return []
        self._size_bytes, records = size, read_journal(journal)
        if is_damaged(records):
            return records[-1:]
        new, self._count = records[self._count :], len(records)
        return new


# The state of runs, computed from their Records.

Status = Literal["finished", "pruned", "failed", "stopped", "running", "paused", "waiting"]
"""pruned: ended early by a sweep's scheduler; stopped: ended, but can be resumed; paused: waiting
for the other trials at the end of a PBT interval."""
ENDED: tuple[Status, ...] = ("finished", "pruned", "failed")
WORDS: dict[Status, str] = {"pruned": "stopped early", "waiting": "starting"}
STYLES: dict[Status, str] = {
    "finished": "green",
    "pruned": "cyan",
    "failed": "red",
    "stopped": "yellow",
    "running": "",
    "paused": "dim",
    "waiting": "dim",
}
"""Status -> style, in the order in which `totals` lists the statuses."""


class RunState:
    """The state of one run or trial, computed from its Records so far."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.tail = Tail()
        self.status: Status = "waiting"
        self.epochs_done = 0
        self.verdict: GateVerdict | None = None
        self.last_epoch: EpochFinished | None = None
        self.live: LivePosition | None = None
        """The position in the current epoch; None until the run has written it."""
        self._records: list[Record] = []
        self._figures: TrialFigures | None = None

    def take(self, record: Record) -> None:
        """Update the state with one Record."""
        self._records.append(record)
        self._figures = None
        match record:
            case RunStarted():
                self.status, self.epochs_done = "running", record.first_epoch
                self.live = None
            case GateVerdict():
                self.verdict = record
            case EpochFinished():
                self.epochs_done, self.last_epoch, self.live = record.epoch + 1, record, None
            case RunFinished():
                self.status = "finished"
            case RunFailed():
                self.status = "failed"
            case RunPruned():
                self.status = "pruned"
            case RunStopped():
                self.status = "paused" if record.reason == "interval" else "stopped"

    def read_position(self, file: Path) -> bool:
        """Read the run's position in its epoch from `file`; return whether it has changed."""
        if self.status != "running":
            return False
        live = live_position(file)
        if live is None or live.epoch != self.epochs_done or live == self.live:
            return False
        self.live = live
        return True

    @property
    def rate(self) -> float | None:
        """The increase of `images_done` per second, over the last seconds or, if that is not known,
        over the last epoch; None if neither is known."""
        if self.live is not None and self.live.images_per_second is not None:
            return self.live.images_per_second
        last = self.last_epoch
        seconds = last.seconds + last.validation_seconds if last else 0.0
        if last is None or seconds <= 0:
            return None
        return (last.images if self.units_are_known else self.plan.epoch_units) / seconds

    @property
    def units_are_known(self) -> bool:
        """Whether `images_done` counts units of the task's throughput, not samples."""
        return self.plan.task.units_are_known(self.plan.dataset.sequence)

    @property
    def figures(self) -> TrialFigures:
        """The run's results so far, computed as for the report."""
        if self._figures is None:
            self._figures = trial_figures(self.plan.model_dump(mode="json"), self._records)
        return self._figures

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def epoch_text(self) -> str:
        """The number of completed epochs; during an epoch, plus the completed part of it: `2`,
        `2.4`."""
        if self.live is None or self.status != "running":
            return str(self.epochs_done)
        return f"{self.epochs_done + self.live.step / self.live.steps:.1f}"

    @property
    def images_done(self) -> int:
        """Training images so far, or other units of the throughput; see `units_are_known`."""
        inside = 0 if self.live is None or self.status != "running" else self.live.images
        return self.epochs_done * self.plan.epoch_units + inside

    @property
    def images_to_go(self) -> int:
        """Training images that are left; 0 once the run has ended."""
        if self.has_ended:
            return 0
        return max(0, self.plan.spec.training.epochs * self.plan.epoch_units - self.images_done)


LONG_EPOCH_SECONDS = 30.0
"""Without a terminal, a line is written for each epoch of at least this length."""
LOG_SECONDS = 60.0
"""Without a terminal, the position in an epoch is written if no line was written for this time."""

# The displays: of a suite here, of a sweep in `sweep_progress`.


class LiveView(ABC):
    """A live display on a terminal; elsewhere, a line for each event. With `json` every Record is
    printed as a line of JSON; with `quiet` only failures and stops are printed.

    The live part is shown in the context `live`. Earlier Records of resumed runs are counted but
    not printed.
    """

    per_second = 4
    """Number of times per second that the live part is drawn."""

    def __init__(self, quiet: bool, json: bool, console: Console, clock: Callable[[], float]):
        self._quiet, self._json, self._console, self._clock = quiet, json, console, clock
        self._is_live = console.is_terminal and not quiet and not json
        self._made = time.time()
        self._began: tuple[float, int] | None = None
        """The time at which the journals were first read, and the number of runs ended by then."""
        self._last = (0.0, 0)
        """Time when a run last ended, and number of ended runs; at first equal to `_began`."""
        self.runs: list[RunState] = []
        """Runs in the order of execution."""
        self._places: dict[int, int] = {}
        """Number of a run -> its position in `runs`."""
        self.current: RunState | None = None
        """The run that made progress last."""
        self._is_driven = True

    @property
    def total(self) -> int:
        """The number of all runs, including those that have not begun."""
        return len(self.runs)

    @property
    def ended(self) -> int:
        return sum(run.has_ended for run in self.runs)

    @abstractmethod
    def view(self) -> RenderableType:
        """The live part."""

    @abstractmethod
    def heading(self, run: RunState) -> str:
        """The text with which each line about a run begins."""

    @abstractmethod
    def announce(self, run: RunState, record: Record) -> None:
        """Write a line about a new Record, if the display shows Records of this kind."""

    @abstractmethod
    def time_left(self, now: float) -> str:
        """An estimate of the time left; empty if there is none. `now` is a time of `clock`."""

    def add(self, plan: RunPlan) -> None:
        """Add a new run, or replace a run whose plan a batch search has changed."""
        place = self._places.setdefault(plan.index, len(self.runs))
        if place == len(self.runs):
            self.runs.append(RunState(plan))
        elif self.runs[place].plan.run_id != plan.run_id:
            self.runs[place] = RunState(plan)

    def poll(self, results: Results) -> None:
        """Read and show the new Records of the journals; called about twice a second."""
        for run in self.runs:
            if run.status == "finished":
                continue
            journal = results.journal_file(run.plan.run_id)
            for record in run.tail.new(journal):
                run.take(record)
                if self._began is not None or record.time >= self._made:
                    self.current = run
                    self._print(run, record)
            if run.read_position(live_file(journal)):
                self.current = run
        ended = self.ended
        if self._began is None:
            self._began = self._last = (self._clock(), ended)
        elif ended != self._last[1]:
            self._last = (self._clock(), ended)

    def pace(self) -> float | None:
        """Mean seconds between the ends of runs since the first reading; None if no run has ended
        since then."""
        (since, before), (until, ended) = self._began or self._last, self._last
        return (until - since) / (ended - before) if ended > before else None

    def _print(self, run: RunState, record: Record) -> None:
        if self._json:  # not through rich, which would wrap it
            self._console.file.write(json_line(record) + "\n")
            self._console.file.flush()
        elif not self._quiet or isinstance(record, RunFailed | RunStopped):
            self.announce(run, record)

    def write(self, run: RunState, text: str, style: str = "") -> None:
        """Write a line above the live part or, with --quiet, to stderr: stdout is for results."""
        line = Text(f"{self.heading(run)}  ")
        line.append(text, style=style)
        (stderr() if self._quiet else self._console).print(line, soft_wrap=True)

    def without_driver(self) -> None:
        """Set the status of running runs to stopped, because no process executes them any more."""
        self._is_driven = False
        for run in self.runs:
            if run.status == "running":
                run.status = "stopped"

    def totals(self) -> str:
        """The number of runs in each state, and the time left."""
        count = Counter(run.status for run in self.runs)
        to_go = self.total - len(self.runs) + count.pop("waiting", 0)
        parts = [f"{count[each]} {WORDS.get(each, each)}" for each in STYLES if count[each]]
        parts += [f"{to_go} to go"] if to_go > 0 else []
        left = self.time_left(self._clock())
        return " · ".join([*parts, left] if left else parts)

    def live(self) -> AbstractContextManager[object]:
        """A context in which the live part is drawn, if it is shown at all."""
        if not self._is_live:
            return nullcontext()
        return Live(
            get_renderable=self.view,
            console=self._console,
            refresh_per_second=self.per_second,
            transient=True,
        )


_ENDS = RunFinished | RunFailed | RunPruned | RunStopped
_ABOVE = BatchFound | SamplesSkipped | StagesMeasured | TimeShares | _ENDS
"""Records printed as lines even on a terminal, because the live part does not show them."""


class Progress(LiveView):
    """The runs of a suite, one after the other; the live part shows the current run."""

    def __init__(
        self,
        plans: Sequence[RunPlan],
        quiet: bool,
        json: bool,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(quiet, json, console, clock)
        for plan in plans:
            self.add(plan)
        self._logged = clock()
        self._spinner = Spinner("dots", style="cyan")

    def poll(self, results: Results) -> None:
        super().poll(results)
        now, run = self._clock(), self.current
        shown = self._is_live or self._json or self._quiet
        if not shown and run is not None and run.live and now - self._logged >= LOG_SECONDS:
            self._logged = now
            self.write(run, ", ".join(_facts(run)))

    def announce(self, run: RunState, record: Record) -> None:
        text = event(run, record)
        if text is None or (self._is_live and not isinstance(record, _ABOVE)):
            return
        self._logged = self._clock()
        self.write(run, text, STYLES[run.status] if isinstance(record, _ENDS) else "")

    def heading(self, run: RunState) -> str:
        return f"run {run.plan.index + 1} of {self.total}  {run.plan.title}"

    def view(self) -> RenderableType:
        rows: list[RenderableType] = []
        run = self.current
        if run is not None and run.status == "running":
            self._spinner.update(text=Text(f" {self.heading(run)}"))
            rows += [self._spinner, _epoch_bar(run)]
            if run.verdict is not None:
                style = "green" if run.verdict.passed else "red"
                rows.append(Text(f"  {gate_words(run.verdict)}", style=style))
        elif self._is_driven and any(run.images_to_go for run in self.runs):
            self._spinner.update(text="  starting workers")
            rows.append(self._spinner)
        rows.append(Text(f"  {self.totals()}", style="dim"))
        return Group(*rows)

    def time_left(self, now: float) -> str:
        """An estimate: the time that the current run still needs at its present rate, plus, for
        each waiting run, the mean time of ended runs. If no run has ended yet, the expected whole
        time of the current run replaces this mean."""
        run, each = self.current, self.pace()
        of_run = None
        if run is not None and run.status == "running" and run.rate:
            of_run = run.images_to_go / run.rate
        if each is None:
            if of_run is None or self._began is None:
                return ""
            each = now - self._began[0] + of_run
        waiting = sum(other.status == "waiting" for other in self.runs)
        if of_run is None and not waiting:
            return ""
        inside = f", {about(of_run)} in this run" if of_run is not None and waiting else ""
        return f"about {about((of_run or 0.0) + waiting * each)} left{inside}"


def about(seconds: float) -> str:
    """A duration in whole seconds, or in minutes and hours."""
    return f"{seconds:.0f} s" if seconds < 60 else human_seconds(seconds)


def _epoch_bar(run: RunState) -> RenderableType:
    row = Table.grid(padding=(0, 2))
    whole = run.plan.spec.training.epochs * run.plan.epoch_units
    bar = ProgressBar(total=whole, completed=run.images_done, width=20)
    epoch, *facts = _facts(run)
    row.add_row("", epoch, bar, *facts)
    return row


def _facts(run: RunState) -> list[str]:
    """Epoch and step, images/s, loss, and the primary metric of the last epoch, as far as known."""
    epochs, live, last = run.plan.spec.training.epochs, run.live, run.last_epoch
    facts = [f"epoch {min(run.epochs_done + 1, epochs)} of {epochs}"]
    if live is not None:
        inside = f"step {live.step:,} of {live.steps:,}"
        facts[0] += ", validation" if live.step == live.steps else f", {inside}"
    rate = live.images_per_second if live is not None and run.units_are_known else None
    if rate is None and last is not None and last.seconds > 0:
        rate = last.images / last.seconds
    facts += [] if rate is None else [f"{rate:,.0f} {run.plan.task.unit}/s"]
    loss = live.loss if live is not None else None
    if loss is None and last is not None:
        loss = last.train_loss
    facts += [] if loss is None else [f"loss {loss:.3f}"]
    facts += [] if last is None else [run.plan.task.main.words(last.validation)]
    return facts


def event(run: RunState, record: Record) -> str | None:
    """One line about a Record, or None. `run` is the run's state after the Record."""
    match record:
        case BatchFound():
            return record.words
        case RunStarted():
            if record.unread or not (record.first_step or record.first_epoch):
                return record.words
            midway = record.first_step % run.plan.steps_per_epoch
            place = f", after {midway} of its steps" if midway else ""
            return f"{record.words}{place}"
        case GateVerdict():
            return gate_words(record)
        case SamplesSkipped():
            return record.words or None
        case EpochFinished():
            return _epoch_words(run, record)
        case TimeShares() | StagesMeasured() | RunJudged():
            return record.words
        case RunFinished():
            return _end_words(run, record)
        case RunFailed():
            why = FAILED[record.reason]
            return f"failed{f' ({why})' if why else ''}: {record.message.strip()}"
        case RunPruned():
            return f"stopped early {record.words}"
        case RunStopped():
            return f"stopped ({STOPPED[record.reason]}) {record.words}"
        case _:
            return None


def _epoch_words(run: RunState, record: EpochFinished) -> str | None:
    if record.seconds + record.validation_seconds < LONG_EPOCH_SECONDS:
        return None
    rate = record.images / record.seconds if record.seconds > 0 else 0.0
    return (
        f"epoch {record.epoch + 1} of {run.plan.spec.training.epochs}: {rate:,.0f} "
        f"{run.plan.task.unit}/s, {run.plan.task.main.words(record.validation)}"
    )


def _end_words(run: RunState, record: RunFinished) -> str:
    figures, parts = run.figures.figures, []
    if figures.throughput is not None:
        parts.append(f"{figures.throughput:,.0f} {figures.task.unit}/s")
    if words := figures.task.main.words(figures.final):
        parts.append(words)
    early = " by early stopping" if record.stopped_early else ""
    return f"finished{early}: " + ", ".join([*parts, human_seconds(record.seconds)])


def gate_words(verdict: GateVerdict) -> str:
    """The gate's verdict in one line."""
    known = ", found earlier" if verdict.cached else ""
    bound = "no tolerance" if verdict.tolerance is None else f"tolerance {verdict.tolerance:.0e}"
    figures = f"error {max(verdict.error, verdict.error_batchnorm):.1e}, {bound}{known}"
    if verdict.passed:
        return f"gate passed: {figures}"
    ranks = "" if verdict.ranks_equal else "ranks disagree, "
    return f"gate failed: {ranks}{figures}"
