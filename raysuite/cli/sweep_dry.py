"""`raysuite sweep --dry-run`: what would be tried, before anything is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from raysuite.cli.console import print_text, stdout
from raysuite.cli.sweep_words import titles
from raysuite.errors import SpecError
from raysuite.plan.dataset import Datasets
from raysuite.plan.population import taken
from raysuite.plan.run_plan import RunPlan
from raysuite.plan.space import Values, drawn
from raysuite.plan.trials import check_space, trial_plan
from raysuite.report.sweep.study import value_text
from raysuite.spec import Document
from raysuite.spec.search import SearchOptions
from raysuite.spec.search_check import read_search
from raysuite.spec.searchers import PbtScheduler

_FORESEEN = ("random", "grid")
"""Searchers whose trials do not depend on what the others reach."""


@dataclass(frozen=True)
class Foreseen:
    """What will be tried: a plan, or why there is none of these values."""

    values: Values
    plan: RunPlan | None
    why_not: str = ""


def foresee(document: Document, search: SearchOptions, gpus: int | None = None) -> list[Foreseen]:
    """The trials of a searcher that learns nothing, in their order; of others none. `gpus` is the
    number of GPUs of the cluster; None looks at this machine.

    Raises SpecError where no single one of them can be.
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
