"""Before a suite: the batches that its spec leaves to be found by trial."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from raysuite.cli.console import print_text
from raysuite.records import STOPPED

if TYPE_CHECKING:
    from raysuite.orchestrate.batches import Decision
    from raysuite.orchestrate.cluster import Capacity
    from raysuite.orchestrate.stopping import StopWatch
    from raysuite.plan import RunPlan


def find_batches(
    plans: Sequence[RunPlan], root: Path, capacity: Capacity, watch: StopWatch, silent: bool
) -> Decision:
    """The plans of a suite with all their numbers.

    Raises RunError as `orchestrate.batches.decide`, and Exit where it was asked to stop.
    """
    decision = search_batches(plans, root / plans[0].spec.name, capacity.nodes, watch, silent)
    if decision.stop is not None:
        raise typer.Exit(os.EX_TEMPFAIL)
    return decision


def search_batches(
    plans: Sequence[RunPlan], folder: Path, nodes: int, watch: StopWatch, silent: bool
) -> Decision:
    """What `orchestrate.batches.decide` finds; what is tried is told on stderr."""
    from raysuite.orchestrate.batches import decide
    from raysuite.orchestrate.suite import Listener

    def say(line: str) -> None:
        if not silent:
            print_text(line, error=True)

    if any(plan.undecided for plan in plans):
        say("finding by trial what the spec leaves to auto")
    hear = Listener(
        poll=lambda: None,
        between=None,
        say=say,
        added=lambda plan: None,
        asked_to_stop=watch.asked,
    )
    decision = decide(plans, folder, nodes, hear)
    if decision.stop is not None:
        why = STOPPED[decision.stop.reason]
        print_text(f"stopped ({why}) before the batch was found: nothing is kept", error=True)
    return decision
