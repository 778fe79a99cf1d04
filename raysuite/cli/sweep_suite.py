"""A sweep from the command line: begun or resumed, shown, stopped, reported."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.table import Table

from raysuite.cli import console
from raysuite.cli.console import print_text, stdout
from raysuite.cli.run_options import gpus_before
from raysuite.cli.run_request import (
    Request,
    Tracking,
    listener,
    registered,
    say_how_to_go_on,
    say_stopped,
    say_what_changed,
    write_report,
)
from raysuite.cli.sweep_progress import SweepProgress, titles
from raysuite.cluster.folder import current_folder
from raysuite.cluster.suites import sole_driver
from raysuite.errors import SpecError
from raysuite.plan.dataset import Datasets
from raysuite.plan.population import taken
from raysuite.plan.run_plan import RunPlan
from raysuite.plan.space import Values, count, drawn
from raysuite.plan.sweep import check_retry, create_sweep, latest_sweep, sweep_document
from raysuite.plan.trials import check_space, trial_plan
from raysuite.records import Results
from raysuite.records.sweep import trials
from raysuite.report.sweep.study import value_text
from raysuite.spec import Document, read_document
from raysuite.spec.search import SearchOptions
from raysuite.spec.search_check import read_search
from raysuite.spec.searchers import PbtScheduler

if TYPE_CHECKING:
    from raysuite.orchestrate.cluster import Capacity
    from raysuite.orchestrate.stopping import StopWatch
    from raysuite.train.stopping import Stop

# `raysuite sweep --dry-run`: what would be tried, before anything is.

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


def carry_out(request: Request) -> None:
    """Make the trials. Raises UserError, and Exit where none of them gave a result."""
    request.check()
    from raysuite.orchestrate import suite
    from raysuite.orchestrate.stopping import StopWatch

    results, document = _taken_up(request)
    resume = results is not None
    if results is None:  # mistakes are told before Ray is started
        _check(document, gpus_before(request.address))
    elif request.retry_failed:
        check_retry(document)
        with sole_driver(results.folder):
            suite.forget_failures(suite.planned(results), results)
    cluster = current_folder()
    tracking = Tracking(request.tracking_uri) if request.mlflow else None
    try:
        with ExitStack() as kept:
            with StopWatch(cluster, request.stop_within_s) as watch:
                with suite.connect(request.address) as capacity:
                    if results is None:
                        if request.address:  # any number of GPUs was counted on
                            foresee(document, read_search(document), int(capacity.gpus))
                        results = create_sweep(document, request.root)
                    kept.enter_context(sole_driver(results.folder))
                    kept.enter_context(registered(cluster, results, request, watch))
                    stop = _run(request, document, results, capacity, tracking, watch, resume)
                if stop is not None:
                    kept.close()
                    raise typer.Exit(say_stopped(request.verb, results, stop, tracking))
            write_report(results, request)
            if tracking:
                tracking.sync(results)
                tracking.register(results, request.silent)
    except KeyboardInterrupt:
        if results is not None:
            say_how_to_go_on(request.verb, results)
        raise
    if not any(trial.counts for trial in trials(results)):
        raise typer.Exit(1)


def _taken_up(request: Request) -> tuple[Results | None, Document]:
    """The results to resume, if any, and the sweep's document: of those, as it began."""
    if request.resume_from is not None:
        results = Results.open(request.resume_from.absolute())
        return results, sweep_document(results)
    assert request.spec is not None
    document = read_document(request.spec, request.overrides, request.scale)
    read_search(document)
    if not request.resume:
        return None, document
    results = latest_sweep(document, request.root)
    say_what_changed(results, document)
    return results, sweep_document(results)


def _check(document: Document, gpus: int | None) -> None:
    """Raise SpecError for what can be told before Ray is asked."""
    from raysuite.orchestrate.sweep.search_algorithms import search_algorithm_of

    search = read_search(document)
    search_algorithm_of(search)
    check_space(document, search)
    foresee(document, search, gpus)


def _run(
    request: Request,
    document: Document,
    results: Results,
    capacity: Capacity,
    tracking: Tracking | None,
    watch: StopWatch,
    resume: bool,
) -> Stop | None:
    from raysuite.orchestrate import suite, sweep

    results.add_command(request.command())
    if not request.silent:
        console.print_text(f"results: {results.folder}")
    search = read_search(document)
    total = count(search, search.seed)
    view = SweepProgress(
        search.space, search.wanted, total, request.quiet, request.as_json, console.stdout()
    )
    with view as progress:
        for plan in suite.planned(results) if resume else ():
            progress.add(plan)
        progress.poll(results)
        if tracking:
            tracking.ready()  # before the first measurement, not beside it

        def poll() -> None:
            progress.poll(results)
            if tracking:
                tracking.follow(results, progress.state.ended)

        hear = replace(listener(progress, results, tracking, watch), poll=poll)
        return sweep.run(document, results, capacity, hear, resume)
