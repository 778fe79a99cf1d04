"""Find batch sizes by trial before the runs, on workers with the same resources as in the runs."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from raysuite.errors import RunError
from raysuite.orchestrate import stopping
from raysuite.orchestrate.controller import DeadlineError
from raysuite.orchestrate.groups import make_trainer
from raysuite.orchestrate.leaving_nodes import reporting
from raysuite.orchestrate.suite import Listener, fit
from raysuite.plan import RunPlan, groups
from raysuite.plan.batch_candidates import outcome, same_search, search_of
from raysuite.records import Results, RunFailed
from raysuite.records.batch_trials import BatchFound, TriedFile
from raysuite.train.stop_together import Stop

_SEARCH = "raysuite.orchestrate.worker:search_group"


@dataclass(frozen=True)
class Decision:
    """The plans, in which the sizes found by the searches replace `auto`, and the results of the
    searches."""

    plans: list[RunPlan]
    found: dict[str, BatchFound] = field(default_factory=dict)
    """Run id -> Record of the result of the search, to be written into the run's journal."""
    stop: Stop | None = None
    """The request that stopped the search, if any; `plans` are then the given plans, unchanged."""


def decide(
    plans: Sequence[RunPlan],
    root: Path,
    nodes: int,
    listener: Listener,
    deadline: float | None = None,
) -> Decision:
    """Find the batch size of every plan whose spec gives it as `auto`; plans for which
    `same_search` returns the same key share one search.

    The search uses workers with the same resources as in the runs, on a cluster of `nodes` nodes.
    It writes its trials below `root`, where workers can write, and removes them at its end.
    `deadline`: time at which the search must end, in seconds since 1970.

    Raises NothingFitsError if not even the smallest size fits into memory, DeadlineError at the
    deadline, and RunError if a search fails for any other reason.
    """
    wishes: dict[str, RunPlan] = {}
    for plan in plans:
        if plan.undecided:
            wishes.setdefault(same_search(plan), plan)
    if not wishes:
        return Decision(list(plans))
    root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".batches-", dir=root.absolute()))
    try:
        seconds: dict[str, float] = {}
        for group in groups(list(wishes.values()), one_node=nodes == 1):
            began = time.monotonic()
            if stop := _search(group, folder, nodes, listener, deadline):
                return Decision(list(plans), stop=stop)
            for plan in group:
                seconds[plan.run_id] = (time.monotonic() - began) / len(group)
        made: list[RunPlan] = []
        found: dict[str, BatchFound] = {}
        for plan in plans:
            if plan.undecided:
                wish = wishes[same_search(plan)]
                tried = tried_file(folder, wish).read()
                plan, record = outcome(plan, tried, seconds[wish.run_id])
                found[plan.run_id] = record
            made.append(plan)
        return Decision(made, found)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _search(
    group: Sequence[RunPlan], folder: Path, nodes: int, listener: Listener, deadline: float | None
) -> Stop | None:
    """Search for the batch sizes of plans that share workers; return the request to stop that ended
    the search, if any."""
    results = Results(folder)
    stopping.request_stop(folder, None)
    reported = {plan.run_id: 0 for plan in group}

    def report_new() -> None:
        for plan in group:
            ended = tried_file(folder, plan).ended()
            for each in ended[reported[plan.run_id] :]:
                listener.say(f"{plan.title}: {each.words}")
            reported[plan.run_id] = len(ended)

    with reporting(nodes, listener.say):
        while left := [plan for plan in group if _has_next(plan, folder)]:
            if stop := listener.requested_stop():
                return stop
            before = [len(tried_file(folder, plan).read()) for plan in left]
            for plan in left:
                results.journal_file(plan.run_id).unlink(missing_ok=True)
            trainer = make_trainer(
                [_once(plan) for plan in left], folder, deadline=deadline, work=_SEARCH
            )
            error, stop = fit(trainer, results, replace(listener, poll=report_new))
            report_new()
            if stop is not None:
                return stop
            if isinstance(error, DeadlineError):
                raise error
            _raise_others(left, results)
            if [len(tried_file(folder, plan).read()) for plan in left] == before:
                why = str(error).strip().splitlines()[-1] if error and str(error).strip() else ""
                raise RunError(f"{left[0].title}: the search for its batch size failed: {why}")
    return None


def _has_next(plan: RunPlan, folder: Path) -> bool:
    return search_of(plan, tried_file(folder, plan).read()).next() is not None


def _once(plan: RunPlan) -> RunPlan:
    """The plan without a profile and without retries, so that a size that did not fit is not tried
    again."""
    resources = plan.spec.resources.model_copy(update={"retries": 0})
    measure = plan.spec.measure.model_copy(update={"profile": "off"})
    spec = plan.spec.model_copy(update={"resources": resources, "measure": measure})
    return plan.model_copy(update={"spec": spec})


def _raise_others(plans: Sequence[RunPlan], results: Results) -> None:
    """Raise RunError if an error or a lost node ended a search; if a size did not fit into memory,
    the search continues."""
    for plan in plans:
        end = results.end_of(plan.run_id)
        if isinstance(end, RunFailed) and end.reason in ("error", "node_lost"):
            raise RunError(f"{plan.title}: the search for its batch size failed: {end.message}")


def tried_file(folder: Path, plan: RunPlan) -> TriedFile:
    """The file with the trials of a plan's batch sizes, in the folder of a search."""
    return TriedFile(Results(folder).journal_file(plan.run_id).with_name("tried.jsonl"))
