"""A run's batch without Ray: what was tried lies in the results folder."""

from __future__ import annotations

import time

from raysuite.errors import RunError
from raysuite.plan import RunPlan
from raysuite.plan.batches import decided, outcome
from raysuite.records import Journal, Results
from raysuite.records.batches import BatchFound, TriedFile
from raysuite.train.batches import search_batch
from raysuite.train.world import world_from_environment


def decide(wish: RunPlan, results: Results, resume: bool) -> RunPlan:
    """The plan with the batch that its ranks find by trial; with `resume`, from what was tried.

    All ranks must call it. Raises RunError where nothing fits, and where a rank ran out of memory
    in a true step: started again with `resume`, the search goes on.
    """
    world = world_from_environment(wish.device)
    file = results.folder / "batches" / f"{wish.run_id}.jsonl"
    tried = TriedFile(file)
    if world.rank == 0 and not resume:
        file.unlink(missing_ok=True)
    began = time.monotonic()
    try:
        size = search_batch(wish, world, tried)
    except MemoryError as error:
        why = f"rank {world.rank}: {error}; start it again with --resume: a smaller one is tried"
        raise RunError(why) from error
    if world.rank:
        if not size:
            raise RunError(f"{wish.title}: no batch was found that fits into memory")
        return decided(wish, size)
    plan, found = outcome(wish, tried.read(), time.monotonic() - began)
    known = [each for each in results.records(plan.run_id) if isinstance(each, BatchFound)]
    if not (resume and known):
        Journal(results.journal_file(plan.run_id)).write(found)
        print(f"{plan.title}: {found.words}", flush=True)
    return plan
