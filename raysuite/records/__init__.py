"""Facts: what was measured, written before anything else uses it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysuite.records.batches import BatchFound, BatchTried
    from raysuite.records.derive import STATUS_WORDS, RunFigures, results_figures, run_figures
    from raysuite.records.ends import (
        FAILED,
        STOPPED,
        FailReason,
        RunEnd,
        RunFailed,
        RunFinished,
        RunPruned,
        RunStopped,
        StopReason,
    )
    from raysuite.records.journal import Journal, Results, read_journal
    from raysuite.records.judged import RunJudged
    from raysuite.records.rows import Row, make_rows
    from raysuite.records.schema import (
        EpochFinished,
        GateVerdict,
        Record,
        RunCosts,
        RunStarted,
        SamplesSkipped,
        ScriptMeasured,
        Slot,
        StagesMeasured,
        TimeShares,
    )
    from raysuite.records.statistics import Ratio, Stat, ratio_of_means, summarize

__all__ = [
    "FAILED",
    "STATUS_WORDS",
    "STOPPED",
    "BatchFound",
    "BatchTried",
    "EpochFinished",
    "FailReason",
    "GateVerdict",
    "Journal",
    "Ratio",
    "Record",
    "Results",
    "Row",
    "RunCosts",
    "RunEnd",
    "RunFailed",
    "RunFigures",
    "RunFinished",
    "RunJudged",
    "RunPruned",
    "RunStarted",
    "RunStopped",
    "SamplesSkipped",
    "ScriptMeasured",
    "Slot",
    "StagesMeasured",
    "Stat",
    "StopReason",
    "TimeShares",
    "make_rows",
    "ratio_of_means",
    "read_journal",
    "results_figures",
    "run_figures",
    "summarize",
]
_MODULES = ("batches", "derive", "ends", "journal", "judged", "rows", "schema", "statistics")


def __getattr__(name: str) -> Any:
    """Load the Records on first use: planning needs their names alone."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module in _MODULES:
        own = vars(import_module(f"{__name__}.{module}"))
        globals().update({known: own[known] for known in __all__ if known in own})
    return globals()[name]
