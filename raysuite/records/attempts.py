"""A run in several attempts: which of its Records count."""

from __future__ import annotations

from collections.abc import Iterable

from raysuite.records.ends import RunFailed, RunFinished, RunPruned, RunStopped
from raysuite.records.schema import (
    EpochFinished,
    Record,
    RunCosts,
    RunStarted,
    SamplesSkipped,
    StagesMeasured,
    TimeShares,
)

_OF_AN_ATTEMPT = (
    RunFinished,
    RunFailed,
    RunPruned,
    RunStopped,
    SamplesSkipped,
    StagesMeasured,
    TimeShares,
    RunCosts,
)
"""Records that an attempt which resumes a run writes again."""


def current(records: Iterable[Record]) -> list[Record]:
    """The Records that count, in order, where a run was resumed.

    A RunStarted from epoch k invalidates the previous attempt's epochs from k on, its end, profile
    and skipped samples; of an epoch that was recorded twice, the later record counts.
    """
    counted: list[Record] = []
    for record in records:
        if isinstance(record, RunStarted):
            first = record.first_epoch
            counted = [
                r
                for r in counted
                if not isinstance(r, _OF_AN_ATTEMPT)
                and not (isinstance(r, EpochFinished) and r.epoch >= first)
            ]
        elif isinstance(record, EpochFinished):
            counted = [
                r for r in counted if not (isinstance(r, EpochFinished) and r.epoch == record.epoch)
            ]
        counted.append(record)
    return counted
