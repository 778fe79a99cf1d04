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
"""What an attempt that takes a run up again writes anew."""


def current(records: Iterable[Record]) -> list[Record]:
    """The Records that count, in order, where a run was resumed.

    A RunStarted from epoch k sets aside the epochs from k on, the end, the profile, and what was
    left out, of the attempt before it; of an epoch that was recorded twice the latest counts.
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
