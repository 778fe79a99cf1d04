"""A trial whose batch is to be found: on the trial's own workers, before its run begins."""

from __future__ import annotations

from raysuite.errors import RunError
from raysuite.orchestrate import stopping
from raysuite.orchestrate.losses import record_failure
from raysuite.plan import RunPlan
from raysuite.records import Journal, Results

FOLDER = "batches"
"""In the results folder, while a batch is looked for."""


def find_batch(plan: RunPlan, results: Results) -> RunPlan | None:
    """The plan with all its numbers, and how they were found in its journal; None without any.

    Why there are none is on record then, unless the sweep was asked to stop.
    """
    from raysuite.orchestrate.batches import decide
    from raysuite.orchestrate.suite import Listener

    hear = Listener(
        poll=lambda: None,
        between=lambda: None,
        say=lambda line: None,
        added=lambda plan: None,
        asked_to_stop=lambda: stopping.told(results.folder),
    )
    try:
        decision = decide([plan], results.folder / FOLDER, 1, hear)
    except RunError as error:
        record_failure(plan, results, "out_of_memory", str(error))
        return None
    if decision.stop is not None:
        return None
    made = decision.plans[0]
    Journal(results.journal_file(made.run_id)).write(decision.found[made.run_id])
    return made
