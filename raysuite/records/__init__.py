"""Facts: what was measured, written down before anything else hears of it."""

from raysuite.records.derive import RunFigures, results_figures, run_figures
from raysuite.records.journal import Journal, Results, Sink, read_journal
from raysuite.records.rows import Row, make_rows
from raysuite.records.schema import (
    EpochFinished,
    GateVerdict,
    Record,
    RunCosts,
    RunFailed,
    RunFinished,
    RunStarted,
    SamplesSkipped,
    TimeShares,
)
from raysuite.records.statistics import Ratio, Stat, ratio_of_means, summarize

__all__ = [
    "EpochFinished",
    "GateVerdict",
    "Journal",
    "Ratio",
    "Record",
    "Results",
    "Row",
    "RunCosts",
    "RunFailed",
    "RunFigures",
    "RunFinished",
    "RunStarted",
    "SamplesSkipped",
    "Sink",
    "Stat",
    "TimeShares",
    "make_rows",
    "ratio_of_means",
    "read_journal",
    "results_figures",
    "run_figures",
    "summarize",
]
