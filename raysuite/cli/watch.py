"""`raysuite watch`: display the runs of another process live, here or on a cluster."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysuite.cli.console import print_text, stdout

if TYPE_CHECKING:
    from raysuite.cli.progress import LiveView
    from raysuite.records import Results

_POLL_S = 0.5
_SILENT_S = 30.0
"""Seconds. A run without a driver (such as under torchrun) counts as running if its files changed
within this time."""


def watch(
    results: Annotated[
        Path,
        typer.Argument(
            metavar="RESULTS",
            help="Results folder, or a folder above it, in which the newest results are used.",
        ),
    ] = Path("results"),
    once: Annotated[bool, typer.Option("--once", help="Print the current state and exit.")] = False,
) -> None:
    """Show the progress of runs or trials of another process, until they have ended.

    Only the results folder is read, so this command works on every machine that can read the
    folder: in another terminal, or on a cluster's login node. Ctrl-C ends the display but not the
    runs.

    The exit code is 0 when all runs have finished, 1 when a run failed, 75 when runs were stopped;
    with --once it is also 0 while runs are executed.

    \b
    Examples:
      raysuite watch
      raysuite watch results/quickstart
      raysuite watch /shared/results/imagenet/20261122-101500 --once
    """
    from raysuite.cluster.suites import has_driver
    from raysuite.plan import RunPlan
    from raysuite.records import Results

    opened = Results.open(results)
    print_text(f"results: {opened.folder}")
    view, known = _view(opened), set[str]()
    seen: object = None
    plans: list[dict[str, Any]] = []
    # the live part leaves its last state on a terminal
    with contextlib.nullcontext() if once else view.live():
        while True:
            if (state := opened.state_of_plans()) != seen:
                seen, plans = state, opened.plans()
                for plan in plans:
                    if plan["run_id"] not in known:
                        known.add(plan["run_id"])
                        view.add(RunPlan.model_validate(plan))
            # look for the driver first: the last read of the journals then follows the driver's end
            is_driven = has_driver(opened.folder) or _is_written(opened, plans)
            view.poll(opened)
            if not is_driven:
                view.without_driver()
            if once or not is_driven:
                break
            time.sleep(_POLL_S)
    if once:
        stdout().print(view.view())
    else:
        print_text(view.totals())
    if is_driven:
        return
    kinds = [getattr(opened.end_of(plan["run_id"]), "kind", None) for plan in plans]
    decided = opened.decided()
    if None in kinds or (opened.search() is not None and not (decided and decided.is_all)):
        raise typer.Exit(os.EX_TEMPFAIL)
    raise typer.Exit(1 if "run_failed" in kinds else 0)


def _is_written(results: Results, plans: list[dict[str, Any]]) -> bool:
    from raysuite.records import RunEnd, RunStopped
    from raysuite.records.live import live_file

    for plan in plans:
        journal = results.journal_file(plan["run_id"])
        for file in (journal, live_file(journal)):
            with contextlib.suppress(FileNotFoundError):
                recent = time.time() - file.stat().st_mtime < _SILENT_S
                last = results.records(plan["run_id"])[-1:]
                if recent and not (last and isinstance(last[0], RunEnd | RunStopped)):
                    return True
    return False


def _view(results: Results) -> LiveView:
    from raysuite.cli.progress import Progress
    from raysuite.cli.sweep_progress import SweepProgress
    from raysuite.plan.space import count
    from raysuite.spec.search import SearchOptions

    found = results.search()
    if found is None:
        return Progress([], False, False, stdout())
    search = SearchOptions.model_validate(found["search"])
    return SweepProgress(search.space, search.wanted, count(search), False, False, stdout())
