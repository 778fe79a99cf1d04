"""What `raysuite sweep` shows: the trials to come, and while they are made, from their journals."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from raysuite.cli.console import print_text, stdout
from raysuite.cli.progress import LiveView, RunState, Status, Tail
from raysuite.errors import SpecError
from raysuite.plan import RunPlan
from raysuite.plan.dataset import Datasets
from raysuite.plan.population import taken
from raysuite.plan.space import Values, drawn
from raysuite.plan.trials import check_space, trial_plan
from raysuite.records import (
    FAILED,
    Record,
    Results,
    RunFailed,
    RunJudged,
    RunStopped,
    SamplesSkipped,
)
from raysuite.records.live import live_file
from raysuite.records.names import key_name
from raysuite.records.sweep import Goal, TrialFigures, best, pareto, trial_figures
from raysuite.report.sweep.study import TOLD, goal_text, value_text
from raysuite.spec import Document
from raysuite.spec.search import SearchOptions
from raysuite.spec.search_check import read_search
from raysuite.spec.searchers import PbtScheduler
from raysuite.units import human_seconds

# The state of a sweep, from its trials' Records: what the live table and the log show.

ENDED: tuple[Status, ...] = ("finished", "pruned", "failed")


class TrialState:
    """One trial, from its Records so far."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.run = RunState(plan)
        self.tail = Tail()
        self._data = plan.model_dump(mode="json")
        self._records: list[Record] = []
        self._figures: TrialFigures | None = None

    def take(self, record: Record) -> None:
        """Move on by one Record."""
        self.run.take(record)
        self._records.append(record)
        self._figures = None

    @property
    def figures(self) -> TrialFigures:
        """Its results so far."""
        if self._figures is None:
            self._figures = trial_figures(self._data, self._records)
        return self._figures

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self.run.status in ENDED


class SweepState:
    """All trials that were decided so far, of `total`."""

    def __init__(self, goals: Sequence[Goal], total: int) -> None:
        self.goals = tuple(goals)
        self.total = total
        self.trials: list[TrialState] = []
        self._began: tuple[float, int] | None = None

    def add(self, plan: RunPlan) -> None:
        """One trial more, unless it is known; one whose batch was found takes its own place."""
        known = {trial.plan.index: place for place, trial in enumerate(self.trials)}
        if plan.index not in known:
            self.trials.append(TrialState(plan))
        elif self.trials[known[plan.index]].plan.run_id != plan.run_id:
            self.trials[known[plan.index]] = TrialState(plan)

    def begin(self, now: float) -> None:
        """From here on time is counted, in seconds of any one clock."""
        self._began = (now, self.ended)

    @property
    def ended(self) -> int:
        """How many trials have ended."""
        return sum(trial.has_ended for trial in self.trials)

    def counts(self) -> Counter[Status]:
        """How many trials are in each state."""
        return Counter(trial.run.status for trial in self.trials)

    def best(self) -> TrialFigures | None:
        """The best by the first goal of those that have ended."""
        return best(self._well(), self.goals[0])

    def front(self) -> list[TrialFigures]:
        """Of several goals, the trials that no other beats so far; else none."""
        return pareto(self._well(), self.goals) if len(self.goals) > 1 else []

    def _well(self) -> list[TrialFigures]:
        return [trial.figures for trial in self.trials if trial.has_ended]

    def seconds_left(self, now: float) -> float | None:
        """An estimate: as if the trials to come took as long as those that ended since `begin`;
        None before one has."""
        if self._began is None:
            return None
        since, before = self._began
        ended = self.ended - before
        if not ended:
            return None
        return max(0.0, (now - since) / ended * (self.total - self.ended))


# A sweep on a terminal: its table of trials, and a line a trial for logs.

STYLES: dict[Status, str] = {
    "finished": "green",
    "pruned": "cyan",
    "failed": "red",
    "stopped": "yellow",
    "paused": "dim",
    "waiting": "dim",
}
_WORDS: dict[Status, str] = {"pruned": "stopped early", "waiting": "starting"}
_ORDER: tuple[Status, ...] = (
    "finished",
    "pruned",
    "failed",
    "stopped",
    "running",
    "paused",
    "waiting",
)


def titles(keys: Iterable[str]) -> dict[str, str]:
    """Searched keys by their last part, or by all of it where two have the same."""
    known = tuple(keys)
    short = [*map(key_name, known)]
    return {
        key: name if short.count(name) == 1 else key for key, name in zip(known, short, strict=True)
    }


def values_words(trial: TrialFigures, keys: Mapping[str, str]) -> str:
    """`lr 0.12 · strategy ddp`."""
    return " · ".join(
        f"{title} {value_text(trial.values_now[key])}"
        for key, title in keys.items()
        if key in trial.values_now
    )


def goal_words(trial: TrialFigures, goals: Sequence[Goal]) -> str:
    """`validation accuracy 95.3 %, throughput 812 images/s`: its values of the goals."""
    told = {goal: trial.goals[goal] for goal in goals}
    return ", ".join(
        f"{TOLD[goal].words} {goal_text(goal, value)}"
        for goal, value in told.items()
        if value is not None
    )


def end_words(trial: TrialState, goals: Sequence[Goal]) -> str:
    """How a trial ended, in one line."""
    figures = trial.figures
    end = figures.figures.end
    if isinstance(end, RunFailed):
        why = FAILED[end.reason]
        return f"failed{f' ({why})' if why else ''}: {one_line(end.message)}"
    stopped = figures.figures.stopped
    if isinstance(stopped, RunStopped):
        return f"stopped {stopped.words}"
    epochs = f"{figures.epochs} epoch{'' if figures.epochs == 1 else 's'}"
    cost = f"{human_seconds(figures.worker_seconds)} of workers"
    state = _WORDS.get(trial.run.status, trial.run.status)
    return f"{state}: {', '.join(filter(None, [goal_words(figures, goals), epochs, cost]))}"


def table(state: SweepState, keys: Mapping[str, str], rows: int, width: int) -> Table:
    """The trials, at most so many: the last ones, and the best.

    A column for each key, where they fit into so many columns of the screen; else one for all.
    """
    winners = {trial.number for trial in [*state.front(), *filter(None, [state.best()])]}
    trials = _shown(state, winners, rows)
    goals: tuple[Goal, ...] = tuple(dict.fromkeys(("accuracy", *state.goals)))
    cells = [[_cell(trial.figures, key) for key in keys] for trial in trials]
    heads, cells = _fitted([*keys.values()], cells, width - _FIXED - _GOAL * len(goals))
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    shown.add_column("Trial", justify="right", no_wrap=True, min_width=5)
    for head in heads:
        shown.add_column(head, no_wrap=True)
    shown.add_column("Epoch", justify="right", no_wrap=True, min_width=5)
    for goal in goals:
        shown.add_column(_HEADS[goal], justify="right", no_wrap=True, min_width=8)
    shown.add_column("State", no_wrap=True, min_width=len("stopped early"))
    for trial, values in zip(trials, cells, strict=True):
        figures = trial.figures
        best = figures.number in winners
        shown.add_row(
            f"{'*' if best else ''}{figures.number}",
            *values,
            f"{trial.run.epoch_text}/{trial.plan.spec.training.epochs}",
            *(goal_text(goal, figures.goals[goal]) for goal in goals),
            _WORDS.get(trial.run.status, trial.run.status),
            style="bold" if best else STYLES.get(trial.run.status, ""),
        )
    return shown


_LEAST, _GAP = 6, 3
_GOAL = 8 + _GAP
_FIXED = sum(len(word) + _GAP for word in ("Trial", "Epoch", "stopped early"))
"""Columns of the screen: a key at least, the gap between two, a goal, what every table has."""


def _cell(trial: TrialFigures, key: str) -> str:
    """A value, short enough for a table."""
    if key not in trial.values_now:
        return "–"
    value = trial.values_now[key]
    return f"{value:.3g}" if isinstance(value, float) else value_text(value)


def _fitted(
    heads: list[str], cells: list[list[str]], width: int
) -> tuple[list[str], list[list[str]]]:
    """Columns in so many columns of the screen: as they are, with heads that are cut, or as one."""
    widths = [max([_LEAST, *map(len, column)]) for column in zip(*cells, strict=True)]
    cut = [_cut(head, wide) for head, wide in zip(heads, widths, strict=True)]
    for tried in (heads, cut):
        wanted = zip(tried, widths, strict=True)
        if sum(max(len(head), wide) + _GAP for head, wide in wanted) <= width:
            return tried, cells
    most = max(width - _GAP, _LEAST)
    return [_cut(" · ".join(heads), most)], [[_cut(" · ".join(values), most)] for values in cells]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


_HEADS: dict[Goal, str] = {
    "accuracy": "Accuracy",
    "time_to_accuracy": "To target",
    "throughput": "Images/s",
}


def _shown(state: SweepState, winners: set[int], rows: int) -> list[TrialState]:
    """Trials under way go before those that ended, late ones before early ones."""
    by_weight = sorted(
        state.trials,
        key=lambda t: (t.plan.index in winners, not t.has_ended, t.plan.index),
        reverse=True,
    )
    return sorted(by_weight[: max(1, rows)], key=lambda trial: trial.plan.index)


def best_words(state: SweepState, keys: Mapping[str, str]) -> str:
    """The best so far, or the Pareto front; empty before there is one."""
    front = state.front()
    if len(front) > 1:
        numbers = ", ".join(str(trial.number) for trial in front)
        return f"Pareto front so far (*): trials {numbers}"
    best = front[0] if front else state.best()
    if best is None:
        return ""
    reached = goal_words(best, state.goals)
    return f"best so far (*): trial {best.number}, {reached}, with {values_words(best, keys)}"


def totals(state: SweepState, left: float | None) -> str:
    """How many trials are in which state, and an estimate of the time left."""
    count = state.counts()
    parts = [f"{count[s]} {_WORDS.get(s, s)}" for s in _ORDER if count[s]]
    to_go = state.total - len(state.trials)
    parts += [f"{to_go} to go"] if to_go > 0 else []
    if left is not None and state.ended < state.total:
        time = f"{left:.0f} s" if left < 60 else human_seconds(left)
        parts.append(f"about {time} left (an estimate)")
    return " · ".join(parts)


def one_line(text: str) -> str:
    """The first line that is not blank."""
    return next((line for line in text.splitlines() if line.strip()), "")


_AROUND = 8
"""Lines of the screen that the table leaves free, for its head and for the lines below it."""


class SweepProgress(LiveView):
    """A live table on a terminal, a line a trial elsewhere, JSON lines, or failures only.

    `poll` is called about twice a second. Records that lay in the results folder before this
    object was made (a sweep resumed) are counted and not announced.
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
            trial.run.look(live_file(results.journal_file(trial.plan.run_id)))
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
        """The live part: the trials, the best so far, and the state of the sweep."""
        rows = self._console.size.height - _AROUND
        parts: list[RenderableType] = []
        if self.state.trials:
            parts.append(table(self.state, self._keys, rows, self._console.width))
        parts += [
            Text(words, style="bold") for words in [best_words(self.state, self._keys)] if words
        ]
        parts.append(Text(self.totals() or "starting", style="dim"))
        return Group(*parts)

    def totals(self) -> str:
        """How many trials are in which state, and the time left."""
        return totals(self.state, self.state.seconds_left(self._clock()))


# `raysuite sweep --dry-run`: what would be tried, before anything is.

_FORESEEN = ("random", "grid")
"""Search algorithms whose trials do not depend on the results of others."""


@dataclass(frozen=True)
class Foreseen:
    """What will be tried: a plan, or why there is none of these values."""

    values: Values
    plan: RunPlan | None
    why_not: str = ""


def foresee(document: Document, search: SearchOptions, gpus: int | None = None) -> list[Foreseen]:
    """The trials of `random` or `grid`, in their order; of other search algorithms none. `gpus` is
    the number of GPUs of the cluster; None counts those of this machine.

    Raises SpecError where all of them are invalid.
    """
    found: list[Foreseen] = []
    first: SpecError | None = None
    seen, made = Datasets(), 0
    if search.searcher.name not in _FORESEEN:
        return found
    for values in drawn(search, search.seed):
        try:
            plan = trial_plan(document, values, made, gpus, seen)
        except SpecError as error:
            first = first or error
            found.append(Foreseen(values, None, "; ".join(str(error).splitlines())))
            continue
        made += 1
        found.append(Foreseen(values, plan))
    if first is not None and not made:
        raise first
    return found


def dry_run(document: Document, as_json: bool, gpus: int | None = None) -> None:
    """Print the trials of a sweep, or its space where they are decided on the way; `gpus` as
    `foresee`."""
    search = read_search(document)
    check_space(document, search)
    trials = foresee(document, search, gpus)
    if as_json:
        data = {"search": search.model_dump(mode="json"), "trials": [_data(t) for t in trials]}
        print_text(json.dumps(data, indent=2))
        return
    keys = titles(search.space)
    stdout().print(_trials(trials, keys) if trials else _space(search))
    for line in _summary(search, trials):
        print_text(line)


def population_words(scheduler: PbtScheduler, trials: int) -> str:
    """What population-based training does with so many trials."""
    few, epochs = taken(scheduler, trials), scheduler.interval_epochs
    every = "every epoch" if epochs == 1 else f"every {epochs} epochs"
    if few == 1:
        return f"after {every} the worst takes the weights of the best, and other values"
    return f"after {every} the worst {few} take the weights of the best {few}, and other values"


def _data(trial: Foreseen) -> dict[str, Any]:
    plan = None if trial.plan is None else trial.plan.model_dump(mode="json")
    return {"values": trial.values, "plan": plan, "why_not": trial.why_not}


def _trials(trials: list[Foreseen], keys: dict[str, str]) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for title in ("Trial", *keys.values(), "Workers", "Batch", "Steps"):
        shown.add_column(title, justify="left" if title in keys.values() else "right")
    for trial in trials:
        values = [value_text(trial.values[k]) if k in trial.values else "–" for k in keys]
        plan = trial.plan
        given = plan is not None and (plan.batch_is_given or not plan.undecided)
        numbers = (
            ["–", "–", "cannot be"]
            if plan is None
            else [
                str(plan.workers),
                str(plan.global_batch) if given else "auto",
                str(plan.total_steps) if given else "auto",
            ]
        )
        shown.add_row("–" if plan is None else str(plan.index), *values, *numbers)
    return shown


def _space(search: SearchOptions) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for title in ("Key", "Distribution", "When"):
        shown.add_column(title)
    for key, dimension in search.space.items():
        values = ", ".join(map(value_text, dimension.arguments))
        when = " and ".join(f"{other} is {wanted}" for other, wanted in dimension.when.items())
        shown.add_row(key, f"{dimension.kind} {values}", when)
    return shown


def _summary(search: SearchOptions, trials: list[Foreseen]) -> list[str]:
    searcher, scheduler = search.searcher.name, search.scheduler.name
    made = sum(trial.plan is not None for trial in trials)
    number = f"{made} trials" if trials else f"at most {search.trials} trials"
    limit = "no deadline" if search.deadline_s is None else f"at most {search.deadline_s:g} s each"
    early = "" if scheduler == "none" else f", which {scheduler} may stop early"
    if isinstance(search.scheduler, PbtScheduler):
        early = f", a population; {population_words(search.scheduler, made)}"
    how = "" if trials else f", decided on the way by {searcher}"
    lines = [f"{number}{how}{early}; {limit}; goal: {' and '.join(search.wanted)}"]
    return lines + [f"cannot be: {trial.why_not}" for trial in trials if trial.plan is None]
