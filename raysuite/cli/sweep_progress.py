"""The display of `raysuite sweep`: planned trials, and the progress of running trials."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from raysuite.cli.console import print_json, print_text, stdout, table
from raysuite.cli.progress import STYLES, WORDS, LiveView, RunState, about, event
from raysuite.errors import SpecError
from raysuite.plan import RunPlan
from raysuite.plan.dataset import Datasets
from raysuite.plan.space import MOST_LEFT_OUT, Values, drawn, draws_replacements
from raysuite.plan.trials import check_space, idle_parts, trial_plan
from raysuite.records import (
    Record,
    Results,
    RunFailed,
    RunFinished,
    RunJudged,
    RunPruned,
    RunStopped,
    SamplesSkipped,
)
from raysuite.records.names import key_names
from raysuite.records.sweep import TrialFigures, best, pareto
from raysuite.report.sweep.study import goal_text, told, value_text
from raysuite.spec import Document
from raysuite.spec.search import QUALITY, TIMES, Goal, SearchOptions, goals_of
from raysuite.spec.search_check import read_search
from raysuite.spec.tasks import CLASSIFICATION, TaskFacts
from raysuite.units import count, human_seconds


def _head(goal: Goal, task: TaskFacts) -> str:
    if goal in TIMES:
        return "To target"
    return task.main.title if goal in QUALITY else f"{task.unit.capitalize()}/s"


_LEAST, _GOAL = 11, 11
_FIXED = len("Trial   Epoch   stopped early   ")
"""Widths in characters: the least width of a key's column, the least width of a goal's column, and
the total width of all other columns."""
_AROUND = 8
"""Number of screen lines that the table's rows leave free for its heading and the lines below."""


class SweepProgress(LiveView):
    """Displays the trials of a sweep: a live table, the best trial so far, and the totals."""

    per_second = 2

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
        super().__init__(quiet, json, console, clock)
        self._keys, self._goals, self._total = key_names(keys), tuple(goals), total
        self._best: TrialFigures | None = None

    @property
    def total(self) -> int:
        return self._total

    def best(self) -> TrialFigures | None:
        """The ended trial that is best in the first goal; None if no trial has a value of it."""
        return best((run.figures for run in self.runs if run.has_ended), self._goals[0])

    def front(self) -> list[TrialFigures]:
        """The ended trials that no other trial dominates; empty if there is only one goal."""
        ended = [run.figures for run in self.runs if run.has_ended]
        return pareto(ended, self._goals) if len(self._goals) > 1 else []

    def poll(self, results: Results) -> None:
        is_first = self._began is None
        super().poll(results)
        if is_first:
            self._best = self.best()

    def time_left(self, now: float) -> str:
        """Text on the time until the last trial ends, estimated from the mean time between the ends
        of trials since this display began; empty if none has ended since then."""
        pace, to_come = self.pace(), self.total - self.ended
        return "" if pace is None or not to_come else f"about {about(pace * to_come)} left"

    def heading(self, run: RunState) -> str:
        place = f"{self.ended} of {self.total}"
        return f"{place}  trial {run.plan.index}  {self._values(run.figures)}"

    def announce(self, run: RunState, record: Record) -> None:
        match record:
            case RunFinished() | RunPruned():
                text = self._end(run)
            case RunStopped(reason="interval") | RunJudged(source=None):
                return
            case RunFailed() | RunStopped() | RunJudged() | SamplesSkipped():
                text = (event(run, record) or "").partition("\n")[0]
            case _:
                return
        if text:
            in_passing = isinstance(record, RunJudged | SamplesSkipped)
            self.write(run, text, "" if in_passing else STYLES[run.status])

    def _end(self, run: RunState) -> str:
        """Text on how a trial with a result ended, and whether it is the best so far."""
        figures, state = run.figures, WORDS.get(run.status, run.status)
        epochs = count(figures.epochs, "epoch")
        cost = f"{human_seconds(figures.worker_seconds)} of workers"
        parts = [part for part in (self._reached(figures), epochs, cost) if part]
        before, self._best = self._best, self.best()
        if self._best is not None and (before is None or before.number != self._best.number):
            parts.append("the best so far")
        return f"{state}: {', '.join(parts)}"

    def _reached(self, trial: TrialFigures) -> str:
        """A trial's value of each goal: `validation accuracy 95.3 %, throughput 812 images/s`."""
        task = trial.figures.task
        return ", ".join(
            f"{told(goal, task).words} {goal_text(goal, value, task)}"
            for goal in self._goals
            if (value := trial.goals.get(goal)) is not None
        )

    def _values(self, trial: TrialFigures) -> str:
        """A trial's values: `lr 0.12 · strategy ddp`."""
        return " · ".join(
            f"{title} {value_text(trial.values_now[key])}"
            for key, title in self._keys.items()
            if key in trial.values_now
        )

    def view(self) -> RenderableType:
        parts: list[RenderableType] = []
        if self.runs:
            size = self._console.size
            parts.append(self.trials_table(size.height - _AROUND, size.width))
        if best := self._best_so_far():
            parts.append(Text(best, style="bold"))
        parts.append(Text(self.totals(), style="dim"))
        return Group(*parts)

    def _best_so_far(self) -> str:
        """Text on the best trial so far, or on the Pareto front; empty without ended trials."""
        front = self.front()
        if len(front) > 1:
            numbers = ", ".join(str(trial.number) for trial in front)
            return f"Pareto front so far (*): trials {numbers}"
        best = front[0] if front else self.best()
        if best is None:
            return ""
        reached, values = self._reached(best), self._values(best)
        return f"best so far (*): trial {best.number}, {reached}, with {values}"

    def trials_table(self, rows: int, width: int) -> Table:
        """A table of at most `rows` trials: the best, the running and the latest trials.

        Each key has a column if all columns fit into `width` characters; otherwise all keys share
        one column.
        """
        winners = {trial.number for trial in [*self.front(), *filter(None, [self.best()])]}
        by_weight = sorted(
            self.runs,
            key=lambda run: (run.plan.index in winners, not run.has_ended, run.plan.index),
            reverse=True,
        )
        shown = sorted(by_weight[: max(1, rows)], key=lambda run: run.plan.index)
        task = next((run.plan.task for run in self.runs), CLASSIFICATION)
        quality = goals_of(task == CLASSIFICATION)[0]
        goals: tuple[Goal, ...] = tuple(dict.fromkeys((quality, *self._goals)))
        heads = [*self._keys.values()]
        cells = [[_cell(run.figures, key) for key in self._keys] for run in shown]
        if width < _FIXED + _GOAL * len(goals) + _LEAST * len(heads):
            heads, cells = [" · ".join(heads)], [[" · ".join(values)] for values in cells]
        made = table((), ())
        made.add_column("Trial", justify="right", no_wrap=True, min_width=5)
        for head in heads:
            made.add_column(_in_one_line(head))
        made.add_column("Epoch", justify="right", no_wrap=True, min_width=5)
        for goal in goals:
            made.add_column(_head(goal, task), justify="right", no_wrap=True, min_width=8)
        made.add_column("State", no_wrap=True, min_width=len("stopped early"))
        for run, values in zip(shown, cells, strict=True):
            is_best = run.plan.index in winners
            made.add_row(
                f"{'*' if is_best else ''}{run.plan.index}",
                *map(_in_one_line, values),
                f"{run.epoch_text}/{run.plan.spec.training.epochs}",
                *(goal_text(goal, run.figures.goals.get(goal), task) for goal in goals),
                WORDS.get(run.status, run.status),
                style="bold" if is_best else STYLES[run.status],
            )
        return made


def _cell(trial: TrialFigures, key: str) -> str:
    if key not in trial.values_now:
        return "–"
    value = trial.values_now[key]
    return f"{value:.3g}" if isinstance(value, float) else value_text(value)


def _in_one_line(text: str) -> Text:
    """`text` in one line; if it does not fit into its column, it ends with an ellipsis."""
    return Text(text, no_wrap=True, overflow="ellipsis")


# `raysuite sweep --dry-run`: the trials that would be made.

_INDEPENDENT = ("random", "grid")
"""Search algorithms that choose a trial without the results of other trials."""


@dataclass(frozen=True)
class PlannedTrial:
    """A drawn trial of a sweep: its plan, or the reason why its values are infeasible."""

    values: Values
    plan: RunPlan | None
    why_not: str = ""


def planned_trials(
    document: Document, search: SearchOptions, gpus: int | None = None
) -> list[PlannedTrial]:
    """The trials that a sweep by `random` or `grid` draws, in the order of the draws, with the
    infeasible ones; empty for other search algorithms. `gpus` is the number of GPUs of the cluster;
    None: the number of GPUs of this machine.

    Raises SpecError if all drawn trials are infeasible.
    """
    found: list[PlannedTrial] = []
    first: SpecError | None = None
    seen, made, left_out = Datasets(), 0, 0
    if search.searcher.name not in _INDEPENDENT:
        return found
    replaces = draws_replacements(search)
    for values in drawn(search, sys.maxsize):
        if replaces and (made == search.trials or left_out == MOST_LEFT_OUT):
            break
        try:
            plan = trial_plan(document, values, made, gpus, seen)
        except SpecError as error:
            first, left_out = first or error, left_out + 1
            found.append(PlannedTrial(values, None, "; ".join(str(error).splitlines())))
            continue
        made, left_out = made + 1, 0
        found.append(PlannedTrial(values, plan))
    if first is not None and not made:
        raise first
    return found


def print_expected(document: Document, as_json: bool, gpus: int | None = None) -> None:
    """Print the trials of a sweep or, if they are chosen during the sweep, their maximum number.
    `gpus`: see `planned_trials`."""
    search = read_search(document)
    check_space(document, search)
    trials = planned_trials(document, search, gpus)
    if as_json:
        print_json(
            {"search": search.model_dump(mode="json"), "trials": [_data(each) for each in trials]}
        )
        return
    if trials:
        stdout().print(_trials(trials, key_names(search.space)))
    for line in (*_summary(search, trials), *idle_parts(document, search)):
        print_text(line)


def _data(trial: PlannedTrial) -> dict[str, Any]:
    plan = None if trial.plan is None else trial.plan.model_dump(mode="json")
    return {"values": trial.values, "plan": plan, "why_not": trial.why_not}


def _trials(trials: list[PlannedTrial], keys: dict[str, str]) -> Table:
    rows = []
    for trial in trials:
        plan = trial.plan
        values = [value_text(trial.values[k]) if k in trial.values else "–" for k in keys]
        number, workers, batch, steps = "–", "–", "–", "not possible"
        if plan is not None:
            number, workers, batch, steps = str(plan.index), str(plan.workers), "auto", "auto"
            if plan.batch_is_given or not plan.undecided:
                batch, steps = str(plan.global_batch), str(plan.total_steps)
        rows.append((number, *values, workers, batch, steps))
    figures = ("Workers", "Batch", "Steps")
    return table(("Trial", *keys.values(), *figures), rows, ("Trial", *figures))


def _summary(search: SearchOptions, trials: list[PlannedTrial]) -> list[str]:
    made = sum(trial.plan is not None for trial in trials)
    by = f"{search.searcher.name}, scheduler {search.scheduler.name}"
    number = (
        f"{made} trials" if trials else f"at most {search.trials} trials, chosen during the sweep"
    )
    limit = "no deadline" if search.deadline_s is None else f"at most {search.deadline_s:g} s each"
    lines = [f"{number}, by {by}; {limit}; goal: {' and '.join(search.wanted)}"]
    return lines + [f"not possible: {trial.why_not}" for trial in trials if trial.plan is None]
