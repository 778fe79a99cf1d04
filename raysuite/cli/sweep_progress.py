"""What `raysuite sweep` shows while trials are made, drawn from their journals alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from raysuite.cli.live import LiveView
from raysuite.cli.sweep_state import SweepState, TrialState
from raysuite.cli.sweep_words import (
    STYLES,
    best_words,
    end_words,
    table,
    titles,
    totals,
    values_words,
)
from raysuite.plan import RunPlan
from raysuite.records import (
    Record,
    Results,
    RunFailed,
    RunJudged,
    RunStopped,
    SamplesSkipped,
)
from raysuite.records.sweep import Goal

_AROUND = 8
"""Lines of the screen that the table leaves to its head and to what stands below it."""


class SweepProgress(LiveView):
    """A live table on a terminal, a line a trial elsewhere, JSON lines, or failures only.

    `poll` is called about twice a second. Records that lay in the results folder before this
    object was made (a sweep taken up again) are counted and not announced.
    """

    def __init__(
        self,
        keys: Iterable[str],
        goals: Sequence[Goal],
        total: int,
        quiet: bool,
        json: bool,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(quiet, json, console, per_second=2)
        self.state = SweepState(goals, total)
        self._keys = titles(keys)
        self._clock = clock
        self._made = time.time()
        self._polled = False
        self._best: int | None = None

    def add(self, plan: RunPlan) -> None:
        """One trial more."""
        self.state.add(plan)

    def poll(self, results: Results) -> None:
        """Take in what the journals gained, and show it."""
        for trial in list(self.state.trials):
            if trial.has_ended:
                continue
            for record in trial.tail.new(results.journal_file(trial.plan.run_id)):
                trial.take(record)
                if self._polled or record.time >= self._made:
                    self._announce(trial, record)
        if not self._polled:
            self._polled = True
            self.state.begin(self._clock())
            best = self.state.best()
            self._best = None if best is None else best.number

    def _announce(self, trial: TrialState, record: Record) -> None:
        if self._json:
            self._write_json(record)
            return
        if isinstance(record, SamplesSkipped) and record.words and not self._quiet:
            self._say(trial, record.words, "")
        if isinstance(record, RunJudged) and record.source is not None and not self._quiet:
            self._say(trial, record.words, "")
        if not trial.has_ended and not (
            isinstance(record, RunStopped) and trial.run.status == "stopped"
        ):
            return
        if self._quiet and not isinstance(record, RunFailed | RunStopped):
            return
        self._say(
            trial,
            end_words(trial, self.state.goals) + self._news(),
            STYLES.get(trial.run.status, ""),
        )

    def _news(self) -> str:
        """Words on a new best."""
        best = self.state.best()
        if best is None or best.number == self._best:
            return ""
        self._best = best.number
        return ", the best so far"

    def _say(self, trial: TrialState, words: str, style: str) -> None:
        figures = trial.figures
        place = f"{self.state.ended} of {self.state.total}"
        line = Text(f"{place}  trial {figures.number}  {values_words(figures, self._keys)}  ")
        line.append(words, style=style)
        self._write(line)

    def view(self) -> RenderableType:
        """The live part: the trials, the best so far, and where the whole stands."""
        rows = self._console.size.height - _AROUND
        parts: list[RenderableType] = []
        if self.state.trials:
            parts.append(table(self.state, self._keys, rows, self._console.width))
        parts += [
            Text(words, style="bold") for words in [best_words(self.state, self._keys)] if words
        ]
        left = self.state.seconds_left(self._clock())
        parts.append(Text(totals(self.state, left) or "starting", style="dim"))
        return Group(*parts)
