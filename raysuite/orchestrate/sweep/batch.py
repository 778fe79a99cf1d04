"""A trial whose batch is to be found: on the trial's own workers, before its run begins."""

from __future__ import annotations

from raysuite.errors import RunError
from raysuite.orchestrate import stopping
from raysuite.orchestrate.losses import record_failure
from raysuite.orchestrate.node_keeper import DeadlineError
from raysuite.plan import RunPlan
from raysuite.plan.batches import NothingFitsError
from raysuite.records import FailReason, Journal, Results

FOLDER = "batches"
"""In the results folder, while a batch is looked for."""


def find_batch(plan: RunPlan, results: Results, deadline: float | None) -> RunPlan | None:
    """The plan with all its numbers, and how they were found in its journal; None without any.

    Why there are none is on record then, unless the sweep was asked to stop. `deadline`: when the
    search is ended, in seconds since 1970.
    """
    from raysuite.orchestrate.batches import decide
    from raysuite.orchestrate.suite import Listener

    hear = Listener(
        poll=lambda: None,
        between=None,
        say=lambda line: None,
        added=lambda plan: None,
        asked_to_stop=lambda: stopping.told(results.folder),
    )
    try:
        decision = decide([plan], results.folder / FOLDER, 1, hear, deadline)
    except RunError as error:
        record_failure(plan, results, *_why(error))
        return None
    if decision.stop is not None:
        return None
    made = decision.plans[0]
    Journal(results.journal_file(made.run_id)).write(decision.found[made.run_id])
    return made


def _why(error: RunError) -> tuple[FailReason, str]:
    if isinstance(error, DeadlineError):
        return "deadline", "its batch was not found within the sweep's deadline_s"
    return ("out_of_memory" if isinstance(error, NothingFitsError) else "error"), str(error)
