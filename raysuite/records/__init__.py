"""Facts: what was measured, written down before anything else hears of it."""

from raysuite.records.journal import Journal, Results, Sink, read_journal
from raysuite.records.schema import (
    EpochFinished,
    GateVerdict,
    Record,
    RunFailed,
    RunFinished,
    RunStarted,
)

__all__ = [
    "EpochFinished",
    "GateVerdict",
    "Journal",
    "Record",
    "Results",
    "RunFailed",
    "RunFinished",
    "RunStarted",
    "Sink",
    "read_journal",
]
