"""Execute a run and write its Records into its journal, for Ray and for torchrun."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from raysuite.parallel.base import World
from raysuite.plan import RunPlan
from raysuite.records import Journal, Record, Results
from raysuite.records.live import live_file
from raysuite.train.checkpoint import keep_checkpoint
from raysuite.train.loop import TrainingLoop
from raysuite.train.run import TRACE, execute
from raysuite.train.stop_together import RequestedEnd


def recorded(
    plan: RunPlan,
    world: World,
    results: Results,
    folder: Path,
    resume: Path | None,
    unread: str,
    requested_end: RequestedEnd,
    until: int | None = None,
) -> Iterator[Record]:
    """Execute a plan; yield each Record on all ranks, after rank 0 has written it.

    Checkpoints go to `folder`. The trained weights, the trace of a profile and the position within
    an epoch are written next to the journal. The other parameters, and the errors raised, are those
    of `execute`.
    """
    file = results.journal_file(plan.run_id)
    journal = Journal(file) if world.rank == 0 else None

    def checkpoint(loop: TrainingLoop) -> None:
        keep_checkpoint(folder, loop.save, world, loop.engine.comm)

    for record in execute(
        plan,
        world,
        resume,
        checkpoint,
        file.with_name("model.pt"),
        file.with_name(TRACE),
        requested_end,
        until,
        live_file(file),
        unread,
    ):
        if journal is not None:
            journal.write(record)
        yield record
