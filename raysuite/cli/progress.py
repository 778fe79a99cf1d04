"""What `raysuite run` shows while it runs, drawn from the runs' journals alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import get_args

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from raysuite.cli.live import LiveView
from raysuite.cli.run_state import RunState, Status, TimeLeft
from raysuite.cli.tail import Tail
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
    RunFinished,
    RunJudged,
    RunPruned,
    RunStarted,
    RunStopped,
    SamplesSkipped,
    TimeShares,
)
from raysuite.units import human_seconds

LONG_EPOCH_SECONDS = 30.0
"""Without a terminal, epochs are worth a line each only from this length on."""

_STYLES = {RunFinished: "green", RunFailed: "red", RunPruned: "cyan", RunStopped: "yellow"}


class Progress(LiveView):
    """A live display on a terminal, a line an event elsewhere, JSON lines, or errors only.

    `poll` is called about twice a second. Records that lay in the results folder before this
    object was made (a run taken up again) are counted and not announced.
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
            return f"taken up again at epoch {record.first_epoch + 1}{place}"
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
